"""The client's half of the protocol, without a socket: what a loader knows of its attachment.

new --Attached--> serving --Failed--> failed
                     |
                     +--connection lost--> new (attached again, from the position it has reached)
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from libhelix.errors import HelixError, Oversize, ProtocolError, from_code
from libhelix.plan.placement import most_placed
from libhelix.plan.progress import Told, unpack_window
from libhelix.plan.ring import gaps
from libhelix.wire import messages as m
from libhelix.wire.settings import Position


@dataclass
class Attachment:
    """A loader's place at a daemon: what came, what is held, and what may be held."""

    loader: int
    state: Literal["new", "serving", "failed"] = "new"
    arena_bytes: int = 0
    max_bytes: int = 0
    schema: m.Schema = ()
    seek: int = 0
    name_of: Callable[[int], str] = str
    """The name of a sample, for what helixd says of its number."""
    failure: m.Failed | None = None
    warnings: deque[str] = field(default_factory=deque)
    _bad: list[m.Bad] = field(default_factory=list)
    """Bad samples that the user was not told of: some are of batches that may never be asked for."""
    epoch: int = 0
    """The last epoch that was reached."""
    held: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Extents (offset, bytes) of batches whose tensors live, by generation."""
    placed: dict[tuple[int, int], m.Speeds] = field(default_factory=dict)
    """How windows are placed, by the epoch and step from which on."""
    window: Told | None = None
    """The window of the batch that was taken last, where it does not follow from counting."""
    learned: dict[str, float] | None = None
    """What decoding turned out to cost, for the next job, once there is something new."""
    untold: m.Took | None = None
    """What `next()` returned last, as long as helixd was not told: the next release tells it."""
    _ready: deque[m.Ready | Told] = field(default_factory=deque)
    """Batches, and before the first batch of a window what is to be known of it."""
    _parts: list[bytes] = field(default_factory=list)
    _early: list[tuple[int, str]] = field(default_factory=list)
    """Warnings of epochs that are planned and not reached."""

    def received(
        self, message: m.Attached | m.Dealt | m.Window | m.Ready | m.Failed | m.Learned | m.Bad | m.Warn
    ) -> m.Release | None:
        """Take a message in. Returns a release for a batch that nobody wants any more."""
        match message:
            case m.Attached():
                if self.state == "failed":
                    return None  # it was on its way
                if self.state != "new":
                    raise ProtocolError("attached twice")
                self.state = "serving"
                self.arena_bytes, self.max_bytes = message.arena_bytes, message.max_bytes
                self.schema = message.schema
            case m.Window(_, part, last):
                self._parts.append(part)
                if last:
                    self._ready.append(unpack_window(self._parts))
                    self._parts.clear()
            case m.Ready():
                if message.offset >= self.arena_bytes or message.nbytes > self.arena_bytes:
                    raise ProtocolError(f"a batch at {message.offset}+{message.nbytes} of {self.arena_bytes}")
                if message.seek != self.seek or self.state != "serving":
                    return m.Release(self.loader, message.generation)
                self._ready.append(message)
            case m.Failed():
                self.failure = message
                if message.at is None:
                    self.state = "failed"
            case m.Learned(_, scales):
                self.learned = scales
            case m.Dealt(_, placed):
                self.placed[placed.epoch, placed.step] = placed.speeds
                while len(self.placed) > most_placed(len(placed.speeds)):
                    del self.placed[next(iter(self.placed))]
            case m.Bad():
                self._bad.append(message)
            case m.Warn(_, text, sample, epoch):
                self._early.append((epoch, self._named(text, sample)))
                self.reached(self.epoch)
        return None

    def bad_until(self, at: Position) -> list[m.Bad]:
        """The bad samples of batches up to this one, to be told of now."""
        found = [bad for bad in self._bad if bad.at <= at]
        self._bad = [bad for bad in self._bad if bad.at > at]
        return found

    def reached(self, epoch: int) -> None:
        """A batch of this epoch is wanted: what is to be warned of there is of interest now."""
        self.epoch = epoch
        self.warnings += [text for e, text in self._early if e <= epoch]
        self._early = [(e, text) for e, text in self._early if e > epoch]

    def take(self, expected: Position) -> m.Ready | None:
        """The next batch, if it is there. Raises the error the loader ended with, at its position.

        Raises ProtocolError where another batch than `expected` came: order is the daemon's promise.
        """
        if self.failure is not None and (self.failure.at is None or expected >= self.failure.at):
            raise self.error()
        while self._ready and isinstance(self._ready[0], Told):
            self.window = self._ready[0]
            self._ready.popleft()
        if not self._ready:
            return None
        ready = self._ready.popleft()
        assert isinstance(ready, m.Ready)
        if ready.at != expected:
            raise ProtocolError(f"the batch of {ready.at} came where {expected} was due")
        return ready

    def spare(self, expected: Position) -> bool:
        """Whether the batch of a position came, can be held beside all that is held, and nothing failed."""
        if self.failure is not None:
            return False
        ready = next((r for r in self._ready if isinstance(r, m.Ready)), None)
        return ready is not None and ready.at == expected and self.may_hold(ready)

    def error(self) -> HelixError:
        """The error the loader ended with."""
        assert self.failure is not None
        return from_code(self.failure.code, self._named(self.failure.text, self.failure.sample))

    def _named(self, text: str, sample: int | None) -> str:
        return named(text, sample, self.name_of)

    def release(self, generation: int) -> m.Release:
        """A batch is let go of; what was not told goes with it. Called by finalizers: no lock, no waiting."""
        self.held.pop(generation, None)
        took, self.untold = self.untold, None
        return m.Release(self.loader, generation, took.taking if took is not None else None)

    def forget_ready(self) -> list[m.Release]:
        """Give back the batches that came and were not taken."""
        releases = [m.Release(self.loader, r.generation) for r in self._ready if isinstance(r, m.Ready)]
        self._ready.clear()
        return releases

    def may_hold(self, ready: m.Ready) -> bool:
        """Whether the ring still turns if this batch and all that are held now are held for ever.

        It turns as long as some gap takes the largest batch; else the batch must be copied out.
        """
        if not self.held:
            return self.arena_bytes - ready.nbytes >= self.max_bytes
        pinned = [*self.held.values(), (ready.offset, ready.nbytes)]
        free = gaps(pinned, self.arena_bytes, 0)
        return max((nbytes for _, nbytes in free), default=0) >= self.max_bytes


def named(text: str, sample: int | None, name_of: Callable[[int], str]) -> str:
    """A text about a sample, with its name: after its number, or at the end; once."""
    name = name_of(sample) if sample is not None else ""
    if name in text:
        return text
    of_number = re.compile(rf"\bsample {sample}\b")
    if of_number.search(text):
        return of_number.sub(lambda found: f"{found[0]} ({name})", text, count=1)
    return f"{text} ({name})"


def naming(error: Oversize, name_of: Callable[[int], str]) -> Oversize:
    """The same error with the name of its sample."""
    return Oversize(named(str(error), error.sample, name_of), error.sample)
