"""Samples: their lengths, where they may be cut, what their recipe says that they cost, and what they do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bench.plan.distributions import draw
from bench.simulate.case import LOGNORMAL, Case
from libhelix.wire import messages as m

MEAN_TOKENS = 1000.0
KEY_TOKENS = MEAN_TOKENS / 4
"""From one key frame to the next."""
OPEN_US = 3000
"""Every part of a sample opens its file."""
DEAR = 3.0
"""What sources and bursts that cost more cost."""
BURST_EVERY, BURST_STEPS = 8, 2
_AHEAD_STEPS = 40
"""Steps that are described and never taken: windows are planned ahead."""
SCHEMA: m.Schema = (m.FieldSpec("x", "uint8", "stack", 1),)
_SHAPES = ((1024,),)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Corpus:
    """The samples of a case, in the order in which they are drawn. `window_us` of a token is such that
    decoding asks for the case's share of the cores."""

    def __init__(self, case: Case) -> None:
        count = (case.last_step + _AHEAD_STEPS) * case.per_step
        rng = np.random.Generator(np.random.Philox(key=case.seed))
        self.count = count
        self.tokens = _lengths(case, count, rng)
        self._segments = np.clip(np.rint(self.tokens / KEY_TOKENS), 1, case.cuts + 1).astype(np.int64)
        self._first = np.concatenate(([0], np.cumsum(self._segments)))
        shares = rng.uniform(0.5, 1.5, int(self._first[-1]))
        shares /= np.repeat(np.add.reduceat(shares, self._first[:-1]), self._segments)
        factor = _factors(case, count)
        declared = self.tokens * factor * (case.decode_ms * 1e3 / MEAN_TOKENS)
        self.true_us = declared * np.exp(rng.normal(0.0, case.noise, count))
        self._declared = np.rint(shares * np.repeat(declared, self._segments)).astype(np.int64)
        self._true = shares * np.repeat(self.true_us, self._segments)
        taken = slice(case.last_step * case.per_step)
        us = float(self.true_us[taken].sum()) + OPEN_US * case.last_step * case.per_step
        cores = case.cores / case.ranks
        self.window_us = us / (cores * case.demand * float(self.tokens[taken].sum()))

    def row(self, sample: int, *, oracle: bool) -> m.Row:
        """What describe says of a sample; `oracle`: and what it will really cost."""
        part = slice(int(self._first[sample]), int(self._first[sample + 1]))
        n = part.stop - part.start
        us = np.rint(self._true[part]) if oracle else self._declared[part]
        costs = {"tokens": int(self.tokens[sample])}
        segment_us = tuple(int(u) for u in us.tolist())
        return m.Row(sample, _SHAPES, costs, n, tuple(range(1, n)), segment_us, kind="video")

    def units(self, sample: int) -> int:
        """Of which parts are made."""
        return int(self._segments[sample])

    def part_us(self, sample: int, begin: int, end: int) -> float:
        """What decoding a part takes, opening the file aside."""
        first = int(self._first[sample])
        return float(self._true[first + begin : first + end].sum())


def _lengths(case: Case, count: int, rng: np.random.Generator) -> Ints:
    if case.lengths == LOGNORMAL:
        drawn = np.exp(rng.normal(-(case.sigma**2) / 2, case.sigma, count))
    else:
        tokens = rng.permutation(draw(case.lengths, count))
        drawn = tokens / tokens.mean()
    return np.maximum(1, np.rint(drawn * MEAN_TOKENS)).astype(np.int64)


def _factors(case: Case, count: int) -> Floats:
    """How much dearer samples are than their length says."""
    at = np.arange(count)
    factor = np.ones(count)
    if case.skew:
        factor[at % case.all_ranks == 0] *= DEAR
    if case.bursts:
        factor[at // case.per_step % BURST_EVERY < BURST_STEPS] *= DEAR
    return factor
