"""When and where samples were decoded, as the recipe saw it: one file of JSON lines for each process."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import msgspec

_libc = ctypes.CDLL(None)


class DecodeTask(msgspec.Struct, frozen=True):
    """A call of `fill`. Times are on CLOCK_MONOTONIC; `core` is where it ended."""

    began_s: float
    ended_s: float
    core: int
    sample: int


@contextmanager
def traced(folder: str, sample: int) -> Iterator[None]:
    """Note what runs inside as a task, in `folder`; nowhere if that is empty."""
    if not folder:
        yield
        return
    began_s = time.monotonic()
    yield
    task = DecodeTask(began_s, time.monotonic(), _libc.sched_getcpu(), sample)
    os.write(_file(folder, os.getpid()), msgspec.json.encode(task) + b"\n")


@lru_cache(maxsize=1)
def _file(folder: str, pid: int) -> int:
    """The descriptor of this process's own file."""
    flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
    return os.open(os.path.join(folder, f"{pid}.jsonl"), flags, 0o644)


def read_tasks(folder: Path) -> list[DecodeTask]:
    """All tasks of all processes, in order of their start."""
    decoder = msgspec.json.Decoder(DecodeTask)
    found = [task for path in folder.glob("*.jsonl") for task in decoder.decode_lines(path.read_bytes())]
    return sorted(found, key=lambda task: task.began_s)
