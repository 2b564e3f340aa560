"""What the processes of `bench handoff` are told, and what they answer."""

from __future__ import annotations

import msgspec


class Handoffs(msgspec.Struct, frozen=True, kw_only=True, tag="handoffs"):
    """Take batches of `batch_bytes` until `count` of them were ready when they were asked for."""

    index: str
    job: str
    batch_bytes: int
    batch: int
    count: int
    warm_up: int
    pause_s: float


class HandoffTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the call of next() to its return, of batches that were ready.

    cpu_seconds: CPU time of the same calls, which others disturb less. unready: batches that were not ready,
    and do not count. batch_bytes: as they came, with all fields.
    """

    seconds: list[float]
    cpu_seconds: list[float]
    unready: int
    batch_bytes: int


class ColdStart(msgspec.Struct, frozen=True, kw_only=True, tag="cold-start"):
    """Make a loader of a job of its own and take one batch."""

    index: str
    job: str
    batch_bytes: int
    batch: int
    ring_bytes: int
    ring: int


class ColdStartTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each stage, one after the other.

    construct: Loader(...), the index included. connect: the daemon is started and answers. attach: the worker
    host is started, a worker has described the first samples, the ring is reserved. fill: the first batch.
    """

    construct_s: float
    connect_s: float
    attach_s: float
    fill_s: float

    @property
    def total_s(self) -> float:
        """From Loader(...) to the first batch."""
        return self.construct_s + self.connect_s + self.attach_s + self.fill_s


class Decode(msgspec.Struct, frozen=True, kw_only=True):
    """Decode without end. The answer comes with the first batch."""

    index: str
    job: str
    frames: int
    batch: int


class Decoding(msgspec.Struct, frozen=True):
    """The cores decode."""


TrainerRequest = Handoffs | ColdStart
