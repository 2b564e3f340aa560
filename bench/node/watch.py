"""What the processes of a run take: CPU time, and memory, read from /proc beside the run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from bench.processes import NODE_MARK, CpuMeter, Marked, parse_stat

_READ_S = 1.0
_SHARED_EVERY = 2
_PRIVATE_EVERY = 6
"""Rounds between two sums of private memory: they walk the page tables of all processes."""
_SHM = Path("/dev/shm")


class Taken(msgspec.Struct, frozen=True):
    """CPU seconds since some moment, at a time of the monotonic clock."""

    at_s: float
    cpu_s: float


class Memory(msgspec.Struct, frozen=True):
    """Bytes of all processes. shared: files in memory that any of them has open, each once, as far as they
    are written; private: anonymous."""

    shared: int = 0
    private: int = 0


class Watch:
    """Watches the processes that carry a mark, in a thread; and one of them, a daemon, apart. Use it in
    `with`."""

    def __init__(self, mark: str, daemon: int | None = None) -> None:
        self._marked = Marked(mark, variable=NODE_MARK)
        self._meter = CpuMeter(self._marked)
        self._daemon = daemon
        self.taken: list[Taken] = []
        self.daemon: list[Taken] = []
        self.peak = Memory()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def _run(self) -> None:
        rounds = 0
        while True:
            self._read()
            rounds += 1
            shared, private = self.peak.shared, self.peak.private
            if rounds % _SHARED_EVERY == 1:
                shared = max(shared, self._shared())
            if rounds % _PRIVATE_EVERY == 3:
                private = max(private, self._private())
            self.peak = Memory(shared, private)
            if self._over.wait(_READ_S):
                return

    def _read(self) -> None:
        self.taken.append(Taken(time.monotonic(), self._meter.read_s()))
        try:
            stat = parse_stat(Path(f"/proc/{self._daemon}/stat").read_text()) if self._daemon else None
        except OSError:
            return  # ended meanwhile
        if stat is not None:
            self.daemon.append(Taken(time.monotonic(), stat.cpu_s))

    def _shared(self) -> int:
        """Batches that a rank holds and never reads are in nobody's page tables: files say what there is."""
        pids = [stat.pid for stat in self._marked.stats()]
        found: dict[tuple[int, int], int] = {}
        for path in (one for pid in pids for one in _open_in_memory(pid)):
            with suppress(OSError):  # closed meanwhile
                stat = path.stat()
                found[stat.st_dev, stat.st_ino] = stat.st_blocks * 512
        return sum(found.values())

    def _private(self) -> int:
        private = 0
        for stat in self._marked.stats():
            try:
                text = Path(f"/proc/{stat.pid}/smaps_rollup").read_text()
            except OSError:
                continue  # ended meanwhile
            kb = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
            private += kb.get("Pss_Anon", 0) * 1024
        return private

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._read()


def _open_in_memory(pid: int) -> Iterator[Path]:
    """Files in memory that a process has open, or that torch has left a name for it (`file_system`)."""
    yield from _SHM.glob(f"torch_{pid}_*")
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return  # ended meanwhile
    for name in names:
        with suppress(OSError):
            if os.readlink(f"{folder}/{name}").startswith((f"{_SHM}/", "/memfd:")):
                yield Path(folder, name)
