"""A loader of a job: what its ranks agreed on, the rows of the steps ahead, and its consumers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from helixd.core.actions import Action, Log, Send
from helixd.core.batch import DescribeTask
from helixd.core.consumer import Consumer, Holder
from helixd.core.ledger import Ledger, round_up
from libhelix.errors import RecipeError
from libhelix.plan.layout import lay_out
from libhelix.plan.rows import (
    HOPELESS,
    bad_samples_allowed,
    learn_shapes,
    masked_row,
    row_problem,
    same_schema,
    sum_costs,
)
from libhelix.plan.steps import StepPlan
from libhelix.wire import messages as m
from libhelix.wire.codec import short
from libhelix.wire.settings import IndexRef, Position, Settings

WINDOW = 8
"""Micro-batches whose rows are described ahead of every consumer."""
DESCRIBE_GROUP = 64
"""Samples of one describe task."""
MAX_RING_BYTES = 1 << 44

Stage = Literal["describe", "fill"]


@dataclass(eq=False)
class Rows:
    """The rows of a micro-batch of all ranks, sample after sample, rank after rank."""

    at: Position
    ids: tuple[int, ...]
    per_rank: int
    rows: list[m.Row | None]
    missing: int

    def of_rank(self, rank: int) -> tuple[m.Row, ...]:
        """The rows of one rank."""
        mine = self.rows[rank * self.per_rank : (rank + 1) * self.per_rank]
        return tuple(row for row in mine if row is not None)

    @cached_property
    def costs(self) -> dict[str, int]:
        """Declared costs, summed over all ranks. Only once no row is missing."""
        return sum_costs(row.costs for row in self.rows if row is not None)

    def put(self, slot: int, row: m.Row) -> None:
        """A row has come."""
        if self.rows[slot] is None:
            self.missing -= 1
        self.rows[slot] = row


@dataclass(eq=False)
class Failure:
    """Why a loader is over, and from which position on; None: at once."""

    code: str
    text: str
    at: Position | None
    sample: int | None = None


@dataclass(eq=False)
class Stream:
    """One loader. `number_task`, `worker_count` and `out` are its job's."""

    number: int
    name: str
    settings: Settings
    index: IndexRef
    sys_path: tuple[str, ...]
    out: list[Action]
    number_task: Callable[[], int]
    worker_count: Callable[[], int]
    page: int
    consumers: dict[int, Consumer] = field(default_factory=dict)
    rows: dict[Position, Rows] = field(default_factory=dict)
    describes: list[DescribeTask] = field(default_factory=list)
    schema: m.Schema = ()
    failure: Failure | None = None
    setup_deaths: int = 0
    last_turn: int = 0
    left: set[int] = field(default_factory=set)
    """Connections whose loaders have left this one."""
    good: set[Stage] = field(default_factory=set)
    told: set[int] = field(default_factory=set)
    bad: dict[int, int] = field(default_factory=dict)
    failed_first: dict[Stage, int] = field(default_factory=dict)
    _stack_shapes: dict[int, m.Shape] = field(default_factory=dict)
    _rows_for: tuple[object, ...] | None = None
    _unshaped: list[tuple[Rows, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plan = StepPlan(self.settings)

    # ---- rows --------------------------------------------------------------------------------------

    def want_rows(self) -> None:
        """Ask for the rows that consumers will need next, and forget those that all are past."""
        stand = (self.failure, *((c.rank, c.next) for c in self.consumers.values()))
        if stand == self._rows_for:
            return
        self._rows_for = stand
        wanted: dict[Position, None] = {}
        for consumer in self.consumers.values():
            at = consumer.next
            # From the start of its step: batches carry what the whole step costs.
            at = Position(at.epoch, at.step, 0)
            for _ in range(WINDOW + self.settings.micro_batches):
                if self.ended(at):
                    break
                wanted[at] = None
                at = self.plan.after(at)
        for at in [at for at in self.rows if at not in wanted]:
            del self.rows[at]
        for at in wanted:
            if at not in self.rows:
                self._describe(at)
        self.describes = [t for t in self.describes if self.rows.get(t.rows.at) is t.rows]

    def step_costs(self, at: Position) -> dict[str, int] | None:
        """Declared costs of a whole step, all ranks and micro-batches; None until all are described."""
        found: list[dict[str, int]] = []
        for micro in range(self.settings.micro_batches):
            rows = self.rows.get(Position(at.epoch, at.step, micro))
            if rows is None or rows.missing:
                return None
            found.append(rows.costs)
        return sum_costs(found)

    def _describe(self, at: Position) -> None:
        ids = tuple(i for rank in self.plan.ids(at) for i in rank)
        rows = Rows(at, ids, self.settings.batching.samples, [None] * len(ids), len(ids))
        self.rows[at] = rows
        for begin in range(0, len(ids), DESCRIBE_GROUP):
            slots = tuple(range(begin, min(begin + DESCRIBE_GROUP, len(ids))))
            self.describes.append(DescribeTask(self.number_task(), self, rows, slots))

    def described(self, task: DescribeTask, schema: m.Schema, rows: tuple[m.Row, ...]) -> None:
        """Rows of a describe task, for its first slots; the rest of them stays in the task."""
        if len(rows) > len(task.slots) or any(task.rows.ids[s] != r.id for s, r in zip(task.slots, rows)):
            self.fail("protocol", f"a worker of loader {self.name!r} described samples it was not asked for")
            return
        if schema and not self.schema:
            self.schema = schema
        if schema and not same_schema(schema, self.schema):
            self.fail("recipe", self._schema_differs(schema))
            return
        for slot, row in zip(task.slots, rows):
            if row.error:
                self.bad_sample("describe", row.id, row.error, task.rows.at)
            elif (problem := row_problem(self.schema, row)) is not None:
                self.fail("protocol", f"a row of sample {row.id} {problem}")
                return
            else:
                self.good.add("describe")
                problem = learn_shapes(self.schema, row, self._stack_shapes)
                if problem is not None:
                    self.fail("recipe", f"recipe {self.settings.recipe}: {problem}")
                    return
            task.rows.put(slot, row)
            if row.error:
                self._unshaped.append((task.rows, slot))
        task.slots = task.slots[len(rows) :]
        self._shape_bad_rows()

    def _schema_differs(self, schema: m.Schema) -> str:
        for ours, theirs in zip(self.schema, schema):
            if ours != theirs:
                return f"recipe {self.settings.recipe}: field {ours} of one sample is {theirs} in another"
        counts = f"{len(self.schema)} fields in one sample, {len(schema)} in another"
        return f"recipe {self.settings.recipe}: {counts}"

    def _shape_bad_rows(self) -> None:
        """Give rows whose describe failed the shapes of a masked sample, as soon as a good one shows them."""
        if not self.schema:
            return
        for rows, slot in self._unshaped:
            row = rows.rows[slot]
            assert row is not None
            rows.rows[slot] = masked_row(self.schema, row, self._stack_shapes)
        self._unshaped.clear()

    # ---- consumers ---------------------------------------------------------------------------------

    def prepare(self, consumer: Consumer) -> int | None:
        """Bytes of the ring that a complete consumer needs, once its first rows are there."""
        if consumer.state != "gathering" or not consumer.complete or not self.schema:
            return None
        constant = all(f.layout == "stack" for f in self.schema)
        at, largest, first = consumer.next, 0, []
        for _ in range(1 if constant else WINDOW):
            rows = self.rows.get(at)
            if rows is None or rows.missing:
                return None
            first.append(rows)
            at = self.plan.after(at)
        for rows in first:
            try:
                for rank in range(self.settings.dp_size):
                    largest = max(largest, lay_out(self.schema, rows.of_rank(rank)).nbytes)
            except RecipeError as e:
                self.fail(e.code, str(e))
                return None
        estimate = largest if constant else largest * 3 // 2
        cap = self.settings.batching.max_bytes or consumer.declared_max_bytes or estimate
        consumer.max_bytes = round_up(cap, self.page)
        if consumer.max_bytes * self.settings.ring > MAX_RING_BYTES:
            self.fail(
                "memory", f"a ring of {self.settings.ring} batches of {consumer.max_bytes} bytes is absurd"
            )
            return None
        return consumer.max_bytes * self.settings.ring

    def serve(self, consumer: Consumer) -> None:
        """The consumer's memory is there: answer its attachments."""
        nbytes = consumer.max_bytes * self.settings.ring
        consumer.ledger = Ledger(nbytes, self.page)
        consumer.state = "serving"
        for holder in consumer.live:
            attached = m.Attached(holder.loader, nbytes, consumer.max_bytes, self.schema)
            self.out.append(Send(holder.conn, attached, arena=consumer.arena))

    def holders(self) -> list[Holder]:
        """All who still want batches."""
        return [h for c in self.consumers.values() for h in c.live]

    # ---- failures ----------------------------------------------------------------------------------

    def bad_sample(self, stage: Stage, sample: int, text: str, at: Position) -> None:
        """Count a bad sample, tell the ranks, and end the loader where there are too many."""
        if self.failure is not None:
            return
        self.bad[at.epoch] = self.bad.get(at.epoch, 0) + 1
        for epoch in [e for e in self.bad if e < at.epoch - 1]:
            del self.bad[epoch]
        self.out.append(Log("warning", f"loader {self.name!r}: bad sample {sample}: {text}"))
        self.failed_first[stage] = self.failed_first.get(stage, 0) + 1
        hopeless = stage not in self.good and self.failed_first[stage] >= HOPELESS
        allowed = bad_samples_allowed(self.settings.index_samples)
        if self.settings.on_bad == "raise":
            self.fail_soon("media", text, at, sample)
        elif self.bad[at.epoch] > allowed or hopeless:
            self.fail_soon(
                "bad-samples",
                f"{self.bad[at.epoch]} samples failed in epoch {at.epoch}, "
                + ("and none succeeded" if hopeless else f"{allowed} are allowed")
                + f"; the last: {text}",
                at,
                sample,
            )
        else:
            for holder in self.holders():
                warning = m.Warn(holder.loader, short(f"a sample is masked: {text}"), sample)
                self.out.append(Send(holder.conn, warning))

    def fail(self, code: str, text: str, sample: int | None = None) -> None:
        """End the loader on every rank, at once."""
        self._end(Failure(code, short(text), None, sample))

    def fail_soon(self, code: str, text: str, at: Position, sample: int | None = None) -> None:
        """End the loader at one position on every rank: the first, from `at` on, that none has been sent.

        Batches before it still come; a rank cannot have taken what it was not sent.
        """
        if all(consumer.delivered == 0 for consumer in self.consumers.values()):
            self.fail(code, text, sample)
            return
        first = max(consumer.undelivered for consumer in self.consumers.values())
        self._end(Failure(code, short(text), max(at, first), sample))

    def fail_from(self, code: str, text: str, at: Position) -> None:
        """End the loader at a position whose batch cannot be made; who is past it ends at the next."""
        self._end(Failure(code, short(text), at))

    def _end(self, failure: Failure) -> None:
        if self.failure is not None and (self.failure.at is None or failure.at is not None):
            return  # the first reason stands, unless a later one cannot wait
        self.failure = failure
        self.out.append(Log("error", f"loader {self.name!r} ends: {failure.text}"))
        for holder in self.holders():
            self.told.add(holder.conn)
            failed = m.Failed(holder.loader, failure.code, failure.text, failure.at, failure.sample)
            self.out.append(Send(holder.conn, failed))
        if failure.at is None:
            for consumer in self.consumers.values():
                consumer.cancel_batches()
            self.rows.clear()
            self.describes.clear()

    def ended(self, at: Position) -> bool:
        """Whether nothing is delivered from this position on."""
        return self.failure is not None and (self.failure.at is None or at >= self.failure.at)
