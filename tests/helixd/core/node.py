"""A World whose parts can be told to misbehave, and whose trainers note what they were raised."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from helixd.core import actions as a
from libhelix.errors import HelixError
from libhelix.wire import messages as m
from tests.helixd.core import world as w


class Node(w.World):
    """`lockstep`: trainers step together, as ranks with a collective in every step do.

    `stuck` workers do nothing; `slow` samples are not filled yet; trainers `by_hand` move only when told.
    """

    def __init__(
        self, cores: int = 2, *, seed: int = 1, embedded: bool = False, lockstep: bool = True
    ) -> None:
        super().__init__(random.Random(seed), cores, embedded)
        self.lockstep = lockstep
        self.raised: dict[w.FakeTrainer, HelixError] = {}
        self.warned: list[str] = []
        self.noted: list[m.Bad] = []
        self.reserve: Callable[[m.Reserve], Any] = lambda r: m.Reserved(r.arena)
        self.setup: Callable[[w.FakeWorker, m.Setup], Any] = lambda _, s: m.SetupDone(s.stream)
        self.memfds: set[int] = set()
        self.stuck: set[int] = set()
        self.starved: set[int] = set()
        """Workers that get a twentieth of the turns of others."""
        self.slow: set[int] = set()
        self.by_hand: set[w.FakeTrainer] = set()
        self.killed: list[int] = []
        self.closed: list[int] = []

    # ---- what happens --------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool], keep: int = 0, limit: int = 20_000) -> None:
        """Step until the condition holds."""
        for _ in range(limit):
            if until():
                return
            self.step(keep)
        raise AssertionError(f"it never came to that: {self.logs[-5:]}, {self.raised.values()}")

    def run_to_the_end(self) -> dict[tuple[int, int], HelixError]:
        """Step until every trainer was raised an error; the errors by rank and replica."""
        self.run(lambda: len(self.raised) == len(self.trainers))
        return {(t.rank, t.replica): self.raised[t] for t in self.trainers}

    def wait(self, seconds: float) -> None:
        """Time passes; the core is told when it asked to be, and is then content for a while."""
        end = self.now + seconds
        while not self.stopped and (due := self.machine.deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.tell(a.Tick())
            after = self.machine.deadline()
            assert self.stopped or after is None or after > self.now, "a tick leaves something due: it spins"
        self.now = end

    def take(self, trainer: w.FakeTrainer, wait_us: int = 0, window_us: int = 0) -> m.Ready:
        """`next()` of a trainer that does nothing by itself (`by_hand`); it keeps the batch if it may."""
        assert trainer in self.by_hand
        attachment = trainer.attachment
        for _ in range(5000):
            while trainer.inbox:
                message, arena = trainer.inbox.popleft()
                trainer.arena = arena if isinstance(message, m.Attached) else trainer.arena
                if isinstance(message, (m.Attached, m.Window, m.Ready, m.Failed, m.Learned, m.Bad, m.Warn)):
                    assert attachment.received(message) is None
            ready = attachment.take(trainer.at) if attachment.state != "new" else None
            if ready is not None:
                trainer.progress.took(ready.following, attachment.window)
                trainer.outbox.append(
                    m.Took(attachment.loader, m.Taking(ready.at, wait_us, window_us=window_us))
                )
                if attachment.may_hold(ready):
                    attachment.held[ready.generation] = (ready.offset, ready.nbytes)
                else:
                    self.let_go(trainer, ready)
                return ready
            self.step()
        raise AssertionError(f"rank {trainer.rank} never gets {trainer.at}")

    def ask(self, trainer: w.FakeTrainer) -> None:
        """The first half of `next()`."""
        trainer.outbox.append(m.Ask(trainer.attachment.loader, trainer.at))

    def let_go(self, trainer: w.FakeTrainer, ready: m.Ready) -> None:
        """The last tensor of a batch dies."""
        trainer.attachment.held.pop(ready.generation, None)
        trainer.outbox.append(m.Release(trainer.attachment.loader, ready.generation))

    def hear(self, trainer: w.FakeTrainer) -> None:
        """The core reads all that a trainer has sent."""
        while trainer.outbox:
            self.tell(a.Received(trainer.conn, trainer.outbox.popleft()))

    def status(self) -> Any:
        """The answer to helixctl."""
        conn = self.connect("ctl", uid=0)
        self.tell(a.Received(conn, m.StatusAsk()))
        parts = [said for said in self.told[conn] if isinstance(said, m.Status)]
        assert [p.last for p in parts] == [False] * (len(parts) - 1) + [True]
        return json.loads("".join(p.json for p in parts))

    def said(self, conn: int, kind: type[Any]) -> list[Any]:
        """What a connection was told, of one kind."""
        return [message for message in self.told.get(conn, []) if isinstance(message, kind)]

    # ---- parts that misbehave ------------------------------------------------------------------------

    def trainer_step(self, trainer: w.FakeTrainer, keep: int) -> None:
        if trainer in self.raised or trainer in self.by_hand:
            return
        peers = [t for t in self.trainers if t.name == trainer.name and t.replica == trainer.replica]
        if self.lockstep and any(t.at < trainer.at for t in peers if t not in self.raised):
            return
        try:
            super().trainer_step(trainer, keep)
        except HelixError as e:
            self.raised[trainer] = e
        self.warned += trainer.attachment.warnings
        trainer.attachment.warnings.clear()
        self.noted += trainer.attachment.bad_until(trainer.at)

    def worker_step(self, worker: w.FakeWorker) -> None:
        if worker.number in self.stuck or (worker.number in self.starved and self.rng.random() < 0.95):
            return
        task = worker.inbox[0] if worker.inbox and not worker.outbox else None
        if isinstance(task, m.Fill) and any(piece.id in self.slow for piece in task.pieces):
            return
        if not worker.outbox and worker.inbox and isinstance(worker.inbox[0], m.Setup):
            message = worker.inbox.popleft()
            assert isinstance(message, m.Setup)
            worker.layouts[message.stream] = message.settings.recipe.qualname
            answer = self.setup(worker, message)
            if answer is None:
                self.kill_worker(worker)
            else:
                worker.outbox.append(answer)
            return
        super().worker_step(worker)

    def _host_told(self, message: Any, worker: int | None) -> None:
        match message:
            case m.Reserve():
                self.host_out.append(self.reserve(message))
            case m.Kill(number):
                self.killed.append(number)
                self.stuck.discard(number)
                self.kill_worker(self.workers[number])
            case _:
                super()._host_told(message, worker)

    def _do(self, action: a.Action) -> None:
        if isinstance(action, a.MakeArena) and action.memfd:
            self.memfds.add(action.arena)
        if isinstance(action, a.Close):
            self.closed.append(action.conn)
        super()._do(action)
