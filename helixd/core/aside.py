"""Samples that are decoded one by one into a ring that no trainer reads, on their way to somewhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from helixd.core.batch import Batch
from helixd.core.consumer import Consumer
from helixd.core.ledger import Ledger
from libhelix.plan.planner import Window
from libhelix.wire.settings import Base, Position

if TYPE_CHECKING:
    from helixd.core.pool import Pool, Worker

ASIDE_RANK = -1
"""In the place of a rank, of which there is none."""
NO_WINDOW = Window(Base(0, 0, 0), 0, (), Base(0, 0, 0), (), ())


@dataclass(eq=False, kw_only=True)
class Aside(Consumer):
    """What goes wrong here is no matter for batches: their samples are then decoded where they belong."""

    ring: int
    """Batches of this loader for which its ring has room at least."""
    wanted: bool = False
    """Whether there is a use for its ring."""
    refused: bool = False
    """Whether there is no memory for a ring, or no loader any more."""

    @property
    def ring_bytes(self) -> int:
        """Of its ring."""
        return self.ring * self.max_bytes

    @property
    def lacks_ring(self) -> bool:
        """Whether it should get a ring now."""
        return self.wanted and self.state == "gathering" and not self.refused and not self.stream.over

    def fail(self, code: str, text: str) -> None:
        """A sample cannot be decoded, nor can others."""
        del code, text

    def serve(self) -> None:
        """The memory is there."""
        self.ledger, self.state = Ledger(self.ring_bytes, self.stream.page), "serving"

    def no_memory(self, code: str, text: str) -> None:
        """There is none."""
        del code, text
        self.refused = True

    def bad_sample(self, sample: int, text: str, at: Position) -> None:
        """A sample cannot be decoded: it is counted where it belongs."""

    def size(self) -> None:
        """Say how large a ring is wanted, by `max_bytes`; 0 where that is not known yet."""
        self.max_bytes = self.stream.max_bytes or self.max_bytes

    def under_way(self, now: float) -> list[Batch]:
        """What may be given to workers at this time, as far as it has pieces left."""
        raise NotImplementedError

    def first_queued(self, worker: Worker, pool: Pool) -> Batch | None:
        """The sample that has to be begun first of those with a piece to give to a worker."""
        del worker
        queued = (sample for sample in self.under_way(pool.now) if sample.queued)
        return min(queued, key=lambda sample: sample.begin_by, default=None)

    def is_next(self, batch: Batch) -> bool:
        """Nobody waits for it here."""
        del batch
        return False

    def drop(self, sample: Batch) -> None:
        """It is not wanted any more; its extent is free once no worker writes to it."""
        sample.cancel()
        self.cancelled.append(sample)
        self.sweep()
