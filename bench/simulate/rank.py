"""A rank: takes a batch, computes it, and at the end of a step waits for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bench.simulate.clock import Clock
from bench.simulate.node import LOADER, Node
from libhelix.plan.planner import Planner
from libhelix.plan.progress import Progress
from libhelix.session import Attachment
from libhelix.wire import messages as m
from libhelix.wire.settings import IndexRef, Position, Settings


class Taken(NamedTuple):
    """A batch that a rank took: how long it waited for it, and computed it. `miss_s` is what helixd counts as
    a miss at that moment."""

    at: Position
    wait_s: float
    window_s: float
    miss_s: float


class Barrier:
    """All ranks end a step together. `ended` is when, step after step."""

    def __init__(self, clock: Clock, ranks: int) -> None:
        self._clock, self._ranks = clock, ranks
        self._waiting: list[Callable[[], None]] = []
        self.ended: list[float] = []

    def arrive(self, go_on: Callable[[], None]) -> None:
        """A rank is done with a step."""
        self._waiting.append(go_on)
        if len(self._waiting) < self._ranks:
            return
        self.ended.append(self._clock.now)
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one()


class Rank:
    """A trainer with one loader. `window_us` is what its accelerator takes for a token; it stops before step
    `last_step`."""

    def __init__(
        self,
        clock: Clock,
        node: Node,
        barrier: Barrier,
        number: int,
        settings: Settings,
        *,
        window_us: float,
        last_step: int,
    ) -> None:
        self._clock, self._node, self._barrier, self._number = clock, node, barrier, number
        self._settings, self._window_us, self._last_step = settings, window_us, last_step
        self._attachment = Attachment(1)
        self._progress = Progress(Planner(settings))
        self._conn = 0
        self._asked: float | None = None
        """Since when it waits; None: it computes."""
        self._returned: float | None = None
        self._busy_s = 0.0
        self._holds: int | None = None
        self.taken: list[Taken] = []
        self.copies = 0

    def connect(self) -> None:
        """Say hello."""
        self._conn = self._node.connect(self)

    def attach(self) -> None:
        """The loader is made."""
        start = self._progress.start.packed()
        refs = (IndexRef("index", "root"),)
        attach = m.Attach(1, LOADER, self._number, 0, self._settings, refs, (), start)
        self._node.attach(self._conn, attach)

    def told(self, message: m.ToTrainer) -> None:
        """A message has come."""
        match message:
            case m.Attached():
                self._attachment.received(message)
                self._ask()
                return
            case m.Window() | m.Ready() | m.Failed() | m.Learned() | m.Warn() | m.Dealt():
                self._attachment.received(message)
        if self._asked is not None and (ready := self._attachment.take(self._progress.at)) is not None:
            self._took(ready)

    def _ask(self) -> None:
        """`next()` is called."""
        if self._progress.at.step >= self._last_step:
            return
        now = self._clock.now
        self._busy_s = 0.0 if self._returned is None else now - self._returned
        if (untold := self._attachment.untold) is not None:
            self._attachment.untold = None
            self._node.send(self._conn, untold)
        self._asked = now
        ready = self._attachment.take(self._progress.at)
        if ready is not None:
            self._took(ready)
        else:
            self._node.send(self._conn, m.Ask(1, self._progress.at))

    def _took(self, ready: m.Ready) -> None:
        """`next()` returns; the batch before is let go of."""
        assert self._asked is not None
        now, wait_s = self._clock.now, self._clock.now - self._asked
        self._asked, self._returned = None, now
        before, self._holds = self._holds, None
        attachment = self._attachment
        if attachment.may_hold(ready):
            attachment.held[ready.generation] = (ready.offset, ready.nbytes)
            self._holds = ready.generation
        else:
            self.copies += 1
            self._node.send(self._conn, attachment.release(ready.generation))
        taking = m.Taking(ready.at, int(wait_s * 1e6), int(now * 1e6), int(self._busy_s * 1e6))
        attachment.untold = m.Took(1, taking)
        if before is not None:
            self._node.send(self._conn, attachment.release(before))
        self._progress.took(ready.following, attachment.window)
        window_s = ready.costs["tokens"] * self._window_us * 1e-6
        self.taken.append(Taken(ready.at, wait_s, window_s, self._node.stream.readiness.miss_s()))
        self._clock.after(window_s, self._computed, ready.at)

    def _computed(self, at: Position) -> None:
        if at.micro + 1 < self._settings.micro_batches:
            self._ask()
        else:
            self._barrier.arrive(self._ask)
