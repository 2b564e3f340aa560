"""Which finished samples change ranks, so that the heaviest rank of a step becomes lighter.

Costs are what samples turned out to cost, known once they are decoded. They are whole numbers, and the same
numbers give the same moves: every rank decides by itself, from what all have told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_NOTHING = 0.25
"""The share of the least gain that is not looked for any more."""


class Finished(NamedTuple):
    """A decoded sample: what it costs, its bytes, and its rows in each packed field. One that costs nothing,
    as masked ones do, is never moved."""

    cost: int
    nbytes: int
    rows: tuple[int, ...] = ()


class Move(NamedTuple):
    """A sample, by its rank and its place there, goes to another rank."""

    source: int
    sample: int
    target: int


class Toll(NamedTuple):
    """What moves have to save: `least_gain`, a share of what the heaviest rank costs, once `per_byte` is paid
    for each byte that the busiest rank sends or receives."""

    least_gain: float
    per_byte: float


def level(ranks: Sequence[Sequence[Finished]], room: Sequence[int], toll: Toll) -> tuple[Move, ...]:
    """Moves after which the heaviest rank is as light as giving and swapping samples makes it, or heavier by
    less than the toll and with fewer moves; none where they gain less than the toll.

    `room`: by packed field, the rows that no rank may exceed. No rank is left without a sample.
    """
    deal = _Deal(ranks, room)
    before = max(deal.costs, default=0)
    least = toll.least_gain * before
    lightest = _lightest_possible(ranks)
    gains: list[tuple[float, int]] = []
    for _ in range(4 * sum(map(len, ranks))):  # each step levels two ranks: it ends long before
        # Where next to nothing is left to gain, most of the time goes into looking for it.
        if max(deal.costs) <= lightest + least * _NOTHING or not deal.step(toll.per_byte):
            break
        paid = toll.per_byte * max(max(deal.sent), max(deal.received))
        gains.append((before - max(deal.costs) - paid, len(deal.trail)))
    best, _ = max(gains, default=(0.0, 0))
    if best <= least:
        return ()
    # The first steps gain most: what those after them add has to be worth it, too.
    return deal.moves(next(moves for gain, moves in gains if gain > least and gain >= best - least))


def _lightest_possible(ranks: Sequence[Sequence[Finished]]) -> int:
    """No heaviest rank can be lighter."""
    samples = [s for rank in ranks for s in rank]
    mean = -(-sum(s.cost for s in samples) // max(1, len(ranks)))
    return max([mean, *(s.cost for s in samples)])


class _Held(NamedTuple):
    """A sample, and where it was at first."""

    home: tuple[int, int]
    sample: Finished


class _Change(NamedTuple):
    """One rank gives `give` to another, which gives `back` in return, or nothing."""

    give: _Held
    back: _Held | None


class _Deal:
    """Who has which samples, step after step."""

    def __init__(self, ranks: Sequence[Sequence[Finished]], room: Sequence[int]) -> None:
        self.costs = [sum(s.cost for s in samples) for samples in ranks]
        self.sent, self.received = [0] * len(ranks), [0] * len(ranks)
        self.trail: list[tuple[_Held, int]] = []
        """Who went where, in turn."""
        self._room = room
        self._rows = [[sum(s.rows[f] for s in samples) for f in range(len(room))] for samples in ranks]
        self._movable = [
            [_Held((rank, i), s) for i, s in enumerate(samples) if s.cost]
            for rank, samples in enumerate(ranks)
        ]

    def step(self, per_byte: float) -> bool:
        """Let the heaviest rank give or swap a sample, where that levels it with another; whether it did."""
        heavy = max(range(len(self.costs)), key=lambda r: (self.costs[r], -r))
        lightest = min(range(len(self.costs)), key=lambda r: (self.costs[r], r))
        if heavy != lightest and self._level_with(heavy, lightest, per_byte):
            return True
        others = sorted((self.costs[r], r) for r in range(len(self.costs)) if r not in (heavy, lightest))
        return any(self._level_with(heavy, light, per_byte) for _, light in others)

    def moves(self, kept: int) -> tuple[Move, ...]:
        """What the first so many of the trail come to."""
        at = {held.home: rank for held, rank in self.trail[:kept]}
        return tuple(Move(*home, rank) for home, rank in sorted(at.items()) if home[0] != rank)

    def _level_with(self, heavy: int, light: int, per_byte: float) -> bool:
        change = self._best(heavy, light, per_byte, swaps=False)
        # A swap moves twice: only where nothing is gained by giving.
        change = change or self._best(heavy, light, per_byte, swaps=True)
        if change is None:
            return False
        self._hand_over(change.give, heavy, light)
        if change.back is not None:
            self._hand_over(change.back, light, heavy)
        return True

    def _best(self, heavy: int, light: int, per_byte: float, *, swaps: bool) -> _Change | None:
        """The change that lowers the heavier of two ranks most, its bytes paid for; the first of equals."""
        gap = self.costs[heavy] - self.costs[light]
        best, found = 0.0, None
        for give in self._movable[heavy]:
            for back in self._movable[light] if swaps else (None,):
                less = give.sample.cost - (back.sample.cost if back is not None else 0)
                gain = min(less, gap - less)
                if gain <= best:
                    continue
                carried = max(give.sample.nbytes, back.sample.nbytes if back is not None else 0)
                worth = gain - per_byte * carried
                if worth > best and self._fits(heavy, light, give, back):
                    best, found = worth, _Change(give, back)
        return found

    def _fits(self, heavy: int, light: int, give: _Held, back: _Held | None) -> bool:
        for f, most in enumerate(self._room):
            more = give.sample.rows[f] - (back.sample.rows[f] if back is not None else 0)
            if more > 0 and self._rows[light][f] + more > most:
                return False
            if more < 0 and self._rows[heavy][f] - more > most:
                return False
        return True

    def _hand_over(self, held: _Held, source: int, target: int) -> None:
        home, sample = held.home[0], held.sample
        self._movable[source].remove(held)
        self._movable[target].append(held)
        for rank, sign in ((source, -1), (target, 1)):
            self.costs[rank] += sign * sample.cost
            for f, rows in enumerate(sample.rows):
                self._rows[rank][f] += sign * rows
            if rank == home:
                self.sent[home] -= sign * sample.nbytes
            else:
                self.received[rank] += sign * sample.nbytes
        self.trail.append((held, target))
