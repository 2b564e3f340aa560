"""The processes of a side of a benchmark: what CPU time they took, and their end.

A side's first process gets a mark in its environment. Whatever it starts inherits the mark, daemons that
left its session included, so the side is all processes that have it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

MARK = "HELIX_BENCH_SIDE"
NODE_MARK = "HELIX_BENCH_NODE"
"""Carried by all sides of a node, where several make one, beside the mark of each."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_END_LIMIT_S = 5.0
_BY_THEMSELVES_S = 1.0


class Stat(NamedTuple):
    """/proc/PID/stat. `reaped_s` is the CPU time of children that ended and were waited for."""

    pid: int
    parent: int
    state: str
    started: int
    cpu_s: float
    reaped_s: float


def parse_stat(text: str) -> Stat:
    """A line of /proc/PID/stat; the name in it may hold anything."""
    pid, _, rest = text.partition(" (")
    fields = rest[rest.rindex(")") + 2 :].split()
    user, system, reaped_user, reaped_system = (int(fields[i]) * _TICK_S for i in (11, 12, 13, 14))
    return Stat(
        pid=int(pid),
        parent=int(fields[1]),
        state=fields[0],
        started=int(fields[19]),
        cpu_s=user + system,
        reaped_s=reaped_user + reaped_system,
    )


class Marked:
    """The processes that carry a mark, in the environment variable of that name."""

    def __init__(self, mark: str, proc: Path = Path("/proc"), *, variable: str = MARK) -> None:
        self._entry = f"{variable}={mark}".encode()
        self._proc = proc
        self._known: dict[tuple[int, int], bool] = {}

    def stats(self) -> list[Stat]:
        """All of them now."""
        found: list[Stat] = []
        known: dict[tuple[int, int], bool] = {}
        for name in os.listdir(self._proc):
            if not name.isdecimal():
                continue
            folder = self._proc / name
            try:
                stat = parse_stat((folder / "stat").read_text())
                key = stat.pid, stat.started
                ours = self._known.get(key)
                if ours is None:
                    ours = self._entry in (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # ended meanwhile, or not ours to read
            known[key] = ours
            if ours:
                found.append(stat)
        self._known = known
        return found


class CpuMeter:
    """CPU seconds of a side since it began: processes that live, and those that have ended.

    Read it often enough to see every process once that nobody in the side waits for.
    """

    def __init__(self, marked: Marked) -> None:
        self._marked = marked
        self._last: dict[tuple[int, int], Stat] = {}
        self._ended_s = 0.0
        self.pids: set[int] = set()
        """All that were seen."""

    def read_s(self) -> float:
        """CPU seconds so far."""
        now = {(s.pid, s.started): s for s in self._marked.stats()}
        alive = {s.pid: s for s in now.values()}
        self.pids |= alive.keys()
        gone_s: dict[int, float] = {}
        for key, stat in self._last.items():
            if key not in now:
                gone_s[stat.parent] = gone_s.get(stat.parent, 0.0) + stat.cpu_s + stat.reaped_s
        before_s = {s.pid: s.reaped_s for s in self._last.values()}
        for parent, seconds in gone_s.items():
            # Who was waited for by a process of the side is in its `reaped_s`; but not where ends of children
            # are ignored, as by Ray.
            there = alive.get(parent)
            counted_s = there.reaped_s - before_s.get(parent, 0.0) if there is not None else 0.0
            self._ended_s += max(0.0, seconds - counted_s)
        self._last = now
        return self._ended_s + sum(s.cpu_s + s.reaped_s for s in now.values())


def busy_s() -> float:
    """CPU seconds that all cores of this machine have been busy since it started, stolen time included."""
    fields = [int(f) for f in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) * _TICK_S


def cores_busy(over_s: float = 1.0) -> float:
    """How many cores are busy now, on average over a moment in which we only sleep."""
    began_s, before_s = time.monotonic(), busy_s()
    time.sleep(over_s)
    return (busy_s() - before_s) / (time.monotonic() - began_s)


def end_marked(mark: str) -> None:
    """See what is left of a side gone: by itself, as daemons end whose trainers have, or killed."""
    marked = Marked(mark)
    began_s = time.monotonic()
    while left := [s for s in marked.stats() if s.state != "Z"]:
        waited_s = time.monotonic() - began_s
        if waited_s > _END_LIMIT_S:
            return  # not even SIGKILL helps
        for stat in left if waited_s > _BY_THEMSELVES_S else ():
            try:
                os.kill(stat.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def remove_torch_segments(pids: Iterable[int], shm: Path = Path("/dev/shm")) -> None:
    """Remove the shared memory that ended torch processes have left: with the strategy file_system, batches
    that were ready and not taken keep their names."""
    for pid in pids:
        for path in shm.glob(f"torch_{pid}_*"):
            path.unlink(missing_ok=True)
