"""When consumers will ask: windows learned from what trainers report, and the deadlines that follow.

The window of a micro-batch is the time for which an accelerator computes it, fitted as

    a + b * tokens + c * sum of tokens squared + d * latents         (all >= 0; declared costs of its samples)

A trainer is busy from one `next()` to the next: that is its window where the micro-batch is not the last of
its step. With the last one it also waits for the other ranks, so that only the busy time of the rank that
finished last says something about computing: the one with the latest start plus window, as predicted so far.
Where other nodes have ranks, too, who was last is not known here: steps then teach how long steps are,
whatever they hold, and only micro-batches that end without a barrier what computing takes.
What a trainer measured itself (`loader.compute()`) counts as it is.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from libhelix.plan.window import FILLER
from libhelix.wire.messages import Row, Taking
from libhelix.wire.settings import Position

PRIOR_WINDOW_S = 0.1
"""Until a window has been seen. Orders deadlines by the number of batches before them."""
MIN_MISS_S = 0.001
MISS_SHARE = 0.01
_KEPT = 256
_REFIT_S = 1.0
_STEPS_KEPT = 1024

Features = tuple[float, float, float, float]
_ANY: Features = (1.0, 0.0, 0.0, 0.0)
"""Of a batch about which it is not known what its costs have to do with its window."""


def features_of(rows: Iterable[Row]) -> Features:
    """(1, tokens, sum of tokens squared, latents) of a micro-batch, in millions but for the first."""
    tokens = squares = latents = 0
    for row in rows:
        if row.id != FILLER:
            n = row.costs.get("tokens", 0)
            tokens += n
            squares += n * n
            latents += row.costs.get("latents", 0)
    return (1.0, tokens * 1e-6, squares * 1e-12, latents * 1e-6)


@dataclass
class WindowModel:
    """Seconds of a micro-batch from its features."""

    coefficients: Features | None = None
    seen: deque[tuple[Features, float]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    errors: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """(predicted, measured) seconds of the last windows, predicted before they were measured."""
    version: int = 0
    """Raised whenever predictions change."""
    _most_s: float = PRIOR_WINDOW_S
    _fitted_at: float = 0.0
    _unfitted: int = 0

    def predict_s(self, features: Features) -> float:
        """How long an accelerator will compute a micro-batch; of one far larger than any that was seen, twice
        the longest that was."""
        if self.coefficients is None:
            return PRIOR_WINDOW_S
        return min(sum(c * x for c, x in zip(self.coefficients, features)), self._most_s)

    def learn(self, features: Features, window_s: float, now: float) -> None:
        """A window was measured."""
        if self.coefficients is not None:
            self.errors.append((self.predict_s(features), window_s))
        self.seen.append((features, window_s))
        self._unfitted += 1
        # Often at the beginning, when each window tells most; then at most once a second.
        due = self._unfitted * 4 >= len(self.seen) or self._unfitted >= _KEPT // 8
        if not due or (len(self.seen) >= _KEPT // 8 and now < self._fitted_at + _REFIT_S):
            return
        self.coefficients = fit([f for f, _ in self.seen], [w for _, w in self.seen])
        self._most_s = 2 * max(w for _, w in self.seen)
        self._fitted_at, self._unfitted = now, 0
        self.version += 1


def fit(features: Sequence[Features], values: Sequence[float]) -> Features:
    """Coefficients >= 0 with the least squared error relative to the values; the tenth that fits worst is
    left out the second time (a checkpoint is written, a rank hangs)."""
    first = _least_squares(features, values)
    if len(values) < 10:
        return first
    errors = [abs(sum(c * x for c, x in zip(first, f)) - v) / v for f, v in zip(features, values)]
    worst = sorted(errors)[len(errors) * 9 // 10]
    kept = [i for i, e in enumerate(errors) if e <= worst]
    return _least_squares([features[i] for i in kept], [values[i] for i in kept])


def _least_squares(features: Sequence[Features], values: Sequence[float]) -> Features:
    # Four unknowns: the best of the 15 subsets whose solution is not negative is the non-negative optimum.
    rows = [[x / v for x in f] for f, v in zip(features, values)]
    n = len(rows[0])
    size = [max(abs(r[i]) for r in rows) or 1.0 for i in range(n)]
    rows = [[x / s for x, s in zip(r, size)] for r in rows]
    gram = [[sum(r[i] * r[j] for r in rows) for j in range(n)] for i in range(n)]
    right = [sum(r[i] for r in rows) for i in range(n)]
    best, least = [0.0] * n, float(len(rows))
    for count in range(1, n + 1):
        for chosen in combinations(range(n), count):
            found = _solve([[gram[i][j] for j in chosen] for i in chosen], [right[i] for i in chosen])
            if found is None or min(found) < 0:
                continue
            explained = sum(x * right[i] for x, i in zip(found, chosen))
            if len(rows) - explained < least - 1e-9 * len(rows):  # of equal ones, the simplest
                best, least = [0.0] * n, len(rows) - explained
                for x, i in zip(found, chosen):
                    best[i] = x
    a, b, c, d = (x / s for x, s in zip(best, size))
    return (a, b, c, d)


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gaussian elimination; None where the columns are not independent."""
    n = len(right)
    rows = [[*line, value] for line, value in zip(matrix, right)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(rows[k][i]))
        if abs(rows[pivot][i]) < 1e-9 * max(1.0, abs(matrix[i][i])):
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(i + 1, n):
            factor = rows[k][i] / rows[i][i]
            rows[k] = [x - factor * y for x, y in zip(rows[k], rows[i])]
    found = [0.0] * n
    for i in reversed(range(n)):
        found[i] = (rows[i][n] - sum(rows[i][j] * found[j] for j in range(i + 1, n))) / rows[i][i]
    return found


