"""The order of an epoch over several sources, mixed by weights that may change along the way.

The draws of all epochs are one endless stream: draw d of epoch e is its place e * epoch_draws + d.

    place --Interleave--> source s, and its c-th draw --divmod(c, sizes[s])--> pass k over s, position in it
    --order of s in pass k--> sample

Every source walks its own passes, whatever its weight, so none of its samples is drawn more than once more
than another. `occurrence` is k: how often the sample was drawn before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import numpy as np

from libhelix.errors import UsageError
from libhelix.plan.interleave import MAX_PERIOD, Interleave, Ints, interleave, parts_of
from libhelix.plan.order import Permutations, source_seeds
from libhelix.wire.settings import Segment

MAX_PLACE = 1 << 62
_CHUNK = 1 << 14
"""Draws looked up together: as many as stay in the cache of a core."""


@dataclass(frozen=True)
class Part:
    """Positions [begin, end) of one pass over a source."""

    occurrence: int
    begin: int
    end: int


@dataclass(frozen=True)
class Covered:
    """What a stretch of the stream draws of a source: each sample `full` times, and once more by each part
    that has it.

    parts   at most two, of different passes: the rest of the first and the start of the last
    """

    draws: int
    full: int
    parts: tuple[Part, ...]


class Mixture:
    """Samples of several sources, numbered source after source, in the order in which they are drawn.

    sizes         samples of each source
    schedule      the first segment starts at place 0; inside each, every source is within 1 of its share of
                  the places since the segment's start
    shuffle       False: every source in its own order
    block         keep so many neighbours of a source together, such as the members of a tar: for all, or each
    epoch_draws   length of an epoch; None: as many draws as there are samples
    without       samples that are never drawn, rising; those behind them keep their numbers

    One source, shuffled, with the default `epoch_draws`, is `BlockPermutation(n, block, seed, epoch)`. Raises
    UsageError for what cannot be mixed.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        schedule: Sequence[Segment],
        seed: int,
        *,
        shuffle: bool = True,
        block: int | Sequence[int] = 1,
        epoch_draws: int | None = None,
        without: Sequence[int] = (),
    ) -> None:
        self._gaps = np.array([gone - i for i, gone in enumerate(without)], dtype=np.int64)
        """Before each sample that is never drawn, how many are."""
        sizes = _less(sizes, without)
        blocks = [block] * len(sizes) if isinstance(block, int) else list(block)
        _check_sizes(sizes, blocks)
        self.sizes = tuple(sizes)
        self.schedule = tuple(schedule)
        self.samples = sum(sizes)
        self.epoch_draws = self.samples if epoch_draws is None else epoch_draws
        if not 0 < self.epoch_draws < MAX_PLACE:
            raise UsageError(f"epoch_draws={self.epoch_draws}; give from 1 to {MAX_PLACE - 1} draws an epoch")
        self._sizes = np.array(sizes, dtype=np.int64)
        self._offsets = np.cumsum(self._sizes) - self._sizes
        self._orders = Permutations(sizes, blocks, source_seeds(seed, len(sizes))) if shuffle else None
        self._parts = _checked_parts(self.schedule, self.sizes)
        self._firsts = [segment.first for segment in self.schedule]
        self._starts = [np.zeros(len(sizes), dtype=np.int64)]
        """By segment, draws of each source before it."""
        for k, (begin, end) in enumerate(zip(self._firsts, self._firsts[1:])):
            self._starts.append(self._starts[k] + _drawn(self._parts[k], end - begin))

    # ---- order -------------------------------------------------------------------------------------

    def draws(self, epoch: int, positions: Ints) -> tuple[Ints, Ints]:
        """The sample of each draw of an epoch, and how often it was drawn before."""
        begin = epoch * self.epoch_draws
        if (
            len(positions)
            and not 0 <= begin + int(positions.min()) <= begin + int(positions.max()) < MAX_PLACE
        ):
            raise UsageError(f"epoch {epoch} has draws before place 0 or after {MAX_PLACE - 1} of the stream")
        ids, occurrences = np.empty_like(positions), np.empty_like(positions)
        for a in range(0, len(positions), _CHUNK):
            chunk = slice(a, a + _CHUNK)
            sources, counts = self.at(positions[chunk] + begin)
            occurrences[chunk], inside = np.divmod(counts, self._sizes[sources])
            ids[chunk] = self.ids(sources, occurrences[chunk], inside)
        return ids, occurrences

    def at(self, places: Ints) -> tuple[Ints, Ints]:
        """The source of each place of the stream, and how often it was drawn before."""
        segments = np.searchsorted(self._firsts, places, side="right") - 1
        sources, counts = np.empty_like(places), np.empty_like(places)
        for k in np.unique(segments).tolist():
            here = segments == k
            sources[here], within = self._interleave(k).at(places[here] - self._firsts[k])
            counts[here] = within + self._starts[k][sources[here]]
        return sources, counts

    def ids(self, sources: Ints, occurrences: Ints, positions: Ints) -> Ints:
        """The sample at each position of a pass over a source."""
        if self._orders is not None:
            positions = self._orders.elements(sources, occurrences.astype(np.uint64), positions)
        ids: Ints = self._offsets[sources] + positions
        if len(self._gaps):
            ids += np.searchsorted(self._gaps, ids, side="right")
        return ids

    # ---- counting ----------------------------------------------------------------------------------

    def effective(self, place: int = 0) -> tuple[Fraction, ...]:
        """The weights at a place as they are kept, of sum 1: as given, or to the nearest 1/65536."""
        parts = self._parts[self._segment(place)]
        return tuple(Fraction(part, sum(parts)) for part in parts)

    def counts(self, place: int) -> tuple[int, ...]:
        """Draws of each source before a place."""
        k = self._segment(place)
        counts = self._starts[k] + self._interleave(k).counts(place - self._firsts[k])
        return tuple(counts.tolist())

    def coverage(self, first: int, end: int) -> tuple[Covered, ...]:
        """How often each sample of each source is drawn in places [first, end)."""
        if first > end:
            raise UsageError(
                f"coverage from place {first} to {end} runs backwards; give the smaller one first"
            )
        return tuple(map(_covered, self.sizes, self.counts(first), self.counts(end)))

    def _segment(self, place: int) -> int:
        if not 0 <= place < MAX_PLACE:
            raise UsageError(f"place {place} is not in the stream; give one from 0 to {MAX_PLACE - 1}")
        return bisect_right(self._firsts, place) - 1

    def _interleave(self, k: int) -> Interleave:
        ends = self._firsts[k + 1 : k + 2] or [MAX_PLACE]
        return interleave(self._parts[k], min(MAX_PERIOD, ends[0] - self._firsts[k]))


