"""What a loader knows that hands out samples as they are ready, not in their order. Pure.

`Ready` is of any such loader; `FastSlow` adds the time limit of MinatoLoader (Nouaji et al., EuroSys 2026).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from bench.samples import Visit
from bench.stats import percentile
from libhelix.recipe import Descriptor, Part

Value = TypeVar("Value")
_REMEMBERED = 256
"""Samples whose times count."""


class Ready(Generic[Value]):
    """Samples that are ready, and batches of them.

    A batch has samples of one epoch, those that were ready first; a later epoch's may overtake, so that
    nobody waits for the last samples of an epoch. Every visit that is added is in one batch.
    """

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._by_epoch: dict[int, deque[tuple[Visit, Value]]] = {}

    def add(self, visit: Visit, value: Value) -> None:
        """A sample is ready."""
        self._by_epoch.setdefault(visit.epoch, deque()).append((visit, value))

    def take(self) -> list[tuple[Visit, Value]] | None:
        """A batch, of the earliest epoch that has one."""
        for epoch in sorted(self._by_epoch):
            ready = self._by_epoch[epoch]
            if len(ready) >= self._batch:
                found = [ready.popleft() for _ in range(self._batch)]
                if not ready:
                    del self._by_epoch[epoch]
                return found
        return None


class FastSlow(Ready[Value]):
    """Samples that are begun, moved on where they take too long, and ready.

    From the paper: the first samples are only timed; after that a sample may take as long as a percentile
    of the times that were measured, and whoever takes longer is moved to a queue of its own, where other
    workers finish it; batches are built of what is ready, fast or slow.

    Our reading: the percentile is of the last 256 samples, so that it follows the workload; a slow sample
    that is ready is taken in its turn, as keeping it back would only cost look-ahead; at most `most` samples
    are begun and not handed out, the same look-ahead as any system has.
    """

    def __init__(self, batch: int, *, most: int, share: float, warm_up: int) -> None:
        super().__init__(batch)
        assert most >= batch, "a batch can become ready"
        self._most, self._share, self._warm_up = most, share, warm_up
        self._begun = 0
        self._times_s: deque[float] = deque(maxlen=_REMEMBERED)

    @property
    def room(self) -> bool:
        """Whether another sample may be begun."""
        return self._begun < self._most

    @property
    def limit_s(self) -> float | None:
        """How long a sample may take before it is moved on; None while samples are only timed."""
        return percentile(list(self._times_s), self._share) if len(self._times_s) >= self._warm_up else None

    def begin(self) -> None:
        """A sample is begun."""
        assert self.room, "look-ahead is bounded"
        self._begun += 1

    def done(self, visit: Visit, value: Value, took_s: float) -> None:
        """A sample is ready, after so many seconds of work, in both queues together."""
        self._times_s.append(took_s)
        self.add(visit, value)

    def handed(self, samples: int) -> None:
        """The rank got so many."""
        self._begun -= samples


def stretches(desc: Descriptor, limit_s: float | None) -> list[Part]:
    """Parts of a sample, after each of which a worker looks at the clock.

    The first is as short as can be that is predicted to reach the limit, the others end at the next cut:
    every part opens the file again, so that there should be none before it could matter. A sample that is
    predicted to keep the limit is one part, and so is one that cannot be cut.
    """
    ends = (*desc.cuts, desc.units)
    if limit_s is None:
        return [Part(0, desc.units, desc.units)]
    predicted_s = [us * 1e-6 for us in accumulate(desc.segment_us)]
    first = next((i for i, at_s in enumerate(predicted_s) if at_s >= limit_s), len(ends) - 1)
    return _parts(ends[first:], desc.units)


def _parts(ends: Sequence[int], units: int) -> list[Part]:
    begins = [0, *ends[:-1]]
    return [Part(begin, end, units) for begin, end in zip(begins, ends)]
