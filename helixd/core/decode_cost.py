"""What decoding costs, learned while it goes on: recipes predict, this corrects them by kind.

A recipe predicts CPU microseconds from headers, linear in what drives them (libhelix/media/video.py).
Machines and contents differ from those that its coefficients are of by a factor, which is much the same for
all files of a codec: it is the exponential of a moving average of log(measured / predicted). Fitting the
coefficients anew as well gains one to seven points of error (docs/benchmarks.md), and was left out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_ALPHA = 0.1
_FIRST = 12
"""Measurements of which the plain mean is taken, before the average moves."""
_LARGEST_STEP = 1.0
"""How far one measurement counts, in log units: a stall is not a new cost."""
_KEPT = 256
_MAX_KINDS = 256
_MAX_TOLD = 64


@dataclass
class _Kind:
    log_scale: float = 0.0
    count: int = 0
    seen: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """(predicted, measured) microseconds of the last tasks."""


@dataclass(frozen=True)
class Quality:
    """How well the last tasks of a kind were predicted, before they ran.

    mape              mean of |predicted / measured - 1|
    rank_correlation  Spearman's, None for fewer than three
    """

    kind: str
    tasks: int
    scale: float
    mape: float
    rank_correlation: float | None


@dataclass
class DecodeCosts:
    """Corrections by kind. `started` are those of earlier jobs."""

    _kinds: dict[str, _Kind] = field(default_factory=dict)

    def start_from(self, scales: Mapping[str, float]) -> None:
        """Take over what earlier jobs learned, for kinds that nothing was learned of here."""
        for kind, scale in scales.items():
            found = self._of(kind)
            if not found.count:
                found.log_scale = math.log(scale)

    def scale(self, kind: str) -> float:
        """What a part is going to take, relative to what its recipe says."""
        found = self._kinds.get(kind)
        return 1.0 if found is None else math.exp(found.log_scale)

    def learn(self, kind: str, declared_us: int, cpu_us: int) -> None:
        """A part took so much CPU time."""
        if declared_us <= 0 or cpu_us <= 0:
            return
        found = self._of(kind)
        predicted = declared_us * math.exp(found.log_scale)
        found.seen.append((predicted, float(cpu_us)))
        error = math.log(cpu_us / predicted)
        found.count += 1
        if found.count > 1:  # nothing is known yet: the first counts in full
            error = max(-_LARGEST_STEP, min(_LARGEST_STEP, error))
        found.log_scale += max(_ALPHA, 1.0 / min(found.count, _FIRST)) * error

    def _of(self, kind: str) -> _Kind:
        if kind not in self._kinds and len(self._kinds) >= _MAX_KINDS - 1:
            kind = ""  # a recipe that makes up kinds without end
        return self._kinds.setdefault(kind, _Kind())

    def scales(self) -> dict[str, float]:
        """By kind, what measured costs are relative to declared ones; of the kinds that are known best."""
        best = sorted(self._kinds.items(), key=lambda item: -item[1].count)[:_MAX_TOLD]
        known = {k: math.exp(v.log_scale) for k, v in best if v.count >= _FIRST}
        return {kind: scale for kind, scale in known.items() if 1e-6 <= scale <= 1e6}

    def quality(self) -> list[Quality]:
        """How well the last tasks were predicted, by kind."""
        return [
            Quality(kind, k.count, math.exp(k.log_scale), mape(k.seen), rank_correlation(k.seen))
            for kind, k in sorted(self._kinds.items())
            if k.count
        ]


def mape(pairs: Iterable[tuple[float, float]]) -> float:
    """Mean of |predicted / measured - 1| over (predicted, measured) pairs, of which there are some."""
    errors = [abs(predicted / measured - 1.0) for predicted, measured in pairs]
    return sum(errors) / len(errors)


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation, equal values sharing their mean rank; None for fewer than three pairs, or
    where all are equal."""
    if len(pairs) < 3:
        return None
    a, b = (_ranks([pair[i] for pair in pairs]) for i in (0, 1))
    mean = (len(pairs) + 1) / 2
    covariance = sum((x - mean) * (y - mean) for x, y in zip(a, b))
    spread = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    return covariance / spread if spread else None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    a = 0
    while a < len(order):
        b = a
        while b < len(order) and values[order[b]] == values[order[a]]:
            b += 1
        for i in order[a:b]:
            ranks[i] = (a + 1 + b) / 2
        a = b
    return ranks
