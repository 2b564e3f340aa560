"""A loader of a job: what its ranks agreed on, the rows of the steps ahead, and its consumers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

from helixd.core.actions import About, Action, Log, Plan, Send
from helixd.core.aside import ASIDE_RANK
from helixd.core.batch import DescribeTask
from helixd.core.consumer import Consumer, Holder
from helixd.core.decode_cost import DecodeCosts
from helixd.core.follower import ahead_of
from helixd.core.history import History
from helixd.core.ledger import Ledger, round_up
from helixd.core.policy import Policy
from helixd.core.readiness import Readiness
from helixd.core.staging import Staging
from helixd.core.team import AskedTask, Team
from helixd.core.windows import Ahead, Windows
from libhelix.errors import HelixError, Oversize, RecipeError
from libhelix.plan.layout import BatchLayout, lay_out
from libhelix.plan.planner import Planner, Window
from libhelix.plan.rows import (
    DESCRIBES_TRIED,
    Known,
    learn_shapes,
    row_problem,
    same_schema,
)
from libhelix.plan.skips import Skips, skips_of
from libhelix.wire import messages as m
from libhelix.wire.codec import short
from libhelix.wire.peer import CLOSED, Shared
from libhelix.wire.settings import Base, Position, Settings, fingerprint

WINDOW = 8
"""Micro-batches whose rows are described ahead of every consumer."""
DESCRIBE_GROUP = 64
"""Samples of one describe task."""
DRAWN_AT_ONCE = 1024
"""Draws whose samples are looked up for one event; windows of many ranks have up to half a million."""
MAX_RING_BYTES = 1 << 44
_EPOCHS_NOTED = 16
"""Ranks that attach at once may stand so many epochs apart."""


@dataclass(eq=False)
class Failure:
    """Why a loader is over, and from which position on; None: at once."""

    code: str
    text: str
    at: Position | None
    sample: int | None = None


@dataclass(eq=False)
class Stream:
    """One loader. `number_task`, `worker_count`, `costs` and `out` are its job's."""

    number: int
    name: str
    about: About
    settings: Settings
    indexes: m.Indexes
    sys_path: tuple[str, ...]
    out: list[Action]
    number_task: Callable[[], int]
    worker_count: Callable[[], int]
    page: int
    answered: Callable[[int], None]
    """A connection has been sent what it waited for."""
    idle: Callable[[], bool]
    """Whether a worker has nothing to do."""
    costs: DecodeCosts
    policy: Policy
    history: History = field(default_factory=History)
    consumers: dict[int, Consumer] = field(default_factory=dict)
    describes: list[DescribeTask] = field(default_factory=list)
    schema: m.Schema = ()
    failure: Failure | None = None
    setup_deaths: int = 0
    last_turn: int = 0
    shared_us: int = 0
    """CPU time given to it while another loader's next batch was missing, too."""
    left: set[int] = field(default_factory=set)
    """Connections whose loaders have left this one."""
    told: set[int] = field(default_factory=set)
    warned_ring: bool = False
    bad: dict[int, int] = field(default_factory=dict)
    skips: dict[int, Skips] = field(default_factory=dict)
    """What trainers are told of samples that are skipped, by epoch."""
    last_bad: str = ""
    described_one: bool = False
    """Whether describe has succeeded."""
    _undescribed: int = 0
    in_a_row: dict[m.Stage, int] = field(default_factory=dict)
    """Samples that failed since the last that did not."""
    _stack_shapes: Known = field(default_factory=dict)
    _largest: tuple[list[tuple[Base, Position]], int] = ([], 0)
    """Steps, and the bytes of their largest batch."""
    _plain: tuple[tuple[m.Shape, ...], Any, str] | None = None
    """Shapes, names of costs and group of the last row that was found to fit."""
    _looked_for: tuple[object, ...] | None = None
    _undrawn: deque[tuple[int, list[int]]] = field(default_factory=deque)
    """Draws of an epoch that are asked for, and have no describe task yet."""
    clash_since: float | None = None
    _clashing: bool = False
    _stale: bool = True
    """Whether rows have come, or windows been planned, since it was looked what is missing."""

    team: Team | None = None
    """The nodes that it is on, where there are several."""

    def __post_init__(self) -> None:
        self.planner = Planner(self.settings)
        self.windows = Windows(self.planner)
        self.readiness = Readiness(self.settings.dp_size, self.settings.micro_batches)
        self.staging = Staging(self, ASIDE_RANK, 0.0)

    @cached_property
    def fingerprint(self) -> int:
        """Of its settings, for other nodes."""
        return fingerprint(self.settings)

    def join(self, team: Team | None) -> None:
        """It is on several nodes: another one plans, or this one does for all."""
        self.team = team
        self.plan_here(team is None or team.leads)

    def plan_here(self, here: bool) -> None:
        """Whether windows are planned on this node."""
        if self.windows.remote == here:
            self.windows.remote = not here
            self.windows.start_over()
            self._stale = True

    def look_again(self) -> None:
        """What windows wait for may have come."""
        self._stale = True

    # ---- rows and windows --------------------------------------------------------------------------

    def want_rows(self) -> None:
        """Plan what can be planned, and ask for the rows that consumers will need next."""
        starts = [(c.base, c.next) for c in self.consumers.values() if not self.ended(c.next)]
        if self.team is not None:
            starts += self.team.stands()
        stand, changed = (self.failure, *starts), False
        while self._stale or stand != self._looked_for:
            self._looked_for, self._stale, changed = stand, False, True
            self.windows.look(starts, WINDOW + self.settings.micro_batches)
            self._plan()
            self._clashing = self.windows.conflict() is not None
        if self.team is not None:
            self.team.want()
        if changed or self._undrawn or self.describes:
            self._ask()
        for consumer in self.consumers.values() if changed else ():
            ahead = self.windows.planned.get(consumer.base)
            if ahead is not None and consumer.next > ahead.window.end_position:
                self.fail(
                    "usage",
                    f"loader {self.name!r}: rank {consumer.rank} asks for step {consumer.next.step} of epoch "
                    f"{consumer.next.epoch}, and its window ends with step {ahead.window.end_position.step}; "
                    "has describe changed since the state was saved?",
                )

    def note_clash(self, now: float) -> None:
        """Note since when ranks stand in windows that claim the same step. It may be over in a moment: ranks
        that are restored tell so one after the other."""
        if not self._clashing:
            self.clash_since = None
        elif self.clash_since is None:
            self.clash_since = now

    def clash(self) -> None:
        """Ranks do stand in windows that claim the same step."""
        found = self.windows.conflict()
        if found is None:
            return
        one, other = (window.base for window in found)
        self.fail(
            "conflict",
            f"loader {self.name!r}: ranks were restored from states that differ: step {other.step} of epoch "
            f"{other.epoch} is planned from draw {other.draw} and inside a window from step {one.step}, draw "
            f"{one.draw}; restore all ranks from one checkpoint",
        )

    def _ask(self) -> None:
        self.describes = [t for t in self.describes if t.wanted]
        self._undrawn.extend(self.windows.to_ask(0 if self.schema else DESCRIBE_GROUP))
        room = DRAWN_AT_ONCE
        while self._undrawn and room:
            epoch, all_draws = self._undrawn.popleft()
            still = [d for d in all_draws if self.windows.asked(epoch, d)]
            draws, rest = still[:room], still[room:]
            room -= len(draws)
            if rest:  # goes on when the first of these are described
                self._undrawn.appendleft((epoch, rest))
            self._describe(epoch, draws)
        if not self.schema and not self.windows.waiting and self.failure is None and self.windows.complete():
            self.fail(
                "bad-samples", f"describe failed for every sample of the data set; the last: {self.last_bad}"
            )

    def _describe(self, epoch: int, draws: list[int]) -> None:
        ids, occurrences = self.planner.drawn(epoch, draws)
        for a in range(0, len(draws), DESCRIBE_GROUP):
            part = slice(a, a + DESCRIBE_GROUP)
            number = self.number_task()
            drawn = (tuple(draws[part]), tuple(ids[part]), tuple(occurrences[part]))
            task = DescribeTask(number, self, epoch, *drawn)
            if self.team is None or not self.team.share_out(task):
                self.describes.append(task)

    def _plan(self) -> None:
        if not self.schema:
            return
        for opening in self.windows.complete():
            if self.team is not None and not self.team.may_plan(opening.base):
                continue
            ticket = self.number_task()
            if self.team is not None:
                opening.placement = self.team.placement(opening.base)
            self.windows.begin(ticket, opening, self.schema, self._stack_shapes)
            self.out.append(Plan(ticket, self.planner, opening))

    def planned(self, ticket: int, window: Window | HelixError) -> None:
        """A window that was given away is planned, or cannot be."""
        opening = self.windows.planning.pop(ticket)
        if isinstance(window, HelixError):
            if self.windows.openings.get(opening.base) is opening:
                self.windows.planning[ticket] = opening  # not once more
                at = Position(opening.base.epoch, opening.base.step, 0)
                self.fail_from(
                    window.code, str(window), at, window.sample if isinstance(window, Oversize) else None
                )
            return
        ahead = self.windows.planned_now(opening, window, self.schema, self._stack_shapes)
        if ahead is not None:
            self._stale = True
            if (skips := skips_of(opening, window)) is not None:
                self._note_skips(window.base.epoch, skips)
            if self.team is not None:
                self.team.planned(ahead)
            if self.settings.on_bad == "raise":  # else they are told with their batch
                for at, row in ahead.bad_rows():
                    self.bad_sample("describe", row.bad, row.error, at)

    def shared(self, shared: Shared) -> None:
        """The leader has planned a window that ranks of this node need."""
        assert self.team is not None
        if self.over or shared.ranks != self.team.ranks:
            return
        if self.schema and not same_schema(shared.schema, self.schema):
            self.fail("recipe", self._schema_differs(shared.schema))
            return
        self.schema = self.planner.schema = shared.schema
        ahead = ahead_of(shared, self.settings.dp_size)
        self.windows.planned[ahead.window.base] = ahead
        self.windows.missing.pop(ahead.window.base, None)
        self._stale = True
        if shared.skips is not None:
            self._note_skips(ahead.window.base.epoch, Skips(*shared.skips))

    def _note_skips(self, epoch: int, skips: Skips) -> None:
        """Tell the ranks, once in an epoch, that samples are skipped; those that come later when served."""
        if epoch in self.skips:
            return
        self.skips[epoch] = skips
        while len(self.skips) > _EPOCHS_NOTED:
            del self.skips[next(iter(self.skips))]
        self.out.append(Log("warning", f"loader {self.name!r}: {skips.text}", self.about))
        for consumer in self.consumers.values():
            if consumer.state == "serving":
                self._tell_skips(consumer, epoch, skips)

    def _tell_skips(self, consumer: Consumer, epoch: int, skips: Skips) -> None:
        for holder in consumer.live:
            warning = m.Warn(holder.loader, short(skips.text), skips.sample, epoch)
            self.out.append(Send(holder.conn, warning))

    def described(self, task: DescribeTask, schema: m.Schema, rows: tuple[m.Row, ...]) -> None:
        """Rows of a describe task, for its first samples; the rest of them stays in the task."""
        if len(rows) > len(task.draws) or any(i != r.id for i, r in zip(task.ids, rows)):
            self.fail("protocol", f"a worker of loader {self.name!r} described samples it was not asked for")
            return
        draws = task.draws[: len(rows)]
        task.draws, task.ids = task.draws[len(rows) :], task.ids[len(rows) :]
        task.occurrences = task.occurrences[len(rows) :]
        if isinstance(task, AskedTask) and self.team is not None:
            self.team.described(task, schema, rows)
            return
        if not any(self.windows.asked(task.epoch, d) for d in draws):
            return
        if schema and not self.schema:
            self.schema = self.planner.schema = schema
            if (problem := self.planner.misfit(schema)) is not None:
                self.fail("recipe", f"recipe {self.settings.recipe}: {problem}")
                return
        if schema and not same_schema(schema, self.schema):
            self.fail("recipe", self._schema_differs(schema))
            return
        self._stale = True
        for draw, row in zip(draws, rows):
            if row.error:
                self._undescribable(row, Position(task.epoch, 0, 0))
            elif not self._fits(row):
                return
            self.windows.put(task.epoch, draw, row)

    def _fits(self, row: m.Row) -> bool:
        """Whether a row is one of this loader's; where not, the loader ends."""
        if self.in_a_row:
            self.in_a_row.pop("describe", None)
        plain = (row.shapes, row.costs.keys(), row.group if self.planner.by_group else "")
        if plain == self._plain and not row.cuts and len(row.segment_us) == 1:
            return True  # like the one before, as most are
        if (problem := row_problem(self.schema, row)) is not None:
            self.fail("protocol", f"a row of sample {row.id} {problem}")
            return False
        self.described_one = True
        problem = learn_shapes(self.schema, row, self._stack_shapes, by_group=self.planner.by_group)
        problem = problem or self.planner.lacks(row)
        if problem is not None:
            self.fail("recipe", f"recipe {self.settings.recipe}: {problem}")
            return False
        self._plain = plain
        return True

    def _schema_differs(self, schema: m.Schema) -> str:
        for ours, theirs in zip(self.schema, schema):
            if ours != theirs:
                return f"recipe {self.settings.recipe}: field {ours} of one sample is {theirs} in another"
        counts = f"{len(self.schema)} fields in one sample, {len(schema)} in another"
        return f"recipe {self.settings.recipe}: {counts}"

    # ---- consumers ---------------------------------------------------------------------------------

    def prepare(self, consumer: Consumer) -> bool:
        """Whether it is known now how large the ring of a consumer must be: its first rows are there."""
        if consumer.state != "gathering" or not consumer.complete or not self.schema:
            return False
        constant = self.planner.fixed is not None and all(f.layout == "stack" for f in self.schema)
        enough = 1 if constant else WINDOW
        first = list(islice(self.windows.walk(consumer.base, consumer.next), enough))
        if len(first) < enough and (self.failure is None or not first):
            return False  # of a loader that is about to end, what is left before it is enough
        try:
            largest = self._largest_of(first)
        except RecipeError as e:
            self.fail(e.code, str(e))
            return False
        estimate = largest if constant else largest * 3 // 2
        declared = consumer.declared_max_bytes
        cap = self.settings.batching.max_bytes or (max(declared, largest) if declared else estimate)
        return self.sized(consumer, cap)

    def sized(self, consumer: Consumer, nbytes: int) -> bool:
        """Let a ring have batches of so many bytes. One that is absurd ends the loader."""
        consumer.max_bytes = round_up(nbytes, self.page)
        if consumer.ring_bytes <= MAX_RING_BYTES:
            return True
        batches = consumer.ring_bytes // consumer.max_bytes
        self.fail("memory", f"a ring of {batches} batches of {consumer.max_bytes} bytes is absurd")
        return False

    @property
    def max_bytes(self) -> int:
        """Of a batch of any rank of this node; 0 while that is not known."""
        return max((c.max_bytes for c in self.consumers.values()), default=0)

    def _largest_of(self, steps: list[tuple[Ahead, Position]]) -> int:
        """Bytes of the largest batch of these steps, of all ranks: what one consumer after the other asks.

        Of other nodes only the leader knows the batches: there it is the largest of this node's own.
        """
        key = [(ahead.window.base, at) for ahead, at in steps]
        if self._largest[0] != key:
            ranks = range(self.settings.dp_size) if self.team is None else self.team.ranks
            batches = (ahead.rows_of(at, rank) for ahead, at in steps for rank in ranks)
            self._largest = key, max((self.lay_out(rows).nbytes for rows in batches), default=0)
        return self._largest[1]

    def lay_out(self, rows: tuple[m.Row, ...]) -> BatchLayout:
        """Where the samples of a batch lie. Raises RecipeError."""
        return lay_out(self.schema, rows, self.planner.multiples)

    def serve(self, consumer: Consumer) -> None:
        """The consumer's memory is there: answer its attachments."""
        nbytes = consumer.ring_bytes
        consumer.ledger = Ledger(nbytes, self.page)
        consumer.state = "serving"
        for holder in consumer.live:
            attached = m.Attached(holder.loader, nbytes, consumer.max_bytes, self.schema)
            self.out.append(Send(holder.conn, attached, arena=consumer.arena))
        for epoch, skips in self.skips.items():
            if epoch >= consumer.next.epoch:
                self._tell_skips(consumer, epoch, skips)

    def holders(self) -> list[Holder]:
        """All who still want batches, or have this node help."""
        found = [h for c in self.consumers.values() for h in c.live]
        return found + (self.team.guests.live if self.team is not None else [])

    # ---- failures ----------------------------------------------------------------------------------

    def bad_sample(self, stage: m.Stage, sample: int, text: str, at: Position) -> None:
        """Count a bad sample, tell the ranks, and end the loader where there are too many."""
        if self.failure is not None:
            return
        self.last_bad = text
        self.bad[at.epoch] = self.bad.get(at.epoch, 0) + 1
        self.history.counters.bad += 1
        for epoch in [e for e in self.bad if e < at.epoch - 1]:
            del self.bad[epoch]
        about = replace(self.about, sample=sample)
        self.out.append(Log("warning", f"loader {self.name!r}: bad sample {sample}: {text}", about))
        for i, holder in enumerate(self.holders()):
            said = m.Bad(holder.loader, sample, at, stage, short(text), note=i == 0)
            self.out.append(Send(holder.conn, said))
        if stage == "fill" and self._fails_on(stage, text, at, sample):
            return
        allowed = self.settings.bad_budget.allowed(self.settings.index_samples)
        if self.settings.on_bad == "raise":
            self.fail_soon("media", text, at, sample)
        elif self.bad[at.epoch] > allowed:
            self.fail_soon(
                "bad-samples",
                f"{self.bad[at.epoch]} samples failed in epoch {at.epoch}, {allowed} are allowed; "
                f"the last: {text}",
                at,
                sample,
            )

    def succeeded(self, stage: m.Stage) -> None:
        """A sample got through."""
        self.in_a_row.pop(stage, None)

    def nothing_good(self, count: int, at: Position) -> None:
        """The first samples that a rank is to be given, so many, have all failed."""
        text = f"the first {count} samples of a rank failed, and none succeeded; the last: {self.last_bad}"
        self.fail_from("bad-samples", text, at)

    def _fails_on(self, stage: m.Stage, text: str, at: Position, sample: int) -> bool:
        """Whether samples fail one after the other: their data are gone. Ends the loader then."""
        self.in_a_row[stage] = self.in_a_row.get(stage, 0) + 1
        most = self.settings.bad_budget.in_a_row
        if self.settings.on_bad == "raise" or self.in_a_row[stage] <= most:
            return False
        counted = f"more than {most} samples failed one after the other in epoch {at.epoch}"
        self.fail_soon("bad-samples", f"{counted}; the last: {text}", at, sample)
        return True

    def _undescribable(self, row: m.Row, at: Position) -> None:
        """Describe failed. Ends the loader where it never succeeded, and that is enough to say so."""
        self.last_bad = row.error
        if self._fails_on("describe", row.error, at, row.id) or self.described_one:
            return
        self._undescribed += 1
        if self.settings.on_bad == "raise":
            self.fail_soon("media", row.error, at, row.id)
        elif self._undescribed >= DESCRIBES_TRIED:
            text = f"describe failed for {self._undescribed} samples, and succeeded for none"
            self.fail_soon("bad-samples", f"{text}; the last: {row.error}", at, row.id)

    def fail(self, code: str, text: str, sample: int | None = None) -> None:
        """End the loader on every rank, at once."""
        self._end(Failure(code, short(text), None, sample))

    def fail_soon(self, code: str, text: str, at: Position, sample: int | None = None) -> None:
        """End the loader at one position on every rank: the first, from `at` on, that none has been sent.

        Batches before it still come; a rank cannot have taken what it was not sent.
        """
        first = max((consumer.undelivered for consumer in self.consumers.values()), default=at)
        nothing_sent = all(consumer.delivered == 0 for consumer in self.consumers.values())
        if at <= first and nothing_sent and self.team is None:
            self.fail(code, text, sample)
            return
        end = max(at, first)
        if self.team is not None:
            # Ranks of other nodes may have their batches of this step. Of the next none is taken by anybody
            # before all have computed this one.
            end = Position(end.epoch, end.step + 1, 0)
        self._end(Failure(code, short(text), end, sample))

    def fail_from(self, code: str, text: str, at: Position, sample: int | None = None) -> None:
        """End the loader at a position whose batch cannot be made; who is past it ends at the next. Of
        several positions, as nodes may say, the earliest counts."""
        self._end(Failure(code, short(text), at, sample))

    def _end(self, failure: Failure) -> None:
        before = self.failure
        if before is not None and (before.at is None or (failure.at is not None and failure.at >= before.at)):
            return  # the first reason stands, unless another one ends the loader earlier
        self.failure = failure
        about = replace(self.about, sample=failure.sample)
        said = f"loader {self.name!r} ends: {failure.text}"
        self.out.append(Log("info" if failure.code == CLOSED else "error", said, about))
        if self.team is not None:
            self.team.over(failure)
        for holder in self.holders():
            self.told.add(holder.conn)
            failed = m.Failed(holder.loader, failure.code, failure.text, failure.at, failure.sample)
            self.out.append(Send(holder.conn, failed))
        if failure.at is None:
            for consumer in self.consumers.values():
                consumer.cancel_batches()
            self.staging.end()
            self.windows.clear()
            self.describes.clear()

    @property
    def over(self) -> bool:
        """Whether nothing comes any more."""
        return self.failure is not None and self.failure.at is None

    def ended(self, at: Position) -> bool:
        """Whether nothing is delivered from this position on."""
        return self.failure is not None and (self.failure.at is None or at >= self.failure.at)
