"""Bytes are asked for ahead where storage is slow, and only there."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from helixd.worker.readahead import ReadAhead
from libhelix.recipe import Item

SIZE = 1 << 20


def _cached(path: Path) -> bool:
    """Whether a whole file is in the page cache."""
    with open(path, "rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(SIZE)], 0, os.RWF_NOWAIT) == SIZE
        except BlockingIOError:
            return False


def _evict(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_what_is_asked_for_ahead_is_soon_in_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "clip"
    path.write_bytes(os.urandom(SIZE))
    _evict(path)
    try:
        if _cached(path):
            pytest.skip("this file system keeps everything in memory")
    except OSError:
        pytest.skip("this file system does not say what is cached")
    item = Item(kind="video", path=str(path), offset=0, size=SIZE, mtime_ns=0)
    ReadAhead().ask([item])
    deadline = time.monotonic() + 10
    while not _cached(path):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_is_gone_is_left_for_the_task_to_report(tmp_path: Path) -> None:
    ahead = ReadAhead()
    there = tmp_path / "there"
    there.write_bytes(bytes(10))
    gone = Item(kind="video", path=str(tmp_path / "gone"), offset=0, size=10, mtime_ns=0)
    ahead.ask([gone] * 200 + [Item(kind="video", path=str(there), offset=0, size=10, mtime_ns=0)])
    assert ahead._thread is not None
    assert ahead._thread.is_alive()


def test_it_pays_only_while_tasks_stall() -> None:
    ahead = ReadAhead()
    found = [ahead.pays]
    for stall_us, tasks in ((3000, 20), (0, 40)):
        for _ in range(tasks):
            ahead.ended(10_000, stall_us)
        found.append(ahead.pays)
    assert found == [False, True, False]
