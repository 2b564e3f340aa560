"""Numbers for monitoring: counters of what happened, and gauges of what is. They measure nothing themselves.

Counters belong to the daemon, not to a job: they go on when jobs leave, so they never fall. No label holds
what a user chose freely, such as names of jobs or files; kinds of samples are words of recipes, and few.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from libhelix.wire import messages as m

if TYPE_CHECKING:
    from helixd.core.job import Job

WAIT_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
DECODE_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MOST_KINDS = 24
"""Recipes choose kinds; what comes after so many different ones is counted as "other"."""
_KIND = re.compile(r"[a-zA-Z0-9_.+-]{1,32}")
Stage = Literal["describe", "decode", "storage", "preempted"]
STAGES: tuple[Stage, ...] = ("describe", "decode", "storage", "preempted")
Reason = Literal["signal", "exit", "stuck", "host"]
REASONS: tuple[Reason, ...] = ("signal", "exit", "stuck", "host")


class Histogram:
    """How many values were at most each bound, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.total = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value; one below zero, as of a clock that was set, counts as zero."""
        value = max(0.0, value)
        self.total += value
        self._counts[bisect_left(self.bounds, value)] += 1

    def buckets(self) -> list[tuple[str, int]]:
        """(upper bound, how many are at most that), up to "+Inf", which all are."""
        return list(zip([*map(str, self.bounds), "+Inf"], accumulate(self._counts)))

    @property
    def count(self) -> int:
        """How many values came."""
        return sum(self._counts)


@dataclass(eq=False)
class Errands:
    """Samples that other nodes were asked to decode.

    sent, landed, declined, taken_back   by what came of it; of the rest nothing is known yet
    refused                    times at which the gate let no sample of a late batch pass
    nbytes, predicted_s, took_s   of those that landed, from being sent for to being there
    """

    sent: int = 0
    landed: int = 0
    declined: int = 0
    taken_back: int = 0
    refused: int = 0
    nbytes: int = 0
    predicted_s: float = 0.0
    took_s: float = 0.0

    def came(self, nbytes: int, predicted_s: float, took_s: float) -> None:
        """One has landed."""
        self.landed += 1
        self.nbytes += nbytes
        self.predicted_s += predicted_s
        self.took_s += took_s


@dataclass(eq=False)
class Counters:
    """What happened since the daemon began."""

    waits: Histogram = field(default_factory=lambda: Histogram(WAIT_BOUNDS_S))
    misses: int = 0
    samples: int = 0
    bad: int = 0
    cut_off: int = 0
    """Connections whose messages broke the protocol; the runtime adds."""
    peer_bytes: int = 0
    """Sent to daemons of other nodes; the runtime adds."""
    remote: Errands = field(default_factory=Errands)
    guests: int = 0
    """Samples that were decoded for other nodes."""
    staged: int = 0
    """Samples that were begun before their batch had its place."""
    decode: dict[str, Histogram] = field(default_factory=dict)
    stage_s: dict[Stage, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    restarts: dict[Reason, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))

    def decoded(self, kind: str, cpu_s: float) -> None:
        """A piece of a sample was decoded."""
        if kind not in self.decode and (len(self.decode) >= MOST_KINDS or not _KIND.fullmatch(kind)):
            kind = "other"
        if kind not in self.decode:
            self.decode[kind] = Histogram(DECODE_BOUNDS_S)
        self.decode[kind].add(cpu_s)

    def described(self, wall_s: float) -> None:
        """A task that describes samples has ended."""
        self.stage_s["describe"] += max(0.0, wall_s)

    def filled(self, wall_s: float, cpu_us: int, stall_us: int) -> None:
        """A task that decodes has ended: it ran, stood still for bytes, or others had its core."""
        cpu_s, stall_s = cpu_us * 1e-6, stall_us * 1e-6
        self.stage_s["decode"] += cpu_s
        self.stage_s["storage"] += stall_s
        self.stage_s["preempted"] += max(0.0, wall_s - cpu_s - stall_s)  # codec threads run beside each other

    def worker_gone(self, *, killed: bool, status: int | None) -> None:
        """A worker ended that should not have; None where its host took it along."""
        reason: Reason = "host" if status is None else "signal" if status < 0 else "exit"
        self.restarts["stuck" if killed else reason] += 1


@dataclass(frozen=True)
class Gauges:
    """What is there at this moment, of all jobs together."""

    jobs: int = 0
    loaders: int = 0
    ranks: int = 0
    workers: int = 0
    busy_workers: int = 0
    ring_free: int = 0
    ring_filling: int = 0
    ring_leased: int = 0
    quarantined: int = 0
    """Samples that loaders leave out of their order, by their users' lists."""
    bad_samples: int = 0
    """Of the epoch that each loader is in, and of the last."""
    ignored_releases: int = 0
    tiers: dict[m.Tier, int] = field(default_factory=dict)
    """Trainers by how their batches get to an accelerator."""


def gauges(jobs: Iterable[Job]) -> Gauges:
    """The gauges of these jobs."""
    jobs = list(jobs)
    streams = [s for job in jobs for s in job.streams.values()]
    consumers = [c for s in streams for c in s.consumers.values()]
    ledgers = [c.ledger for c in consumers if c.ledger is not None]
    used = [ledger.used() for ledger in ledgers]
    filling, leased = sum(u[0] for u in used), sum(u[1] for u in used)
    workers = [w for job in jobs for w in job.pool.workers.values()]
    return Gauges(
        jobs=len(jobs),
        loaders=len(streams),
        ranks=len(consumers),
        workers=len(workers),
        busy_workers=sum(bool(w.tasks) for w in workers),
        ring_free=sum(ledger.nbytes for ledger in ledgers) - filling - leased,
        ring_filling=filling,
        ring_leased=leased,
        quarantined=sum(len(s.settings.quarantine) for s in streams),
        bad_samples=sum(sum(s.bad.values()) for s in streams),
        ignored_releases=sum(ledger.ignored_releases for ledger in ledgers),
        tiers=Counter(h.tier for c in consumers for h in c.live if h.tier is not None),
    )