@dataclass
class _Taken:
    """A micro-batch of a rank: how long the rank waited for it, and was busy with it afterwards."""

    features: Features
    wait_s: float = 0.0
    window_s: float | None = None
    computing: bool = False


@dataclass(eq=False)
class Readiness:
    """The windows of a loader of so many `ranks`, learned from those of this node; `micro_batches` make a
    step."""

    ranks: int
    micro_batches: int
    model: WindowModel = field(default_factory=WindowModel)
    _steps: OrderedDict[tuple[int, int], dict[tuple[int, int], _Taken]] = field(default_factory=OrderedDict)
    """By (epoch, step) and (rank, micro): what this node's ranks are given, and reported."""
    _busy: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _usual_s: float | None = None

    def granted(self, at: Position, rank: int, features: Features) -> None:
        """A rank is going to get a micro-batch."""
        self._steps.setdefault((at.epoch, at.step), {})[rank, at.micro] = _Taken(features)
        while len(self._steps) > _STEPS_KEPT:
            self._steps.popitem(last=False)

    def forget(self) -> None:
        """Ranks go on elsewhere: what was granted does not come."""
        self._steps.clear()

    # ---- what trainers report ----------------------------------------------------------------------

    def took(self, rank: int, taking: Taking, before: Position | None, now: float) -> None:
        """A rank took a batch, and was busy with that of `before` until it asked."""
        found = self._of(taking.at, rank)
        if found is not None:
            found.wait_s = taking.wait_us * 1e-6
        window_us, computing = taking.window_us, taking.computing
        if taking.measured is not None:  # of a batch before that one, as a rule
            before, window_us = taking.measured.at, taking.measured.window_us
            computing = taking.measured.computing
        previous = self._of(before, rank) if before is not None else None
        if previous is None or before is None or not window_us:
            return
        previous.window_s, previous.computing = window_us * 1e-6, computing
        self._busy.append(previous.window_s)
        self._usual_s = None
        if previous.computing or before.micro + 1 < self.micro_batches:
            self.model.learn(previous.features, previous.window_s, now)
        else:
            self._step_taken(before, now)

    def _of(self, at: Position, rank: int) -> _Taken | None:
        return self._steps.get((at.epoch, at.step), {}).get((rank, at.micro))

    def _step_taken(self, at: Position, now: float) -> None:
        """Once all ranks of this node have reported the last micro-batch of a step: learn from the one that
        finished it last."""
        last = [t for (_, micro), t in self._steps[at.epoch, at.step].items() if micro == at.micro]
        if any(t.window_s is None for t in last):
            return
        latest = max(last, key=lambda t: t.wait_s + self.model.predict_s(t.features))
        assert latest.window_s is not None, "seen above"
        if len(last) == self.ranks:
            self.model.learn(latest.features, latest.window_s, now)
        elif self.micro_batches == 1:
            self.model.learn(_ANY, latest.window_s, now)

    # ---- what is expected --------------------------------------------------------------------------

    def window_s(self, at: Position, rank: int) -> float:
        """How long a rank is going to be busy with a micro-batch: computing it, and with the last of a step
        waiting for the heaviest rank."""
        step = self._steps.get((at.epoch, at.step), {})
        mine = step.get((rank, at.micro))
        own = self.model.predict_s(mine.features) if mine is not None else PRIOR_WINDOW_S
        if at.micro + 1 < self.micro_batches:
            return own
        totals: dict[int, float] = {}
        for (other, _), taken in step.items():
            totals[other] = totals.get(other, 0.0) + self.model.predict_s(taken.features)
        before = totals.get(rank, own) - own
        return max(own, max(totals.values(), default=own) - before)

    @property
    def known(self) -> bool:
        """Whether windows are predicted from any that was seen."""
        return self.model.coefficients is not None

    @property
    def usual_s(self) -> float | None:
        """The median of the last windows; None before the first."""
        if self._usual_s is None and self._busy:
            self._usual_s = sorted(self._busy)[len(self._busy) // 2]
        return self._usual_s

    @property
    def about_s(self) -> float:
        """Deadlines that are no further apart than this are those of one step."""
        return (self.usual_s or PRIOR_WINDOW_S) / 8

    def miss_s(self) -> float:
        """A wait longer than this is a miss: 1 ms, or 1 % of the median step."""
        return max(MIN_MISS_S, MISS_SHARE * (self.usual_s or 0.0) * self.micro_batches)
