"""What the trainers of `bench split` are told, and what they answer."""

from __future__ import annotations

import msgspec


class Open(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """Start a daemon with workers, and keep it."""

    index: str
    job: str


class Wait(msgspec.Struct, frozen=True, kw_only=True, tag="wait"):
    """Make a loader and wait for its first batch: `frames` frames of the index's only clip."""

    index: str
    job: str
    frames: int
    size: tuple[int, int]


class Waited(msgspec.Struct, frozen=True, kw_only=True):
    """seconds: from start() to the batch. busiest_cpu_s: decoding by the worker that had most to do. digest:
    of the pixels. parts, workers, threads: how they were decoded."""

    seconds: float = 0.0
    busiest_cpu_s: float = 0.0
    digest: str = ""
    parts: int = 0
    workers: int = 0
    threads: int = 0


Request = Open | Wait
