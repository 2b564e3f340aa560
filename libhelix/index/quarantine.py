"""Samples that training leaves out: a list of keys beside the index, INDEX.quarantine, one JSON line each.

Keys, not numbers: an index that is built anew keeps its quarantine. It enters the plan of a loader that is
made, or restored at the start of an epoch; inside an epoch a state keeps the one that it began with.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from libhelix.errors import IndexProblem, UsageError
from libhelix.index.join import Joined
from libhelix.index.read import Index
from libhelix.wire.settings import MOST_QUARANTINED


class Entry(msgspec.Struct, frozen=True):
    """A sample that is left out, and why. `failed`: because it failed, not by somebody's decision."""

    key: str
    why: str = ""
    failed: bool = False


def file_of(index: Index) -> str:
    """The list of an index."""
    return f"{index.path}.quarantine"


def entries(index: Index) -> list[Entry]:
    """The quarantine of an index. Raises IndexProblem for a list that cannot be read."""
    path = file_of(index)
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    except OSError as e:
        raise IndexProblem(f"{path}: {e.strerror}; check its permissions") from e
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(msgspec.json.decode(line, type=Entry))
        except msgspec.DecodeError as e:
            raise IndexProblem(f"{path}: line {number} is no entry ({e}); mend or remove it") from e
    return found


def keep(index: Index, kept: Sequence[Entry]) -> None:
    """Make this the quarantine of an index, in one go. Raises IndexProblem."""
    path = file_of(index)
    if len(kept) > MOST_QUARANTINED:
        raise UsageError(
            f"{path}: {len(kept):,} samples, at most {MOST_QUARANTINED:,} are left out; index again without "
            "their files"
        )
    try:
        if not kept:
            if os.path.exists(path):
                os.unlink(path)
            return
        fd, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".quarantine-")
        with open(fd, "wb") as file:
            file.writelines(msgspec.json.encode(entry) + b"\n" for entry in kept)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as e:
        raise IndexProblem(f"{path}: {e.strerror}; the folder of the index must be writable") from e


@contextlib.contextmanager
def locked(index: Index) -> Iterator[None]:
    """One after the other: what reads the list to write it anew must not overlap. Raises IndexProblem."""
    try:
        fd = os.open(index.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        raise IndexProblem(f"{index.path}: {e.strerror}; check its permissions") from e
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def rows_of(index: Index, keys: Sequence[str]) -> dict[str, list[int]]:
    """The samples of these keys, as far as the index has them: all of a key that repeats."""
    all_keys = index.keys()
    found: dict[str, list[int]] = {}
    for row in pc.indices_nonzero(pc.is_in(all_keys, pa.array(keys, all_keys.type))).to_pylist():
        found.setdefault(all_keys[row].as_py(), []).append(row)
    return found


def quarantined(index: Joined) -> tuple[int, ...]:
    """The samples of all sources that are left out, rising. Raises IndexProblem, UsageError."""
    found: list[int] = []
    before = 0
    for one in index.indexes:
        if kept := entries(one):
            rows = rows_of(one, [entry.key for entry in kept]).values()
            found += (before + row for some in rows for row in some)
        before += len(one)
    if len(found) > MOST_QUARANTINED:
        raise UsageError(
            f"{len(found):,} samples of all sources are in quarantine, at most {MOST_QUARANTINED:,} are left "
            "out; index again without their files"
        )
    return tuple(sorted(set(found)))
