"""Which source has which place, when sources are mixed by weight: evenly, with random access.

Weights become whole parts of a period, such as 7 and 3 of 10. In it every draw of a source has a first and a
last place at which the source is within 1 of its share. Each place goes to the draw, of those that have come
to their first place, whose last is nearest. An order within these places always exists (Tijdeman 1980), and
where one exists, this rule, earliest deadline first, finds one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from libhelix.errors import UsageError

Ints = NDArray[np.int64]

MAX_PERIOD = 1 << 16
MAX_SOURCES = 1 << 16
_ROUNDING = Fraction(1, 1 << 48)
"""Weights this near to a ratio of small numbers mean that ratio: 0.7 and 0.3 are no floats, but 7 and 3."""


def parts_of(weights: Sequence[float], where: str = "weights") -> tuple[int, ...]:
    """Weights as whole parts of a period of at most MAX_PERIOD.

    Exact where parts that small have their ratio; else shared out by largest remainder. Errors call the
    weights by `where`.
    """
    if len(weights) > MAX_SOURCES:
        raise UsageError(f"{where} has {len(weights)} sources; at most {MAX_SOURCES} are mixed, so join some")
    for i, weight in enumerate(weights):
        if not isinstance(weight, int) and not math.isfinite(weight):
            raise UsageError(
                f"{where}[{i}] = {weight} is not a number to weigh by; give one that is 0 or more"
            )
        if weight < 0:
            raise UsageError(f"{where}[{i}] = {weight} is negative; give 0 to leave the source out")
    exact = [Fraction(weight if isinstance(weight, int) else float(weight)) for weight in weights]
    scale = math.lcm(*(f.denominator for f in exact))
    whole = [f.numerator * (scale // f.denominator) for f in exact]
    total = sum(whole)
    if total == 0:
        raise UsageError(f"{where} sum to 0, so no source is ever drawn; give one of them more than 0")
    common = math.gcd(*whole)
    if total // common <= MAX_PERIOD:
        return tuple(w // common for w in whole)
    parts = _meant(whole, total) or _apportioned(whole, total)
    for i, (weight, part) in enumerate(zip(weights, parts)):
        if weight > 0 and part == 0:
            raise UsageError(
                f"{where}[{i}] = {weight} is {float(Fraction(whole[i], total)):.2g} of their sum, too little "
                f"for one of {MAX_PERIOD} draws; raise it, join the source to another, or leave it out with 0"
            )
    common = math.gcd(*parts)
    return tuple(part // common for part in parts)


def _meant(whole: Sequence[int], total: int) -> list[int] | None:
    shares, period = [], 1
    for w in whole:
        share = Fraction(w, total)
        near = share.limit_denominator(MAX_PERIOD)
        period = math.lcm(period, near.denominator)
        if abs(near - share) > share * _ROUNDING or period > MAX_PERIOD:
            return None
        shares.append(near)
    return [share.numerator * (period // share.denominator) for share in shares]


def _apportioned(whole: Sequence[int], total: int) -> list[int]:
    parts = [w * MAX_PERIOD // total for w in whole]
    by_remainder = sorted(range(len(whole)), key=lambda i: (-(whole[i] * MAX_PERIOD % total), i))
    for i in by_remainder[: MAX_PERIOD - sum(parts)]:
        parts[i] += 1
    return parts


class Interleave:
    """An endless order of sources. Before any place p, source s has come parts[s]/period * p times, give or
    take less than 1.

    `span` is how many places will be asked for, where that is less than a period.
    """

    def __init__(self, parts: tuple[int, ...], span: int = MAX_PERIOD) -> None:
        self.parts = parts
        self.period = sum(parts)
        self._parts = np.array(parts, dtype=np.int64)
        self._source = _sequence(self._parts, min(span, self.period))
        self._earlier = _earlier(self._source).astype(np.uint16)

    def at(self, places: Ints) -> tuple[Ints, Ints]:
        """The source of each place, and how often it came before."""
        periods, inside = np.divmod(places, self.period)
        sources = self._source[inside].astype(np.int64)
        return sources, periods * self._parts[sources] + self._earlier[inside]

    def counts(self, place: int) -> Ints:
        """How often each source comes before a place."""
        periods, inside = divmod(place, self.period)
        return periods * self._parts + np.bincount(self._source[:inside], minlength=len(self.parts))


@lru_cache(maxsize=32)
def interleave(parts: tuple[int, ...], span: int = MAX_PERIOD) -> Interleave:
    """An Interleave, kept for the next who asks: its tables take 4 bytes a place."""
    return Interleave(parts, span)


def _sequence(parts: Ints, span: int) -> NDArray[np.uint16]:
    """The first `span` sources of a period."""
    period = int(parts.sum())
    draws = -(-parts * span // period)  # those whose first place is below span
    source = np.repeat(np.arange(len(parts)), draws)
    draw = _earlier(source)
    share = parts[source]
    first = draw * period // share
    # The last place is ceil((draw + 1) * period / share) - 1. Its order is kept by the fraction in units of
    # 2^-16, as no share is larger; the number of the source settles what is equal.
    urgency = ((draw + 1) * period << 16) // share << 16 | source
    order = np.argsort(first, kind="stable")
    come = np.searchsorted(first[order], np.arange(span), side="right").tolist()
    coming = urgency[order].tolist()
    waiting: list[int] = []
    found, known = [], 0
    for upto in come:
        for item in coming[known:upto]:
            heappush(waiting, item)
        known = upto
        found.append(heappop(waiting) & 0xFFFF)
    return np.array(found, dtype=np.uint16)


def _earlier(source: NDArray[np.integer[Any]]) -> Ints:
    """For each entry, how many equal ones come before it."""
    order = np.argsort(source, kind="stable")
    in_order = source[order]
    earlier = np.empty(len(source), dtype=np.int64)
    earlier[order] = np.arange(len(source)) - np.searchsorted(in_order, in_order)
    return earlier
