"""How long the runtime's loop was away from its sockets, turn by turn. It measures, this counts."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

BOUNDS_MS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
"""Turns are counted by the first bound that they do not exceed; what exceeds all is counted last."""


def _buckets() -> list[int]:
    return [0] * (len(BOUNDS_MS) + 1)


@dataclass(eq=False, slots=True)
class Turns:
    """Turns of the loop, from sockets looked at to sockets looked at again.

    wall: what peers have waited for, other processes on the core included. cpu: what is our own doing.
    """

    count: int = 0
    wall_max_s: float = 0.0
    cpu_max_s: float = 0.0
    cpu_sum_s: float = 0.0
    wall: list[int] = field(default_factory=_buckets)
    cpu: list[int] = field(default_factory=_buckets)

    def add(self, wall_s: float, cpu_s: float) -> None:
        """A turn is over."""
        self.count += 1
        self.cpu_sum_s += cpu_s
        self.wall_max_s = max(self.wall_max_s, wall_s)
        self.cpu_max_s = max(self.cpu_max_s, cpu_s)
        self.wall[bisect_left(BOUNDS_MS, wall_s * 1e3)] += 1
        self.cpu[bisect_left(BOUNDS_MS, cpu_s * 1e3)] += 1

    def view(self) -> dict[str, object]:
        """For `helixctl status`."""
        return {
            "turns": self.count,
            "longest_ms": round(self.wall_max_s * 1e3, 3),
            "longest_cpu_ms": round(self.cpu_max_s * 1e3, 3),
            "cpu_s": round(self.cpu_sum_s, 6),
            "bounds_ms": list(BOUNDS_MS),
            "by_wall": list(self.wall),
            "by_cpu": list(self.cpu),
        }
