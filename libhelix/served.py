"""Batches from helixd: attaching, waiting, leasing, and going on when the daemon does not."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from libhelix.batch import Batch, Taken
from libhelix.client import Client, ConnectionLost, client_for, embedded_address, service_socket
from libhelix.errors import DaemonUnreachable, Stalled, UsageError
from libhelix.index.join import Joined
from libhelix.learned import keep_scales, kept_scales
from libhelix.lease import Arena, batch_over
from libhelix.meeting import Meeting
from libhelix.session import Attachment
from libhelix.timing import WindowClock
from libhelix.weight import weight_of
from libhelix.wire import codec
from libhelix.wire import messages as m
from libhelix.wire.settings import IndexRef, Position, Settings, Start

RECOVERIES = 3
"""Times that a loader looks for another daemon without having got a batch from the last."""


class Link:
    """A loader's attachment to one daemon, and its ring there. Detached when its owner is forgotten.

    `asked`: whether the daemon was asked for it.
    """

    def __init__(self, owner: object, client: Client) -> None:
        self.client = client
        self.arena: Arena | None = None
        self.asked = False
        self.attachment = client.new_attachment(self._on_arena)
        self.detach = weakref.finalize(owner, client.detach, self.attachment)
        self.detach.atexit = False  # the daemon sees our end

    def _on_arena(self, descriptor: int) -> None:
        self.arena = Arena(descriptor, self.attachment.arena_bytes)


class Served:
    """The batches of one rank, decoded by helixd. `warn` takes what the user should know, `note` bad
    samples."""

    def __init__(
        self,
        *,
        name: str,
        job: str,
        rank: int,
        replica: int,
        settings: Settings,
        index: Joined,
        timeout_s: float,
        warn: Callable[[str], None],
        note: Callable[[m.Bad], None],
        meeting: Meeting | None = None,
    ) -> None:
        weight_of()  # is an error here, not in the worker host that will read it
        self._name = name
        self._job = job
        self._rank = rank
        self._replica = replica
        self._settings = settings
        self._index = index
        self._timeout_s = timeout_s
        self._warn = warn
        self._note = note
        self._meeting = meeting
        self._placed: dict[tuple[int, int], m.Speeds] = {}
        """How windows are placed: a daemon that is started anew has to know."""
        self._warned_copy = False
        self._later: list[int] = []
        self._windows = WindowClock()
        self.max_bytes: int | None = None
        """The largest batch that the ring is made for, once a daemon has said it."""
        self.link: Link | None = None
        self._address: str | None = None
        """Of the daemon that served us first. One that is started again is found there; another kind would
        know neither the other ranks nor the user's quota."""

    # ---- what a loader asks ------------------------------------------------------------------------

    def start(self, start: Start) -> None:
        """Attach, so that decoding begins."""
        self._attached(start, time.monotonic() + self._timeout_s)

    def seek(self, start: Start) -> None:
        """The next batch asked for will be another than the one that would follow."""
        self._windows.restarted()
        link = self.link
        if link is None or link.client.lost or not link.asked:
            return
        link.attachment.seek += 1
        with contextlib.suppress(ConnectionLost):  # then `next` attaches anew, at its position
            for release in link.attachment.forget_ready():
                link.client.send(release)
            link.client.send(m.Seek(link.attachment.loader, start.packed(), link.attachment.seek))

    def go_on_with(self, settings: Settings) -> None:
        """Leave, and attach with other settings when the next batch is asked for; helixd begins with them
        once all ranks have left."""
        self._settings, link = settings, self.link
        if link is None or link.client.lost or not link.asked:
            return
        # On the same connection: by it helixd knows that this process has left, and a private one stays.
        self.link = Link(self, link.client)
        link.detach()

    def next(self, start: Start) -> Taken:
        """The batch of a position, for the trainer: `take`, and `took`."""
        asked = time.monotonic()
        taken = self.take(start)
        self.took(start.at, asked)
        return taken

    def take(self, start: Start) -> Taken:
        """The batch of a position, which is the one after the last or the one sought.

        Raises Stalled, DaemonUnreachable, and the error that the loader ended with.
        """
        self._warn_later()
        deadline = time.monotonic() + self._timeout_s
        recoveries = 0
        while True:
            link = self._attached(start, deadline)
            try:
                self._tell_untold(link)
                link.client.tell_cores()
                ready = self._wait_ready(link, start.at, deadline)
                break
            except ConnectionLost:
                self.close()
                recoveries += 1
                if recoveries > RECOVERIES:
                    raise self._gone(recoveries, "without a batch") from None
                self._warn("helixd went away; another one takes over at the same position")
        self._keep_learned(link)
        return self._taken(link, ready)

    def poll(self, at: Position) -> Taken | None:
        """The batch of the position after the last, if it is there and the ring can spare it; never waits.

        A failure is left for `take` to raise at its position.
        """
        link = self.link
        if link is None or link.client.lost or not link.asked or link.attachment.failure is not None:
            return None
        try:
            if not link.client.wait(lambda: link.attachment.spare(at), 0.0):
                return None
        except ConnectionLost:
            return None
        ready = link.attachment.take(at)
        assert ready is not None  # it was to spare
        return self._taken(link, ready)

    def tell(self, at: Position) -> None:
        """Of a batch that was polled: what `take` says of others, to the user and to helixd."""
        self._warn_later()
        link = self.link
        if link is None:
            return
        link.attachment.reached(at.epoch)
        self._say(link, at)
        self._keep_learned(link)
        with contextlib.suppress(ConnectionLost):  # then the next batch is asked of another daemon
            link.client.tell_cores()

    def took(
        self, at: Position, asked: float, measured: m.Measured | None = None, tier: m.Tier | None = None
    ) -> None:
        """The batch of a position is about to be returned to the trainer, which asked for it then.
        `measured`: what an accelerator says of an earlier one; `tier`: how this one got there.

        Told with the release of the batch before, which is about to come: a message now would wake helixd on
        a core that the trainer wants to go on with.
        """
        taking = self._windows.taking(at, asked, measured)
        link = self.link
        if link is not None:
            with contextlib.suppress(ConnectionLost):  # then the next batch is asked of another daemon
                self._tell_untold(link)  # the one before, where no release came between
            link.attachment.untold = m.Took(link.attachment.loader, taking, tier)

    def now(self) -> float:
        """The clock of `took`."""
        return time.monotonic()

    def memory(self) -> memoryview | None:
        """The ring's memory, once there is one."""
        link = self.link
        return link.arena.memory if link is not None and link.arena is not None else None

    def _taken(self, link: Link, ready: m.Ready) -> Taken:
        return Taken(self._build(link, ready), ready.following, link.attachment.window)

    @staticmethod
    def _tell_untold(link: Link) -> None:
        took, link.attachment.untold = link.attachment.untold, None
        if took is not None:
            link.client.send(took)

    def computing(self) -> AbstractContextManager[None]:
        """What happens inside is computing the batch that was taken last."""
        return self._windows.computing()

    def close(self) -> None:
        """Leave the daemon. Batches that are still held stay valid; the rest of the ring's memory returns, so
        that the next ring finds room."""
        link, self.link = self.link, None
        if link is None:
            return
        link.detach()
        if link.arena is not None and self._settings.replicas == 1:  # others may hold what this one does not
            link.arena.abandon(list(link.attachment.held.values()))

    # ---- waiting -----------------------------------------------------------------------------------

    def _wait_ready(self, link: Link, at: Position, deadline: float) -> m.Ready:
        attachment = link.attachment
        attachment.reached(at.epoch)
        found: list[m.Ready] = []

        last = "is storage hanging, or a sample far longer than the rest?"
        if self._settings.chains:
            last += " Who takes a stream over makes all its samples once more; give timeout_s= as much"

        def take() -> bool:
            nonlocal last
            last = self._say(link, at) or last  # also while it waits: warnings say what for
            ready = attachment.take(at)
            if ready is not None:
                found.append(ready)
            return bool(found)

        if not link.client.wait(take, 0.0):
            link.client.send(m.Ask(attachment.loader, at))
            if not link.client.wait(take, max(0.0, deadline - time.monotonic())):
                raise Stalled(
                    f"loader {self._name!r}: no batch for step {at.step} of epoch {at.epoch} within "
                    f"{self._timeout_s:.0f} s; helixd is alive and has not finished it: {last}"
                )
        return found[0]

    def _say(self, link: Link, at: Position) -> str:
        """Tell the user of the bad samples of batches up to a position, and what helixd warns of. The last
        warning, or nothing."""
        attachment, last = link.attachment, ""
        for bad in attachment.bad_until(at):
            self._note(bad)
        while attachment.warnings:
            last = attachment.warnings.popleft()
            self._warn(last)
        return last

    @staticmethod
    def _keep_learned(link: Link) -> None:
        learned, link.attachment.learned = link.attachment.learned, None
        if learned is not None:
            keep_scales(learned)

    def _attached(self, start: Start, deadline: float) -> Link:
        link = self.link
        if link is not None and link.client.pid != os.getpid():
            raise UsageError(
                f"loader {self._name!r} belongs to process {link.client.pid}; a forked child needs its own"
            )
        recoveries = 0
        while link is None or link.client.lost or not link.asked:
            if self.link is not None and self.link.client.lost:
                self.close()
            try:
                link = self._attach(start, deadline)
            except ConnectionLost:
                recoveries += 1
                if recoveries > RECOVERIES:
                    raise self._gone(recoveries, "during attaching") from None
        return link

    def _attach(self, start: Start, deadline: float) -> Link:
        if self.link is None:
            self._address = self._address or service_socket() or embedded_address(self._job)
            self.link = Link(self, client_for(self._job, self._address))
        link, client, attachment = self.link, self.link.client, self.link.attachment
        attach = m.Attach(
            loader=attachment.loader,
            name=self._name,
            dp_rank=self._rank,
            replica=self._replica,
            settings=self._settings,
            indexes=tuple(IndexRef(os.path.abspath(i.path), i.root) for i in self._index.indexes),
            sys_path=_import_path(),
            start=start.packed(),
            max_bytes=self.max_bytes,
            scales=kept_scales(),
            placed=tuple(m.Placed(*first, speeds) for first, speeds in self._placed.items()),
        )
        if self._meeting is not None:
            self._meeting.introduce(client, attach, deadline)
        link.asked = True
        attachment.placed = self._placed
        attachment.name_of = partial(_name_of, self._index)  # not a method: that would keep us
        client.send(attach)

        def answered() -> bool:
            failure = attachment.failure
            if failure is not None and (failure.at is None or failure.at <= start.at):
                raise attachment.error()
            return attachment.state == "serving"

        if not client.wait(answered, max(0.0, deadline - time.monotonic())):
            raise Stalled(
                f"loader {self._name!r}: not attached within {self._timeout_s:.0f} s; helixd answers, but "
                "the first samples are not described or the ring's memory is not there"
            )
        self.max_bytes = attachment.max_bytes
        return link

    def _gone(self, times: int, when: str) -> DaemonUnreachable:
        return DaemonUnreachable(
            f"loader {self._name!r}: helixd went away {times} times {when}; what it said is on stderr of the "
            "trainer that started it, or in its journal"
        )

    # ---- batches -----------------------------------------------------------------------------------

    def _build(self, link: Link, ready: m.Ready) -> Batch:
        attachment, arena = link.attachment, link.arena
        assert arena is not None
        if attachment.may_hold(ready):
            attachment.held[ready.generation] = (ready.offset, ready.nbytes)
            give_back = partial(_give_back, link.client, attachment, ready.generation)
            extent = arena.lease(ready.offset, ready.nbytes, give_back)
        else:
            gc.collect()  # batches in reference cycles would be copied around for ever
            extent = arena.copy(ready.offset, ready.nbytes)
            _give_back(link.client, attachment, ready.generation)
            self._later.append(len(attachment.held))
        return batch_over(extent, ready, attachment.schema, self._index)

    def _warn_later(self) -> None:
        """Of the batch before: a warning that is made an error must not cost the batch that it is about."""
        while self._later:
            self._warn_copy(self._later.pop())

    def _warn_copy(self, held: int) -> None:
        if self._warned_copy:
            return
        self._warned_copy = True
        self._warn(
            f"rank {self._rank} holds {held} batches of a ring of {self._settings.ring}: further ones are "
            f"private copies, which costs a copy each; set ring={max(held, self._settings.ring) + 2}, or let "
            "batches go"
        )


def _name_of(index: Joined, sample: int) -> str:
    return index[sample].key if sample < len(index) else f"sample {sample}"


def _give_back(client: Client, attachment: Attachment, generation: int) -> None:
    client.release(codec.encode(attachment.release(generation)))


def _import_path() -> tuple[str, ...]:
    """Where this process imports from, for workers to find the same modules."""
    there = (os.path.abspath(p) for p in sys.path if p == "" or os.path.exists(p))
    return tuple(p for p in there if _is_text(p))[:256]


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:  # a name that is no UTF-8 cannot be sent
        return False
    return True
