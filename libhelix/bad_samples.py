"""What training could not decode, kept for its user: a list of bad samples for each index.

$HELIX_CACHE or ~/.cache/helix holds bad-samples/<fingerprint of the index>.jsonl, a line for each time that a
sample failed. `helixctl errors` shows them; `helixctl quarantine` keeps samples out of later epochs.

However long jobs run, lists stay bounded: a full one becomes <fingerprint>.jsonl.old, in place of that
before, and where all lists together are too large, those go that were not written to for longest.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator

import msgspec

from libhelix.errors import IndexProblem
from libhelix.index.cache import user_cache
from libhelix.index.read import Index
from libhelix.recipe import Sample
from libhelix.wire.messages import Bad

MOST_BYTES = 8 << 20
"""Of a list; the one before it has as much again."""
MOST_BYTES_IN_ALL = 256 << 20
"""Of all lists of a user, which every rebuilt index adds to."""


class BadSample(msgspec.Struct, frozen=True):
    """One failure. `path` and `offset`: where the sample's first item lies; `time`: seconds since 1970."""

    key: str
    path: str
    offset: int
    stage: str
    error: str
    epoch: int
    step: int
    loader: str
    time: float


def list_of(index: Index) -> str:
    """The file that holds the bad samples of an index."""
    return os.path.join(user_cache(), "bad-samples", f"{index.fingerprint}.jsonl")


def note(index: Index, sample: Sample, bad: Bad, loader: str) -> None:
    """Append to the list. Raises OSError where that cannot be written."""
    item = sample.items[0] if sample.items else None
    line = BadSample(
        key=sample.key,
        path=item.path if item is not None else "",
        offset=item.offset if item is not None else 0,
        stage=bad.stage,
        error=bad.text,
        epoch=bad.at.epoch,
        step=bad.at.step,
        loader=loader,
        time=round(time.time(), 3),
    )
    _append(list_of(index), msgspec.json.encode(line) + b"\n")


def _append(path: str, line: bytes) -> None:
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(path):
        _make_room(folder)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(fd).st_size
        if size >= 2 * MOST_BYTES:
            raise OSError(errno.EFBIG, "full, and cannot be renamed", path)
        if size and os.pread(fd, 1, size - 1) != b"\n":
            line = b"\n" + line  # a full disk has cut the last one
        # One write of whole lines: ranks and jobs append at the same time.
        if os.write(fd, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if size + len(line) >= MOST_BYTES:
            _begin_another(path, fd)
    finally:
        os.close(fd)


def _begin_another(path: str, fd: int) -> None:
    """Put a full list aside; of several processes that find it full, one does."""
    with contextlib.suppress(OSError):  # another is at it, or has done it, or the next failure tries again
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(path), os.fstat(fd)):
            os.replace(path, _before(path))


def _make_room(folder: str) -> None:
    """Remove the lists that were not written to for longest, where all are too large for another."""
    lists = sorted(_sizes(folder))
    in_all = sum(size for _, size, _ in lists)
    for _, size, path in lists:
        if in_all <= MOST_BYTES_IN_ALL - 2 * MOST_BYTES:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        in_all -= size


def _sizes(folder: str) -> Iterator[tuple[int, int, str]]:
    """(when last written to, bytes, path) of every list."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                yield found.st_mtime_ns, found.st_size, entry.path


def _before(path: str) -> str:
    return f"{path}.old"


def noted(index: Index) -> list[BadSample]:
    """The list of an index, the oldest first. A line that a full disk cut short is left out."""
    path = list_of(index)
    found = []
    for line in (*_lines(_before(path)), *_lines(path)):
        try:
            found.append(msgspec.json.decode(line, type=BadSample))
        except msgspec.DecodeError:
            continue
    return found


def _lines(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []
    except OSError as e:
        raise IndexProblem(f"{path}: {e.strerror}; set HELIX_CACHE to a folder of yours") from e
