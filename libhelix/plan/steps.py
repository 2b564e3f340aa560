"""Which samples are in the micro-batch of a step and rank, and how positions follow one another."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from libhelix.errors import UsageError
from libhelix.plan.order import Permutation
from libhelix.wire.settings import FixedBatch, Position, Settings

__all__ = ["FixedBatch", "StepPlan"]

MAX_SAMPLES_PER_MICRO = 1 << 17


class StepPlan:
    """The plan of a loader with `FixedBatch` and the end policy `drop`.

    A step is dp_size * micro_batches * samples samples that follow one another in the epoch's order;
    micro-batch j of rank r is the ((j * dp_size) + r)-th slice of it. What is left at the end of an epoch
    is dropped, another part of the data set every epoch.
    """

    def __init__(self, settings: Settings) -> None:
        self._samples = settings.batching.samples
        self._n = settings.index_samples
        self._ranks = settings.dp_size
        self._micros = settings.micro_batches
        self._seed = settings.seed
        self._shuffle = settings.shuffle
        self.samples_per_micro = self._samples * self._ranks
        self.samples_per_step = self.samples_per_micro * self._micros
        self.steps_per_epoch = self._n // self.samples_per_step
        if self.samples_per_micro > MAX_SAMPLES_PER_MICRO:
            raise UsageError(
                f"{self._ranks} ranks x {self._samples} samples are {self.samples_per_micro} in one "
                f"micro-batch; at most {MAX_SAMPLES_PER_MICRO} are planned"
            )
        if self.steps_per_epoch == 0:
            raise UsageError(
                f"the data set has {self._n} samples and one step takes {self.samples_per_step} "
                f"({self._ranks} ranks x {self._micros} micro-batches x {self._samples} samples); "
                "use a smaller batch or more data"
            )

    def ids(self, at: Position) -> tuple[tuple[int, ...], ...]:
        """The samples of a micro-batch: one tuple of index rows per data-parallel rank."""
        first = at.step * self.samples_per_step + at.micro * self.samples_per_micro
        positions = np.arange(first, first + self.samples_per_micro, dtype=np.int64)
        if self._shuffle:
            positions = _permutation(self._n, self._seed, at.epoch)[positions]
        flat = [int(i) for i in positions]
        return tuple(tuple(flat[r * self._samples : (r + 1) * self._samples]) for r in range(self._ranks))

    def dropped(self, epoch: int) -> tuple[int, ...]:
        """The samples that this epoch leaves out."""
        rest = np.arange(self.steps_per_epoch * self.samples_per_step, self._n, dtype=np.int64)
        if self._shuffle and len(rest):
            rest = _permutation(self._n, self._seed, epoch)[rest]
        return tuple(int(i) for i in rest)

    def after(self, at: Position) -> Position:
        """The next position in the endless stream of epochs."""
        if at.micro + 1 < self._micros:
            return Position(at.epoch, at.step, at.micro + 1)
        if at.step + 1 < self.steps_per_epoch:
            return Position(at.epoch, at.step + 1, 0)
        return Position(at.epoch + 1, 0, 0)

    def number(self, at: Position) -> int:
        """How many micro-batches stand before this position, from the start of epoch 0."""
        return (at.epoch * self.steps_per_epoch + at.step) * self._micros + at.micro

    def holds(self, at: Position) -> bool:
        """Whether the position exists."""
        return at.step < self.steps_per_epoch and at.micro < self._micros


@lru_cache(maxsize=64)
def _permutation(n: int, seed: int, epoch: int) -> Permutation:
    return Permutation(n, seed, epoch)
