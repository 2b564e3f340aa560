"""The same batches without a daemon, decoded in the trainer when asked for: notebooks, unit tests, debugging.

Order, tensors and masks are those of helixd, because plan, layout and recipe runner are the same code. A bad
sample that must not be masked raises at its own step, where helixd may need up to two more to tell all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from libhelix.batch import Batch
from libhelix.errors import MediaError, Oversize, RecipeError, TooManyBadSamples
from libhelix.index.read import Index
from libhelix.lease import batch_over
from libhelix.plan.layout import BatchLayout, lay_out
from libhelix.plan.rows import HOPELESS, bad_samples_allowed, learn_shapes, masked_row, same_schema, sum_costs
from libhelix.plan.steps import StepPlan
from libhelix.recipe import Recipe
from libhelix.recipes.run import Loaded, describe_row, error_text, fill, mask
from libhelix.wire import messages as m
from libhelix.wire.layout import aligned
from libhelix.wire.settings import Position, Settings

_SEARCHED = 64
"""Samples tried for one whose describe succeeds, where a batch has none."""


class Inline:
    """The batches of one rank, decoded here. `warn` takes what the user should know."""

    def __init__(
        self, *, rank: int, settings: Settings, index: Index, recipe: Recipe, warn: Callable[[str], None]
    ) -> None:
        self._rank = rank
        self._settings = settings
        self._index = index
        self._warn = warn
        self._plan = StepPlan(settings)
        self._loaded = Loaded(recipe, settings.recipe.qualname, index, settings.seed)
        self._schema: m.Schema = ()
        self._shapes: dict[int, m.Shape] = {}
        self._bad = 0
        self._bad_epoch = 0
        self._filled = False

    def start(self, at: Position) -> None:
        """Nothing to start."""

    def seek(self, at: Position) -> None:
        """Nothing was decoded ahead."""

    def close(self) -> None:
        """Nothing to leave."""

    def next(self, at: Position) -> Batch:
        """The batch of a position."""
        rows = self._rows(at)
        layout = lay_out(self._schema, rows)
        cap = self._settings.batching.max_bytes
        if cap is not None and layout.nbytes > cap:
            raise Oversize(
                f"the batch of rank {self._rank} at step {at.step} of epoch {at.epoch} has {layout.nbytes} "
                f"bytes, max_bytes is {cap}; set FixedBatch({len(rows)}, max_bytes={layout.nbytes})"
            )
        memory = memoryview(bytearray(aligned(layout.nbytes)))
        for sample, row in enumerate(rows):
            self._fill(at, layout, sample, row, memory)
        ready = m.Ready(
            loader=0,
            at=at,
            generation=1,
            offset=0,
            nbytes=len(memory),
            fields=layout.fields,
            table=layout.table,
            samples=len(rows),
            global_samples=self._plan.samples_per_step,
            costs=sum_costs(row.costs for row in rows),
            global_costs=self._step_costs(at),
            decode_us=0,
        )
        return batch_over(memory, ready, self._schema, self._index)

    def _rows(self, at: Position) -> tuple[m.Row, ...]:
        rows = [self._describe(at.epoch, i) for i in self._plan.ids(at)[self._rank]]
        for row in rows:
            if row.error:
                self._bad_sample(at, row.error, described=bool(self._schema))
        if not self._schema:
            for i in range(min(_SEARCHED, len(self._index))):
                self._describe(at.epoch, i)
        if not self._schema:
            raise TooManyBadSamples(f"describe failed for every sample tried; the last: {rows[-1].error}")
        return tuple(masked_row(self._schema, r, self._shapes) if r.error else r for r in rows)

    def _describe(self, epoch: int, number: int) -> m.Row:
        row, schema = describe_row(self._loaded, epoch, number)
        if row.error:
            return row
        if self._schema and not same_schema(schema, self._schema):
            raise RecipeError(f"recipe {self._settings.recipe}: fields {schema} in one sample, others before")
        self._schema = schema
        problem = learn_shapes(schema, row, self._shapes)
        if problem is not None:
            raise RecipeError(f"recipe {self._settings.recipe}: {problem}")
        return row

    def _step_costs(self, at: Position) -> dict[str, int]:
        micros = [Position(at.epoch, at.step, j) for j in range(self._settings.micro_batches)]
        ids = [i for p in micros for rank in self._plan.ids(p) for i in rank]
        return sum_costs(self._describe(at.epoch, i).costs for i in ids)

    def _fill(self, at: Position, layout: BatchLayout, sample: int, row: m.Row, memory: memoryview) -> None:
        places: Sequence[m.Place] = layout.places[sample]
        record = layout.records[sample]
        if not row.error:
            task = m.Fill(0, 0, at.epoch, row.id, 0, row.units, 0, tuple(places), record)
            try:
                fill(self._loaded, task, memory)
            except RecipeError:
                raise
            except Exception as e:  # noqa: BLE001  # a recipe may raise anything; it concerns this sample
                self._bad_sample(at, error_text(self._loaded, row.id, e), described=self._filled)
            else:
                self._filled = True
                return
        mask(m.Mask(0, 0, at.epoch, row.id, 0, tuple(places), record, self._schema), memory)

    def _bad_sample(self, at: Position, text: str, *, described: bool) -> None:
        """Count and warn; raise where the settings, or the number of them, say so."""
        if at.epoch != self._bad_epoch:
            self._bad, self._bad_epoch = 0, at.epoch
        self._bad += 1
        if self._settings.on_bad == "raise":
            raise MediaError(text)
        allowed = bad_samples_allowed(self._settings.index_samples)
        if self._bad > allowed or (not described and self._bad >= HOPELESS):
            reason = f"{allowed} are allowed" if described else "and none succeeded"
            raise TooManyBadSamples(
                f"{self._bad} samples failed in epoch {at.epoch}, {reason}; the last: {text}"
            )
        self._warn(f"a sample is masked: {text}")
