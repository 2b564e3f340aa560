"""CPU time of a side by kind of process, in nanoseconds as the scheduler counts them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

DAEMON, HOST, WORKERS = "daemon", "host", "workers"


class CpuByKind(msgspec.Struct, frozen=True):
    """CPU seconds since the processes began; of helixd also those of its loop, which is its main thread."""

    daemon_s: float = 0.0
    loop_s: float = 0.0
    host_s: float = 0.0
    workers_s: float = 0.0

    def since(self, before: CpuByKind) -> CpuByKind:
        """What was added since an earlier reading."""
        return CpuByKind(
            self.daemon_s - before.daemon_s,
            self.loop_s - before.loop_s,
            self.host_s - before.host_s,
            self.workers_s - before.workers_s,
        )


def parse_schedstat(text: str) -> float:
    """Seconds on a CPU, from a line of /proc/PID/schedstat."""
    return int(text.split()[0]) * 1e-9


def kind_of(name: str, command: bytes) -> str | None:
    """What a process is, from its comm and its command line; None for a trainer and for others."""
    if name.startswith("helix-w"):
        return WORKERS
    if name == "helix-host":
        return HOST
    words = command.split(b"\0")
    return DAEMON if b"helixd" in words and b"embedded" in words else None


def read_cpu(pids: Iterable[int], proc: Path = Path("/proc")) -> CpuByKind:
    """CPU time of those of the processes that are helixd, a worker host or a worker."""
    sums = dict.fromkeys((DAEMON, HOST, WORKERS), 0.0)
    loop_s = 0.0
    for pid in pids:
        folder = proc / str(pid)
        try:
            kind = kind_of((folder / "comm").read_text().strip(), (folder / "cmdline").read_bytes())
            if kind is None:
                continue
            threads = {t.name: parse_schedstat((t / "schedstat").read_text()) for t in _threads(folder)}
        except OSError:
            continue  # ended meanwhile
        sums[kind] += sum(threads.values())
        loop_s += threads[str(pid)] if kind == DAEMON else 0.0
    return CpuByKind(sums[DAEMON], loop_s, sums[HOST], sums[WORKERS])


def _threads(folder: Path) -> list[Path]:
    return list((folder / "task").iterdir())
