"""Answers of a build, kept beside its output until that is written: a build that broke off goes on there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType

import msgspec

from libhelix.index.formats import Member
from libhelix.index.known import Known, Place
from libhelix.index.scan import Answer
from libhelix.index.schema import FORMAT, PROBING
from libhelix.index.writing import unwritable

_HEAD = msgspec.json.encode(["helix.partial", FORMAT, PROBING]) + b"\n"


def path_of(output: str) -> str:
    """Where the journal of a build into `output` lies."""
    return f"{output}.partial"


class Journal:
    """Appends answers; `read_into` gives those of the build before, if its rules are these."""

    def __init__(self, output: str) -> None:
        self._path = path_of(output)
        self._output = output
        self._fd = -1

    def read_into(self, known: Known) -> None:
        """Add the answers that are there. A torn last line is what a kill leaves, and ends reading."""
        try:
            with open(self._path, "rb") as file:
                if file.readline() != _HEAD:
                    return
                for line in file:
                    place, answer = _LINE.decode(line)
                    known.answers[place] = answer
        except (OSError, msgspec.DecodeError):
            return

    def forget(self) -> None:
        """Remove what an earlier build left."""
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass
        except OSError as e:
            raise unwritable(self._path, e) from e

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it; remove it unless the build broke off."""
        del value, traceback
        if self._fd >= 0:
            os.close(self._fd)
        if kind is None:
            self.forget()

    def add(self, members: Sequence[Member], answers: Sequence[Answer]) -> None:
        """Write answers down, in one piece."""
        try:
            if self._fd < 0:
                self._fd = _opened(self._path)
            lines = [_ENCODER.encode((m.place, a)) for m, a in zip(members, answers, strict=True)]
            os.write(self._fd, b"\n".join(lines) + b"\n")
        except OSError as e:
            raise unwritable(self._path, e) from e


def _opened(path: str) -> int:
    """Open to append behind the last whole line of answers by these rules."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with open(path, "rb") as file:
        whole = 0
        if file.readline() == _HEAD:
            whole = len(_HEAD)
            for line in file:
                whole += len(line) if line.endswith(b"\n") else 0
    os.ftruncate(fd, whole)
    os.lseek(fd, 0, os.SEEK_END)
    if not whole:
        os.write(fd, _HEAD)
    return fd


_LINE = msgspec.json.Decoder(tuple[Place, Answer])
_ENCODER = msgspec.json.Encoder()
