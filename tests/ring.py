"""A ring of batches without a daemon, whose extents are overwritten as soon as they are released."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch

from libhelix.batch import Batch, Taken
from libhelix.device import OnDevice
from libhelix.lease import Arena
from libhelix.wire import segment
from libhelix.wire.messages import Measured, Tier
from libhelix.wire.settings import Base, Position, Settings, Start

PAGE = segment.PAGE
SLOTS = 4


class Ring:
    """A ring of four batches, each one number throughout. What is released is overwritten at once."""

    def __init__(self) -> None:
        self.arena = Arena(segment.create(SLOTS * PAGE, memfd=True), SLOTS * PAGE)
        self.free = list(range(SLOTS))
        self.closed_with = -1
        self.handed: list[int] = []
        self.told: list[int] = []
        self.measured: list[Measured | None] = []
        self.tiers: list[Tier | None] = []
        self.due = 0

    def _build(self, step: int) -> Taken:
        assert step == self.due, "every batch comes once"
        self.due += 1
        slot = self.free.pop(0)
        at = slot * PAGE
        self.arena.memory[at : at + PAGE] = bytes([step + 1]) * PAGE

        def release() -> None:
            self.arena.memory[at : at + PAGE] = b"\xff" * PAGE
            self.free.append(slot)

        extent = self.arena.lease(at, PAGE, release)
        batch = Batch({"x": torch.frombuffer(extent, dtype=torch.uint8)}, step=step)
        return Taken(batch, Position(0, step + 1, 0), None)

    def take(self, start: Start) -> Taken:
        return self._build(start.at.step)

    def poll(self, at: Position) -> Taken | None:
        return self._build(at.step) if len(self.free) > 1 else None

    def tell(self, at: Position) -> None:
        self.told.append(at.step)

    def took(
        self, at: Position, asked: float, measured: Measured | None = None, tier: Tier | None = None
    ) -> None:
        self.handed.append(at.step)
        self.tiers.append(tier)
        self.measured.append(measured)

    def now(self) -> float:
        return 0.0

    def memory(self) -> memoryview | None:
        return self.arena.memory

    def start(self, start: Start) -> None:
        pass

    def seek(self, start: Start) -> None:
        self.due = start.at.step

    def go_on_with(self, settings: Settings) -> None:
        pass

    def computing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        self.closed_with = len(self.free)


def at(step: int) -> Start:
    """Where a step begins."""
    return Start(Base(0, 0, 0), Position(0, step, 0))


def values(device: OnDevice, steps: int) -> Iterator[tuple[set[int], Batch]]:
    """The values that batches have, and the batches."""
    for step in range(steps):
        batch = device.next(at(step)).batch
        yield set(batch["x"].tolist()), batch
