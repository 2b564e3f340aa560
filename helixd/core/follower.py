"""A node of a loader that another one plans for: it asks for windows until it has them."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from helixd.core.actions import Log
from helixd.core.team import ASKED_S, BEAT_S, SILENT_S, AskedTask, Team
from helixd.core.windows import Ahead
from libhelix.errors import ProtocolError
from libhelix.plan.planner import Window
from libhelix.wire import messages as m
from libhelix.wire import peer as p
from libhelix.wire.settings import Base, PackedBase, PackedStart

if TYPE_CHECKING:
    from helixd.core.stream import Failure

FIRST_BEAT_S = 0.1
"""How often it is asked in the beginning, when connections are still being made."""
ALONE_S = 5.0
"""When the leader is not heard for so long, nodes plan for themselves where they can."""
MISFIT_LIMIT_S = 30.0
"""Settings may differ for a moment, while ranks go over to new ones."""


@dataclass(eq=False, kw_only=True)
class Follower(Team):
    """The leader is another node."""

    heard: float | None = None
    """When the leader was heard last."""
    silent_since: float | None = None
    """Or since when it is waited for."""
    _told_over: bool = False
    """Whether the leader has said that the loader is over."""
    _misfit: tuple[float, str] | None = None
    _parts: dict[Base, dict[int, bytes]] = field(default_factory=dict)
    _wanted: frozenset[Base] = frozenset()
    """Windows that were asked for."""
    _alone: deque[p.Held] = field(default_factory=lambda: deque(maxlen=p.MAX_ALONE))
    """The last that were planned here."""

    def beat(self, now: float) -> None:
        """Ask for what is missing, and tell of this node's load."""
        if now < self.beat_at:
            return
        beginning = not self.joined and now < (self.silent_since or now) + ALONE_S
        self.beat_at = now + (FIRST_BEAT_S if beginning else BEAT_S)
        if self.stream.failure is not None:
            self.over(self.stream.failure)
            if self.stream.over:
                return  # else there are batches before its end, for which windows may be missing
        self._go_alone(now)
        if self.joined:
            self._want()
        else:
            self._join()

    def over(self, failure: Failure) -> None:
        """Said again until the leader says so, too."""
        if not self._told_over:
            self.say(self.leader.key, self.over_of(failure))

    def said(self, key: str, message: p.PeerMessage, now: float) -> None:
        """The leader said something; nobody else is heard."""
        if key == self.leader.key:
            self.heard = self.silent_since = now
            self._leader_said(message, now)

    def waits_for(self, now: float) -> str | None:
        """The leader, or what of it."""
        where = self.leader.address
        if self.heard is None:
            return (
                f"the leader, helixd of rank 0's node at {where}, has never answered; is that port open? "
                "HELIX_PEERS=off lets every node plan for itself"
            )
        if now - self.heard > SILENT_S:
            silent_s = now - self.heard
            return f"the leader, helixd of rank 0's node at {where}, was last heard {silent_s:.0f} s ago"
        if not self.joined:
            return "the leader does not know this node's ranks yet"
        if not self.stream.windows.missing:
            return None
        return f"the leader, helixd of rank 0's node at {where}, has not planned its window yet"

    def view(self) -> dict[str, Any]:
        """With how long the leader is silent."""
        silent_s = None if self.heard is None else round(self.now - self.heard, 1)
        return {**super().view(), "joined": self.joined, "silent_s": silent_s}

    def _join(self) -> None:
        stream = self.stream
        join = p.Join(
            p.PEER_PROTOCOL, self.version, stream.settings, self.ranks, self.entries(), stream.number
        )
        self.say(self.leader.key, join)

    def _want(self) -> None:
        stream = self.stream
        stands = {(c.base, c.next) for c in stream.consumers.values() if not stream.ended(c.next)}
        said = [PackedStart(PackedBase.of(base), at) for base, at in sorted(stands, key=lambda s: s[1])[:64]]
        windows = p.packed(list(stream.windows.missing))
        told = max(self.log, default=None)
        held = sorted(stream.windows.planned, key=lambda base: (base.epoch, base.step))[-p.MAX_HELD :]
        last = tuple(stream.windows.planned[base].held for base in held)
        alone = tuple(self._alone)
        self.say(
            self.leader.key,
            p.Want(tuple(said), windows, stream.fingerprint, self.load(), told, last, alone),
        )

    def _go_alone(self, now: float) -> None:
        """Plan here, too, where the leader is not heard and that is sure to give the same."""
        stream = self.stream
        if self.silent_since is None:
            self.silent_since = now
        silent = now >= self.silent_since + ALONE_S
        static = stream.settings.placement == "static"
        if stream.windows.remote and silent and stream.windows.missing and static:
            stream.plan_here(True)
            self.out.append(Log("warning", f"loader {stream.name!r}: {self.waits_for(now)}; plans here, too"))

    def want(self) -> None:
        """Ask for windows that are missing, if they were not asked for yet."""
        missing = frozenset(self.stream.windows.missing)
        anew, self._wanted = missing - self._wanted, missing
        if self._parts:
            self._parts = {base: parts for base, parts in self._parts.items() if base in missing}
        if anew and self.joined:
            self._want()

    def planned(self, ahead: Ahead) -> None:
        """The leader is told, once it is heard: it may have planned the same otherwise."""
        self._alone.append(ahead.held)

    def _leader_said(self, message: p.PeerMessage, now: float) -> None:
        match message:
            case p.Joined():
                self._misfit = None
                self.stream.plan_here(False)
                if not self.joined:
                    self.joined = True
                    self._want()
            case p.Unknown():
                self.joined = False
                self._join()
            case p.Placing(placed):
                before = max(self.log, default=None)
                self.learn(placed)
                if max(self.log, default=None) != before:  # else it is said once a second anyway
                    self._want()
            case p.Acquaint():
                self.acquainted(message)
            case p.Misfit(text):
                since = self._misfit[0] if self._misfit is not None else now
                self._misfit = (since, text)
                if now >= since + MISFIT_LIMIT_S:
                    self.stream.fail("conflict", text)
            case p.Share():
                self._shared_part(message)
            case p.Describe(number, epoch, ids, occurrences):
                known = max(ids, default=math.inf) < self.stream.settings.index_samples
                if known and not self.stream.over and len(ids) == len(occurrences):
                    task = AskedTask(self.stream.number_task(), self.stream, epoch, ids, ids, occurrences)
                    task.ask, task.until = number, now + ASKED_S
                    self.stream.describes.append(task)
            case p.Over() if message.meeting == self.meeting:
                self.heard_over(message)
                failure = self.stream.failure
                # It may not have heard yet that the loader ends earlier.
                self._told_over = failure is not None and failure.at == message.at
            case _:
                pass

    def _shared_part(self, share: p.Share) -> None:
        base = share.base.unpacked()
        if base not in self.stream.windows.missing or share.part >= share.of:
            self._parts.pop(base, None)
            return
        parts = self._parts.setdefault(base, {})
        parts[share.part] = share.data
        if len(parts) < share.of:
            return
        del self._parts[base]
        try:
            shared = p.unseal(b"".join(parts[i] for i in range(share.of)))
        except (KeyError, ProtocolError) as e:
            self.out.append(Log("error", f"loader {self.stream.name!r}: the leader shared no window: {e}"))
            return
        if shared.base == share.base:
            self.stream.shared(shared)

    def described(self, task: AskedTask, schema: m.Schema, rows: tuple[m.Row, ...]) -> None:
        """Rows for the leader."""
        self.say(self.leader.key, p.Rows(task.ask, task.epoch, schema, rows))


def ahead_of(shared: p.Shared, dp_size: int) -> Ahead:
    """The window as a node has it: the batches of its own ranks, and sums of the rest."""
    base = shared.base.unpacked()
    at = {rank: i for i, rank in enumerate(shared.ranks)}
    steps = tuple(
        tuple(tuple(micro[at[r]] if r in at else () for r in range(dp_size)) for micro in step)
        for step in shared.steps
    )
    window = Window(base, shared.end, steps, shared.after.unpacked(), (), ())
    ahead = Ahead(window, dict(shared.rows), shared.fillers)
    ahead.know(shared.costs, shared.samples, shared.parts, shared.digest)
    return ahead