@lru_cache(maxsize=4096)
def _drawn(parts: tuple[int, ...], places: int) -> Ints:
    """How often each source is drawn in a segment. Kept: schedules grow an entry at a time."""
    return interleave(parts, min(MAX_PERIOD, places)).counts(places)


def order_of(
    samples: int,
    sources: Sequence[int],
    schedule: Sequence[Segment],
    seed: int,
    *,
    shuffle: bool,
    block: int,
    epoch_draws: int | None,
    without: Sequence[int] = (),
) -> Mixture:
    """The order of a loader's draws. No sources: all samples are one, and always drawn."""
    sizes = sources or (samples,)
    weights = schedule or (Segment(0, (1.0,) * len(sizes)),)
    return Mixture(
        sizes, weights, seed, shuffle=shuffle, block=block, epoch_draws=epoch_draws, without=without
    )


def _less(sizes: Sequence[int], without: Sequence[int]) -> Sequence[int]:
    """The sizes of sources without these samples."""
    if not without:
        return sizes
    ends = np.cumsum(np.array(sizes, dtype=np.int64))
    if without[-1] >= ends[-1] or any(a >= b for a, b in pairwise(without)):
        raise UsageError(f"samples to leave out must rise and be below {ends[-1]}")
    gone = np.bincount(np.searchsorted(ends, np.array(without), side="right"), minlength=len(sizes))
    return [size - int(less) for size, less in zip(sizes, gone)]


def _covered(size: int, before: int, after: int) -> Covered:
    if before == after:
        return Covered(0, 0, ())
    (first, begin), (last, end) = divmod(before, size), divmod(after, size)
    if first == last:
        return Covered(after - before, 0, (Part(first, begin, end),))
    parts = [Part(first, begin, size)] if begin else []
    parts += [Part(last, 0, end)] if end else []
    return Covered(after - before, last - first - bool(begin), tuple(parts))


def _check_sizes(sizes: Sequence[int], blocks: Sequence[int]) -> None:
    if len(blocks) != len(sizes):
        raise UsageError(
            f"block has {len(blocks)} entries for {len(sizes)} sources; give one number, or one each"
        )
    for s, (size, block) in enumerate(zip(sizes, blocks)):
        if size < 0:
            raise UsageError(f"sizes[{s}] = {size}; a source has 0 samples or more")
        if block < 1:
            raise UsageError(f"block = {block} for source {s}; give 1 for no blocks, or more")
    if sum(sizes) >= MAX_PLACE or max(blocks, default=1) >= MAX_PLACE:
        raise UsageError(f"all sizes together, or a block, reach {MAX_PLACE}; give smaller ones")


def _checked_parts(schedule: Sequence[Segment], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    if not schedule or schedule[0].first != 0:
        raise UsageError("schedule has no weights for place 0; give its first segment first=0")
    if schedule[-1].first >= MAX_PLACE:
        raise UsageError(f"schedule[-1] starts at place {schedule[-1].first}; the stream ends at {MAX_PLACE}")
    found = []
    for k, segment in enumerate(schedule):
        where = f"schedule[{k}].weights"
        if k and segment.first <= schedule[k - 1].first:
            raise UsageError(
                f"schedule[{k}] starts at place {segment.first}, not after schedule[{k - 1}], which starts "
                f"at {schedule[k - 1].first}; sort them, and leave out what another replaces"
            )
        if len(segment.weights) != len(sizes):
            raise UsageError(
                f"{where} has {len(segment.weights)} entries for {len(sizes)} sources; give one each"
            )
        parts = parts_of(segment.weights, where)
        for s, (part, size) in enumerate(zip(parts, sizes)):
            if part and not size:
                raise UsageError(
                    f"{where}[{s}] = {segment.weights[s]}, but source {s} is empty; leave it out or give 0"
                )
        found.append(parts)
    return found
