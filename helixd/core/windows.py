"""The windows ahead of a loader's consumers: which rows are asked for, and what is planned from them.

draw      unknown --asked for--> described --its window is complete--> planned
window    opening --all its rows are there--> being planned --> planned --every consumer is past it--> gone
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from libhelix.plan.opening import Opening
from libhelix.plan.planner import Planner, Window
from libhelix.plan.progress import pack_window
from libhelix.plan.replacing import stand_ins
from libhelix.plan.rows import Known, filler_rows, mask_bad, sum_costs
from libhelix.plan.window import FILLER
from libhelix.wire import messages as m
from libhelix.wire.peer import Held
from libhelix.wire.settings import Base, Position


@dataclass(eq=False)
class Ahead:
    """A planned window, and the rows of its samples by draw. `fillers`: beside samples, and alone."""

    window: Window
    rows: Mapping[int, m.Row]
    fillers: tuple[m.Row, m.Row] | None
    _costs: dict[int, dict[str, int]] = field(default_factory=dict)
    _samples: dict[int, int] = field(default_factory=dict)
    _parts: tuple[bytes, ...] = ()
    _digest: int | None = None

    def rows_of(self, at: Position, rank: int) -> tuple[m.Row, ...]:
        """The rows of a micro-batch of a rank."""
        rows, draws = self.rows, self._step(at.step)[at.micro][rank]
        if self.fillers is None:
            return tuple([rows[d] for d in draws])
        filler = self.fillers[all(d == FILLER for d in draws)]
        return tuple([filler if d == FILLER else rows[d] for d in draws])

    def stand_ins(self, at: Position, rank: int, sample: int) -> list[m.Row]:
        """The rows that may be decoded in place of one of a micro-batch that is bad."""
        places = list(self.window.positions())
        return stand_ins([self.rows_of(p, rank) for p in places], places.index(at), sample)

    def costs(self, step: int) -> dict[str, int]:
        """Declared costs of a whole step: all ranks and micro-batches."""
        if step not in self._costs:
            self._costs[step] = sum_costs(self.rows[d].costs for d in self._draws(step) if d != FILLER)
        return self._costs[step]

    def samples(self, step: int) -> int:
        """Samples of a whole step, fillers not counted."""
        if step not in self._samples:
            self._samples[step] = sum(d != FILLER for d in self._draws(step))
        return self._samples[step]

    def bad_rows(self) -> Iterator[tuple[Position, m.Row]]:
        """Rows that describe failed on, and where they stand."""
        window = self.window
        bad = {d for d, row in self.rows.items() if row.error}
        for k, step in enumerate(window.steps if bad else ()):
            for micro, ranks in enumerate(step):
                for draw in (d for rank in ranks for d in rank if d in bad):
                    yield Position(window.base.epoch, window.base.step + k, micro), self.rows[draw]

    def after(self, at: Position) -> Position:
        """The position that follows one of this window."""
        return self.window.following(at)

    def parts(self) -> tuple[bytes, ...]:
        """What trainers are told of it, in pieces that fit a message."""
        if not self._parts:
            self._parts = pack_window(self.window)
        return self._parts

    @property
    def digest(self) -> int:
        """A checksum of which rank has which of its samples: nodes that plan it have to agree."""
        if self._digest is None:
            self._digest = zlib.crc32(msgspec.msgpack.encode((self.window.end, self.window.steps)))
        return self._digest

    @property
    def held(self) -> Held:
        """What nodes tell one another of it."""
        base = self.window.base
        return Held(base.epoch, base.step, zlib.crc32(msgspec.msgpack.encode(base)), self.digest)

    def know(
        self, costs: Sequence[dict[str, int]], samples: Sequence[int], parts: tuple[bytes, ...], digest: int
    ) -> None:
        """What the leader says of whole steps, where this node has the batches of some ranks alone."""
        first = self.window.base.step
        self._costs = {first + k: of for k, of in enumerate(costs)}
        self._samples = {first + k: of for k, of in enumerate(samples)}
        self._parts, self._digest = parts, digest

    def _step(self, step: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return self.window.steps[step - self.window.base.step]

    def _draws(self, step: int) -> Iterator[int]:
        return (d for micro in self._step(step) for rank in micro for d in rank)


@dataclass(eq=False)
class Windows:
    """All windows of a loader that some consumer has before it."""

    planner: Planner
    remote: bool = False
    """Whether another node plans them."""
    missing: dict[Base, None] = field(default_factory=dict)
    """Those that it has to plan for us."""
    planned: dict[Base, Ahead] = field(default_factory=dict)
    openings: dict[Base, Opening] = field(default_factory=dict)
    planning: dict[int, Opening] = field(default_factory=dict)
    """Those of them that are being planned, by ticket, and some that nobody waits for any more."""
    _rows: dict[tuple[int, int], m.Row] = field(default_factory=dict)
    """Described draws (epoch, draw) of no planned window."""
    _asked: set[tuple[int, int]] = field(default_factory=set)
    _needed: tuple[Base, ...] = ()
    """Where windows begin that are not planned yet."""

    def clear(self) -> None:
        """Nothing is wanted any more."""
        self.planned.clear()
        self.planning.clear()
        self.start_over()

    def start_over(self) -> None:
        """What is not planned yet is begun anew, here or on another node."""
        self.openings.clear()
        self.missing.clear()
        self._rows.clear()
        self._asked.clear()
        self._needed = ()

    # ---- what is ahead -----------------------------------------------------------------------------

    def walk(self, base: Base, at: Position) -> Iterator[tuple[Ahead, Position]]:
        """Positions from `at` on, in windows from `base` on, as far as they are planned."""
        while (ahead := self.planned.get(base)) is not None:
            if at > ahead.window.end_position:
                return  # it stands beyond its own window
            while at <= ahead.window.end_position:
                yield ahead, at
                at = ahead.after(at)
            base = ahead.window.after

    def look(self, starts: Iterable[tuple[Base, Position]], enough: int) -> None:
        """Open the windows that are missing for `enough` micro-batches from each start; forget all others."""
        wanted: dict[Base, None] = {}
        frontier: dict[Base, None] = {}
        for base, at in starts:
            count = 0
            while count < enough:
                wanted[base] = None
                ahead = self.planned.get(base)
                if ahead is None:
                    break
                steps = (
                    ahead.window.end_position.step - at.step + 1 if count == 0 else len(ahead.window.steps)
                )
                count += max(1, steps) * self.planner.settings.micro_batches
                base = ahead.window.after
            frontier[base] = None
        self.planned = {base: ahead for base, ahead in self.planned.items() if base in wanted}
        if self.remote:
            self.missing = {base: None for base in wanted if base not in self.planned}
            return
        for base in [base for base in self.openings if base not in wanted]:
            del self.openings[base]
        for base in wanted:
            if base not in self.planned and base not in self.openings:
                self._open(base)
        needed = (*frontier, *self.openings)
        if needed != self._needed:
            self._needed = needed
            self._forget()

    def _open(self, base: Base) -> None:
        opening = self.openings[base] = self.planner.open(base)
        for (epoch, draw), row in self._rows.items():
            if epoch == base.epoch:
                opening.put(draw, row)

    def _forget(self) -> None:
        rows: dict[tuple[int, int], m.Row] = {}
        asked: set[tuple[int, int]] = set()
        for base in self._needed:
            e, first, left = base.epoch, base.draw, frozenset(base.carried)
            asked |= {k for k in self._asked if k[0] == e and (k[1] >= first or k[1] in left)}
            rows |= {k: row for k, row in self._rows.items() if k[0] == e and (k[1] >= first or k[1] in left)}
        self._rows, self._asked = rows, asked

    def conflict(self) -> tuple[Window, Window] | None:
        """Two windows that claim the same step: ranks were restored from states that differ."""
        windows = sorted((a.window for a in self.planned.values()), key=lambda w: (w.base.epoch, w.base.step))
        for one, other in pairwise(windows):
            if one.base.epoch == other.base.epoch and one.end_position.step >= other.base.step:
                return one, other
        return None

    # ---- rows --------------------------------------------------------------------------------------

    def to_ask(self, beyond: int) -> list[tuple[int, list[int]]]:
        """(epoch, draws) that have to be described and are not yet asked for.

        `beyond` asks for so many more than complete windows need: no row has shown what samples look like.
        """
        found: list[tuple[int, list[int]]] = []
        for base, opening in self.openings.items():
            draws = opening.wants_anew()
            if opening.complete:
                draws = list(range(opening.end, min(opening.end + beyond, self.planner.draws)))
            new = [
                d for d in draws if (base.epoch, d) not in self._asked and (base.epoch, d) not in self._rows
            ]
            if new:
                self._asked |= {(base.epoch, d) for d in new}
                found.append((base.epoch, new))
        return found

    @property
    def waiting(self) -> bool:
        """Whether a row is waited for."""
        return bool(self._asked)

    def asked(self, epoch: int, draw: int) -> bool:
        """Whether a row is waited for."""
        return (epoch, draw) in self._asked

    def put(self, epoch: int, draw: int, row: m.Row) -> None:
        """A row has come. One that nobody waits for any more is dropped."""
        if (epoch, draw) not in self._asked:
            return
        self._asked.discard((epoch, draw))
        self._rows[epoch, draw] = row
        for base, opening in self.openings.items():
            if base.epoch == epoch:
                opening.put(draw, row)

    def complete(self) -> list[Opening]:
        """Windows that can be planned and are not being planned."""
        at_work = self.planning.values()
        return [o for o in self.openings.values() if o.complete and not any(o is other for other in at_work)]

    def begin(self, ticket: int, opening: Opening, schema: m.Schema, shapes: Known) -> None:
        """A window is given away to be planned."""
        opening.replace_bad()
        mask_bad(schema, opening.rows, opening.taken, shapes)
        self.planning[ticket] = opening

    def planned_now(self, opening: Opening, window: Window, schema: m.Schema, shapes: Known) -> Ahead | None:
        """A window is planned; None where nobody waits for it any more."""
        if self.openings.get(opening.base) is not opening:
            return None
        rows = {d: opening.rows[d] for d in window.draws()}
        filled = all(d != FILLER for s in window.steps for j in s for rank in j for d in rank)
        ahead = Ahead(window, rows, None if filled else filler_rows(schema, rows.values(), shapes))
        del self.openings[opening.base]
        self.planned[opening.base] = ahead
        for draw in rows:
            self._rows.pop((window.base.epoch, draw), None)
        return ahead
