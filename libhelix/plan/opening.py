"""A window whose rows are still coming: which draws it takes, as far as the rows that are there tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from libhelix.plan.placement import Placement
from libhelix.plan.replacing import replace_bad
from libhelix.wire.messages import Row
from libhelix.wire.settings import Base

if TYPE_CHECKING:
    from libhelix.plan.planner import Planner

ONE = 1 << 32
"""A whole micro-batch, where shares of one are added up."""
_SLACK = 64
"""A window takes 1/64 more than fills its micro-batches: what is left over is chosen, not what is missing."""


@dataclass
class Opening:
    """A window whose rows are being described. `taken` are its draws once it is complete."""

    planner: Planner
    base: Base
    rows: dict[int, Row] = field(default_factory=dict)
    end: int = 0
    last: bool = False
    placement: Placement | None = None
    """By which its samples are dealt out to nodes."""

    def __post_init__(self) -> None:
        self.carried = frozenset(self.base.carried)
        self.end = self.base.draw
        self._share = 0
        self._resize(self.planner.settings.batching.regroup)
        if self.planner.fixed is not None:
            need, per_step = len(self.carried), self.planner.per_step
            self._resize(max(self.steps, -(-need // per_step)))
            self.end = min(self.planner.draws, self.base.draw + self.steps * per_step - need)
        self.last = self.end + self.planner.least > self.planner.draws
        self._missing = dict.fromkeys(self.taken)
        """Draws that it wants, without a row, in order; all before `_upto` that it wants are known."""
        self._upto = self.end
        self._unnamed = list(self._missing)
        self._waiting = len(self._missing)
        """Draws taken, without a row."""
        self._enlarged = False
        self._complete = False

    @property
    def complete(self) -> bool:
        """Whether all its rows have come. Only then are `end`, `last` and `steps` settled."""
        if not self._complete and not self._waiting:
            self._reach()
        return self._complete

    @property
    def taken(self) -> list[int]:
        """Its draws: carried ones first, then the next of the order."""
        return [*self.base.carried, *range(self.base.draw, self.end)]

    def replace_bad(self) -> None:
        """With `on_bad="replace"`, give draws whose describe failed the rows of others."""
        if self.planner.settings.on_bad == "replace":
            replace_bad(self.rows, self.taken)

    def wants(self) -> list[int]:
        """Draws whose rows it needs for all it knows, and perhaps some more."""
        if self.complete:
            return []
        self._look_ahead()
        return list(self._missing)

    def wants_anew(self) -> list[int]:
        """Those of them that no call of this has named yet; what calls cost grows with these alone."""
        if self.complete:
            return []
        self._look_ahead()
        unnamed, self._unnamed = self._unnamed, []
        return [d for d in unnamed if d in self._missing]

    def put(self, draw: int, row: Row) -> None:
        """A row has come. Rows of draws beyond the window are taken note of, in case it reaches them."""
        if self._complete or draw in self.rows:
            return
        self.rows[draw] = row
        self._missing.pop(draw, None)
        if draw in self.carried or self.base.draw <= draw < self.end:
            self._waiting -= 1
            self._share += self.planner.share(row)

    def _look_ahead(self) -> None:
        planner = self.planner
        if planner.fixed is not None:
            return
        # As many as the rows so far let expect; one micro-batch's worth more is no harm, they come next.
        known = self.end - self.base.draw + len(self.carried) - self._waiting
        mean = max(1, self._share // known) if known else ONE
        ahead = -(-max(0, self._target - self._share) // mean) + planner.bins
        upto = min(planner.draws, self.end + ahead)
        new = [d for d in range(self._upto, upto) if d not in self.rows]
        self._upto = max(self._upto, upto)
        self._missing.update(dict.fromkeys(new))
        self._unnamed += new

    def _resize(self, steps: int) -> None:
        self.steps = steps
        micros = steps * self.planner.bins
        self._target = (micros + -(-micros // _SLACK)) * ONE
        self._least = self.base.draw + micros - len(self.carried)
        """No window ends before this draw: every micro-batch has a sample."""

    def _reach(self) -> None:
        planner = self.planner
        if planner.fixed is not None:
            self._complete = True
            return
        if not self._enlarged:  # what was left over must go in now, however much it is
            self._enlarged = True
            least = -(-self._share // (ONE * planner.bins))
            if planner.waits:  # most of it will wait again
                self._resize(self.steps + least)
            else:
                self._resize(max(self.steps, least + (1 if self.carried else 0)))
        end, share, rows = self.end, self._share, self.rows
        while (
            not (full := share >= self._target and end >= self._least) and (row := rows.get(end)) is not None
        ):
            one = planner.share(row)
            share += one
            end += 1
            if not one:  # it will be skipped
                self._least += 1
        self.end, self._share = end, share
        self.last = end == planner.draws
        self._complete = self.last or full
