"""The same batches without a daemon, decoded in the trainer when asked for: notebooks, unit tests, debugging.

Order, tensors and masks are those of helixd, because plan, layout and recipe runner are the same code. A bad
sample that must not be masked raises at its own step, where helixd may need up to two more to tell all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from libhelix.batch import Taken
from libhelix.errors import MediaError, Oversize, RecipeError, TooManyBadSamples, UsageError
from libhelix.index.join import Joined
from libhelix.lease import batch_over
from libhelix.plan.caps import shrink_caps
from libhelix.plan.layout import BatchLayout, lay_out
from libhelix.plan.opening import Opening
from libhelix.plan.planner import Planner, Window
from libhelix.plan.progress import Told, told
from libhelix.plan.replacing import stand_ins
from libhelix.plan.rows import (
    DESCRIBES_TRIED,
    HOPELESS,
    Known,
    filler_rows,
    learn_shapes,
    mask_bad,
    same_schema,
    sum_costs,
)
from libhelix.plan.skips import skips_of
from libhelix.plan.window import FILLER
from libhelix.recipe import Recipe
from libhelix.recipes.run import Loaded, describe_row, error_text, fill, mask
from libhelix.session import named, naming
from libhelix.wire import messages as m
from libhelix.wire.layout import aligned
from libhelix.wire.settings import Base, Position, Settings, Start


class Inline:
    """The batches of one rank, decoded here. `warn` takes what the user should know, `note` bad samples."""

    def __init__(
        self,
        *,
        rank: int,
        settings: Settings,
        index: Joined,
        recipe: Recipe,
        warn: Callable[[str], None],
        note: Callable[[m.Bad], None],
    ) -> None:
        self._rank = rank
        self._settings = settings
        self._index = index
        self._warn = warn
        self._note = note
        self._planner = Planner(settings)
        caps = shrink_caps(settings.batching)
        self._loaded = Loaded(recipe, settings.recipe.qualname, index, settings.seed, caps)
        self._schema: m.Schema = ()
        self._shapes: Known = {}
        self._window: Window | None = None
        self._told: Told | None = None
        self._rows: dict[tuple[int, int], m.Row] = {}
        self._bad = 0
        self._bad_epoch = 0
        self._in_a_row: dict[m.Stage, int] = {"describe": 0, "fill": 0}
        self._lost: int | None = 0
        """Samples of the batches so far, which were all bad; None once one was not."""
        self._last_bad = ""
        self._warned_skips: set[int] = set()

    def start(self, start: Start) -> None:
        """Nothing to start."""

    # What a device asks (libhelix/device.py): nothing is there ahead, and nobody keeps times.

    def take(self, start: Start) -> Taken:
        """The batch of a position, decoded now."""
        return self.next(start)

    def poll(self, at: Position) -> Taken | None:  # noqa: ARG002
        """Nothing is there before it is asked for."""
        return None

    def tell(self, at: Position) -> None:
        """All was said when it was decoded."""

    def took(
        self, at: Position, asked: float, measured: m.Measured | None = None, tier: m.Tier | None = None
    ) -> None:
        """Nobody is told."""

    def now(self) -> float:
        """No clock."""
        return 0.0

    def memory(self) -> memoryview | None:
        """No ring."""
        return None

    def seek(self, start: Start) -> None:
        """Nothing was decoded ahead. An epoch that is gone through again has its bad samples again."""
        if start.at.epoch == self._bad_epoch:
            self._bad = 0

    def computing(self) -> AbstractContextManager[None]:
        """Nothing is planned by it here."""
        return nullcontext()

    def go_on_with(self, settings: Settings) -> None:
        """Other settings from now on; what was described of later draws is forgotten, and bad samples."""
        self._bad = 0
        self._settings, self._planner = settings, Planner(settings)
        self._planner.schema = self._schema
        self._window = self._told = None
        self._rows.clear()

    def close(self) -> None:
        """Nothing to leave."""

    def next(self, start: Start) -> Taken:
        """The batch of a position."""
        at, window = start.at, self._window_of(start.base)
        if at > window.end_position:
            raise UsageError(f"there is no step {at.step} in epoch {at.epoch}")
        rows = self._rows_of(window, at)
        for row in rows:
            if row.error and row.id != FILLER:
                self._bad_sample(at, row.bad, row.error, "describe")
        layout = lay_out(self._schema, rows, self._planner.multiples)
        cap = self._settings.batching.max_bytes
        if cap is not None and layout.nbytes > cap:
            raise Oversize(
                f"the batch of rank {self._rank} at step {at.step} of epoch {at.epoch} has {layout.nbytes} "
                f"bytes, max_bytes is {cap}; set max_bytes={layout.nbytes} in the batching"
            )
        memory = memoryview(bytearray(aligned(layout.nbytes)))
        good = [self._fill(at, layout, i, row, window, memory) for i, row in enumerate(rows)]
        self._look_at(sum(row.id != FILLER for row in rows), any(good))
        draws = [d for micro in window.steps[at.step - window.base.step] for rank in micro for d in rank]
        ready = m.Ready(
            loader=0,
            at=at,
            generation=1,
            offset=0,
            nbytes=len(memory),
            fields=layout.fields,
            table=layout.table,
            samples=len(rows),
            global_samples=sum(d != FILLER for d in draws),
            costs=sum_costs(row.costs for row in rows),
            global_costs=sum_costs(self._rows[at.epoch, d].costs for d in draws if d != FILLER),
            decode_us=0,
            following=window.following(at),
            fillers=sum(row.id == FILLER for row in rows),
        )
        batch = batch_over(memory, ready, self._schema, self._index)
        return Taken(batch, ready.following, self._told)

    def window_at(self, base: Base, step: int) -> Base | None:
        """The base of the window that has a step, planned from a base before it in its epoch; None where the
        epoch ends before. Describes samples, decodes nothing."""
        if self._planner.counted(base):
            start = self._planner.settled(Start(base, Position(base.epoch, step, 0)))
            return start.base if start is not None else None
        while step > (window := self._window_of(base)).end_position.step:
            if window.after.epoch != base.epoch:
                return None
            base = window.after
        return base

    # ---- planning ----------------------------------------------------------------------------------

    def _window_of(self, base: Base) -> Window:
        if self._window is not None and self._window.base == base:
            return self._window
        opening = self._planner.open(base)
        while not opening.complete:
            wanted = opening.wants()
            for draw, *drawn in zip(wanted, *self._planner.drawn(base.epoch, wanted)):
                opening.put(draw, self._row(base.epoch, draw, *drawn))
        if not self._schema:
            self._search(base.epoch)
        described = dict(opening.rows)
        opening.replace_bad()
        mask_bad(self._schema, opening.rows, opening.taken, self._shapes)
        try:
            window = self._planner.plan(opening)
        except Oversize as e:
            raise naming(e, self._name_of) from e
        self._note_skips(opening, window)
        self._told = None if self._planner.counted(base) else told(window)
        later = {(e, d): row for (e, d), row in self._rows.items() if e == base.epoch and d >= opening.end}
        # Of what is left over, the next window decides anew who stands in.
        ahead = {(base.epoch, d): row for d, row in described.items()}
        here = {(base.epoch, d): opening.rows[d] for d in window.draws()}
        self._window, self._rows = window, later | ahead | here
        self._fillers = filler_rows(self._schema, here.values(), self._shapes)
        return window

    def _note_skips(self, opening: Opening, window: Window) -> None:
        """Warn once in an epoch."""
        skips, epoch = skips_of(opening, window), window.base.epoch
        if skips is not None and epoch not in self._warned_skips:
            self._warned_skips = {e for e in self._warned_skips if e >= epoch - 1} | {epoch}
            self._warn(named(skips.text, skips.sample, self._name_of))

    def _name_of(self, sample: int) -> str:
        return self._index[sample].key

    def _row(self, epoch: int, draw: int, sample: int, occurrence: int) -> m.Row:
        found = self._rows.get((epoch, draw))
        return found if found is not None else self._describe(epoch, sample, occurrence)

    def _search(self, epoch: int) -> None:
        """Describe others until one shows what samples look like."""
        row = None
        for i in range(min(DESCRIBES_TRIED, len(self._index))):
            row = self._describe(epoch, i)
            if self._schema:
                return
        assert row is not None, "a data set without samples has no step"
        raise TooManyBadSamples(f"describe failed for every sample tried; the last: {row.error}")

    def _rows_of(self, window: Window, at: Position) -> tuple[m.Row, ...]:
        draws = window.steps[at.step - window.base.step][at.micro][self._rank]
        filler = self._fillers[all(draw == FILLER for draw in draws)]
        return tuple([self._rows[at.epoch, draw] if draw != FILLER else filler for draw in draws])

    def _stand_ins(self, window: Window, at: Position, sample: int) -> list[m.Row]:
        """The rows that may be decoded in place of one that is bad."""
        places = list(window.positions())
        return stand_ins([self._rows_of(window, p) for p in places], places.index(at), sample)

    def _describe(self, epoch: int, number: int, occurrence: int = 0) -> m.Row:
        row, schema = describe_row(self._loaded, epoch, number, occurrence)
        if row.error:
            self._count_in_a_row("describe", epoch, row.error)
            return row
        self._in_a_row["describe"] = 0
        if self._schema and not same_schema(schema, self._schema):
            raise RecipeError(f"recipe {self._settings.recipe}: fields {schema} in one sample, others before")
        known, self._schema = bool(self._schema), schema
        self._planner.schema = schema
        by_group = self._planner.by_group
        problem = self._planner.misfit(schema) if not known else None
        problem = problem or learn_shapes(schema, row, self._shapes, by_group=by_group)
        problem = problem or self._planner.lacks(row)
        if problem is not None:
            raise RecipeError(f"recipe {self._settings.recipe}: {problem}")
        return row

    def _fill(
        self,
        at: Position,
        layout: BatchLayout,
        sample: int,
        row: m.Row,
        window: Window,
        memory: memoryview,
    ) -> bool:
        """Whether a sample is there, and is not masked."""
        places, record = tuple(layout.places[sample]), layout.records[sample]
        text = self._decode(at, row, places, record, memory) if not row.masked else ""
        if text:
            self._bad_sample(at, row.id, text, "fill")
            for other in self._stand_ins(window, at, sample) if self._settings.on_bad == "replace" else ():
                if not self._decode(at, other, places, record, memory):
                    return True
        if row.masked or text:
            mask(m.Mask(0, 0, at.epoch, row.id, 0, 0, places, record, self._schema), memory)
        return not row.masked and not text

    def _look_at(self, samples: int, good: bool) -> None:
        """Raise where the first samples are all bad."""
        if self._lost is None or not samples:
            return
        self._lost = None if good else self._lost + samples
        if self._lost is not None and self._lost >= HOPELESS and self._settings.on_bad != "raise":
            raise TooManyBadSamples(
                f"the first {self._lost} samples of a rank failed, and none succeeded; the last: "
                f"{self._last_bad}"
            )

    def _decode(
        self, at: Position, row: m.Row, places: tuple[m.Place, ...], record: int, memory: memoryview
    ) -> str:
        """Fill a sample's places. What is wrong with the sample, or nothing."""
        piece = m.Piece(row.id, row.occurrence, 0, row.units, record, places)
        try:
            fill(self._loaded, at.epoch, piece, memory)
        except RecipeError:
            raise
        except Exception as e:  # noqa: BLE001  # a recipe may raise anything; it concerns this sample
            return error_text(self._loaded, row.id, e)
        self._in_a_row["fill"] = 0
        return ""

    def _bad_sample(self, at: Position, sample: int, text: str, stage: m.Stage) -> None:
        """Count and tell; raise where the settings, or the number of them, say so."""
        if at.epoch != self._bad_epoch:
            self._bad, self._bad_epoch = 0, at.epoch
        self._bad += 1
        self._last_bad = text
        self._note(m.Bad(0, sample, at, stage, text, note=True))
        if self._settings.on_bad == "raise":
            raise MediaError(text)
        budget = self._settings.bad_budget
        allowed = budget.allowed(self._settings.index_samples)
        if self._bad > allowed:
            raise TooManyBadSamples(
                f"{self._bad} samples failed in epoch {at.epoch}, {allowed} are allowed; the last: {text}"
            )
        if stage == "fill":
            self._count_in_a_row(stage, at.epoch, text)

    def _count_in_a_row(self, stage: m.Stage, epoch: int, text: str) -> None:
        """Raise where samples fail one after the other: their data are gone."""
        self._in_a_row[stage] += 1
        most = self._settings.bad_budget.in_a_row
        if self._in_a_row[stage] > most and self._settings.on_bad != "raise":
            raise TooManyBadSamples(
                f"more than {most} samples failed one after the other in epoch {epoch}; the last: {text}"
            )
