"""What the processes of a run take: CPU time, and memory, read from /proc beside the run."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec

from bench.processes import NODE_MARK, CpuMeter, Marked

_READ_S = 1.0
_MEMORY_EVERY = 6
"""Rounds between two sums of memory: they walk the page tables of all processes."""


class Taken(msgspec.Struct, frozen=True):
    """CPU seconds since some moment, at a time of the monotonic clock."""

    at_s: float
    cpu_s: float


class Memory(msgspec.Struct, frozen=True):
    """Bytes of all processes, what they share counted once. shared: tmpfs and memfd; private: anonymous."""

    shared: int = 0
    private: int = 0


class Watch:
    """Watches the processes that carry a mark, in a thread. Use it in `with`."""

    def __init__(self, mark: str) -> None:
        self._marked = Marked(mark, variable=NODE_MARK)
        self._meter = CpuMeter(self._marked)
        self.taken: list[Taken] = []
        self.peak = Memory()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def _run(self) -> None:
        rounds = 0
        while True:
            self.taken.append(Taken(time.monotonic(), self._meter.read_s()))
            rounds += 1
            if rounds % _MEMORY_EVERY == 3:
                found = self._memory()
                self.peak = Memory(max(self.peak.shared, found.shared), max(self.peak.private, found.private))
            if self._over.wait(_READ_S):
                return

    def _memory(self) -> Memory:
        shared = private = 0
        for stat in self._marked.stats():
            try:
                text = Path(f"/proc/{stat.pid}/smaps_rollup").read_text()
            except OSError:
                continue  # ended meanwhile
            kb = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
            shared += kb.get("Pss_Shmem", 0) * 1024
            private += kb.get("Pss_Anon", 0) * 1024
        return Memory(shared, private)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.taken.append(Taken(time.monotonic(), self._meter.read_s()))
