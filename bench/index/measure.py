"""Rounds of probing files by either way, and builds of whole trees by the command that users call."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from libhelix.media import probe_items, scan_media
from libhelix.recipe import Item

HEADERS, SCAN = "headers", "scan"


class Probed(msgspec.Struct, frozen=True):
    """A round: `files` probed one after the other by one side, in `cpu_s` of this thread."""

    kind: str
    side: str
    files: int
    cpu_s: float
    wall_s: float


class Built(msgspec.Struct, frozen=True):
    """A run of helixctl index. `cpu_s` is of all its processes, scanning ones included."""

    name: str
    files: int
    cpu_s: float
    wall_s: float


def scan(path: str) -> tuple[Item, ...]:
    """What a file is by demuxing it, as it was found before headers were read."""
    found = os.stat(path)
    return scan_media(Item(kind="", path=path, offset=0, size=found.st_size, mtime_ns=found.st_mtime_ns))


def probe_round(kind: str, side: str, files: Sequence[Path], seconds: float) -> Probed:
    """Probe all files again and again for at least so long."""
    look: Callable[[str], tuple[Item, ...]] = probe_items if side == HEADERS else scan
    paths = [str(path) for path in files]
    count = 0
    cpu, wall = time.thread_time(), time.perf_counter()
    while time.perf_counter() - wall < seconds:
        for path in paths:
            look(path)
        count += len(paths)
    return Probed(kind, side, count, time.thread_time() - cpu, time.perf_counter() - wall)


def alike(files: Sequence[Path]) -> bool:
    """Whether both sides say the same of all files."""
    return all(probe_items(path) == scan(str(path)) for path in files)


def build_tree(name: str, tree: Path, index: Path, files: int, *options: str) -> Built:
    """Index a tree in a process of its own, as a user does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = time.perf_counter()
    command = [sys.executable, "-m", "libhelix.ctl", "index", str(tree), "-o", str(index), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    took_s = time.perf_counter() - wall
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Built(name, files, cpu_s, took_s)
