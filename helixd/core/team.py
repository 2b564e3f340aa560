"""A loader whose ranks are on several nodes: the leader plans, and tells others what they need of it.

follower:  unknown --Join--> joined --Want--> Share, every window that its ranks need; asked every second
leader:    plans, for all; describing is shared out over who has joined

Only descriptors travel. Who gets no answer asks again; so messages may be lost, doubled, late or out of
order.

With placement="dynamic" measured load decides which rank of a step has which of its samples. How, is a log:
an entry says from which window on samples are dealt out by which speeds. It is final when it is issued,
which the leader does for windows that it has not begun to plan; and it plans none of them before every node
has the entry and has told its trainers. So nobody can have a batch of a window that was placed otherwise than
the next leader places it, whichever daemons die: any trainer knows all that counts.

Static plans follow from settings and samples alone. A node that hears nothing of its leader makes them itself
until it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from helixd.core.actions import Action, Payload, PeerSend, Send
from helixd.core.aside import ASIDE_RANK
from helixd.core.batch import DescribeTask
from helixd.core.guests import Guests
from helixd.core.remote import Remote
from libhelix.plan.placement import Placement, most_placed
from libhelix.wire import messages as m
from libhelix.wire import peer as p
from libhelix.wire.codec import short
from libhelix.wire.settings import Base, Position

if TYPE_CHECKING:
    from helixd.core.consumer import Holder
    from helixd.core.stream import Failure, Stream
    from helixd.core.windows import Ahead

K = TypeVar("K")
T = TypeVar("T")
BEAT_S = 1.0
"""How often what is waited for is asked for again, and load told."""
MOST_ACQUAINTANCES = 64 + m.MAX_HELPERS
"""So many nodes, the last ones, are known to be late or to have cores to spare."""
ASKED_S = 3.0
"""What a node has not described for the leader by then, that has described long since."""
SILENT_S = 3.0
"""A node that was not heard for so long may be gone."""


def renew(known: dict[K, T], key: K, value: T, most: int) -> None:
    """Enter something as the newest of a few: beyond so many the oldest is forgotten."""
    known.pop(key, None)
    known[key] = value
    if len(known) > most:
        del known[next(iter(known))]


@dataclass(eq=False)
class AskedTask(DescribeTask):
    """A describe task of the leader, done here. `ask`: its number there; `until`: when that has done it
    itself."""

    ask: int = 0
    until: float = 0.0

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for it."""
        team = self.stream.team
        return not self.stream.over and team is not None and team.now < self.until


@dataclass(eq=False, kw_only=True)
class Team:
    """The nodes of one loader, as one of them sees them. `me` is its public key, `ranks` are its own."""

    stream: Stream
    me: str
    leader: m.Peer
    ranks: tuple[int, ...]
    link: int
    out: list[Action]
    version: str
    load: Callable[[], p.Load]
    acquaint: Callable[[tuple[m.Peer, ...]], None]
    """These nodes are to be heard, and spoken to."""
    workers: Callable[[], int]
    meeting: int = 0
    """Which loader of this name it is, as all nodes have counted."""
    helper_keys: tuple[str, ...] = ()
    """Of nodes without ranks that may come; the leader alone knows them."""
    leads: bool = False
    """Whether this node plans."""
    helps: bool = False
    """Whether this node has no rank."""
    joined: bool = False
    """Whether the leader knows this node."""
    now: float = 0.0
    """The time of the event that is being handled."""
    beat_at: float = 0.0
    log: dict[tuple[int, int], m.Speeds] = field(default_factory=dict)
    """By which speeds windows are placed, by the epoch and step from which on."""

    def __post_init__(self) -> None:
        self.remote = Remote(self.stream, self.out, self.say)
        self.guests = Guests(
            self.stream,
            ASIDE_RANK,
            self.now,
            link=self.link,
            say=self.say,
            behind_us=self._behind_us,
            queue_us=lambda now: self.remote.queue_us(now, self.workers()),
        )

    def _behind_us(self, now: float, guests_us: int) -> int:
        here_us = self.remote.behind_us(now, self.workers(), guests_us)
        return max(here_us, self.load().behind_us)

    # ---- samples that another node decodes -----------------------------------------------------------

    def acquainted(self, message: p.Acquaint) -> None:
        """The leader knows nodes that can help, or that want help."""
        peers = tuple(peer for peer in message.peers if peer.key != self.me)
        self.acquaint(peers)
        if message.helps:
            spare = zip(message.peers, message.spare)
            known = ((peer, millis / 1000) for peer, millis in spare if peer in peers)
            self.remote.acquainted(known, self.now)
            self.remote.forget(len(self.remote.helpers) - MOST_ACQUAINTANCES)
        else:
            for peer in peers:
                renew(self.guests.hosts, peer.key, None, MOST_ACQUAINTANCES)

    def errand(self, key: str, message: p.ErrandMessage, payload: Payload, now: float) -> None:
        """A node speaks of a sample that one of the two decodes for the other."""
        if isinstance(message, p.Decoded | p.Declined):
            self.remote.said(key, message, payload, now)
        else:
            self.guests.said(key, message, now)

    def unreached(self) -> None:
        """helixd cannot get at this loader's rings: it neither helps nor is helped."""
        self.remote.turn_off()
        self.guests.refused = True

    # ---- what both say -----------------------------------------------------------------------------

    def learn(self, placed: Iterable[m.Placed]) -> None:
        """Entries of the log, from a trainer, a node or the leader; this node's trainers are told."""
        for one in sorted(placed, key=lambda one: (one.epoch, one.step)):
            first = one.epoch, one.step
            if first in self.log:
                continue
            self.log[first] = one.speeds
            for holder in self.stream.holders():
                self.out.append(Send(holder.conn, m.Dealt(holder.loader, one)))
        while len(self.log) > most_placed(len(self.log[min(self.log)]) if self.log else 1):
            del self.log[min(self.log)]

    def tell(self, holder: Holder) -> None:
        """Tell a trainer that has come what the log says."""
        self.out += [Send(holder.conn, m.Dealt(holder.loader, one)) for one in self.entries()]

    def entries(self) -> tuple[m.Placed, ...]:
        """The log."""
        return tuple(m.Placed(*first, self.log[first]) for first in sorted(self.log))

    def say(self, key: str, message: p.PeerMessage) -> None:
        """Say something of this loader to a node. It may get lost."""
        if key != self.me:
            self.out.append(PeerSend(self.link, key, p.Said(self.stream.name, message)))

    def heard_over(self, over: p.Over) -> None:
        """The loader has ended on another node."""
        if over.at is None:
            self.stream.fail(over.code, over.text, over.sample)
        else:
            self.stream.fail_from(over.code, over.text, over.at, over.sample)

    def close(self) -> None:
        """Nobody here takes batches of it any more."""
        self.remote.end()
        self.guests.end()

    def over_of(self, failure: Failure) -> p.Over:
        """What is said of a failure."""
        return p.Over(failure.code, short(failure.text), failure.at, failure.sample, self.meeting)

    # ---- what differs ------------------------------------------------------------------------------

    def deadline(self) -> float:
        """When `beat` is due."""
        return self.beat_at

    def beat(self, now: float) -> None:
        """Ask again for what has not come; tell how this node is doing."""
        raise NotImplementedError

    def said(self, key: str, message: p.PeerMessage, now: float) -> None:
        """A peer said something of this loader."""
        raise NotImplementedError

    def over(self, failure: Failure) -> None:
        """The loader has ended here: it ends everywhere."""
        raise NotImplementedError

    def waits_for(self, now: float) -> str | None:
        """What of other nodes is waited for, for people; None for nothing."""
        raise NotImplementedError

    def view(self) -> dict[str, Any]:
        """How the nodes stand, for `helixctl status`; the leader knows all, others only the leader."""
        last = max(self.log, default=None)
        return {
            "leads": self.leads,
            "leader": self.leader.address,
            "waits_for": self.waits_for(self.now),
            "placed_since": list(last) if last is not None else None,
            "remote": self.remote.view(),
            "guests": len(self.guests.filling) + len(self.guests.sending),
        }

    def want(self) -> None:
        """Ask for windows that are missing, if they were not asked for yet."""

    def described(self, task: AskedTask, schema: m.Schema, rows: tuple[m.Row, ...]) -> None:
        """Rows that the leader has asked for are there."""

    def stands(self) -> list[tuple[Base, Position]]:
        """Where ranks of other nodes stand, for whom this one plans."""
        return []

    def may_plan(self, base: Base) -> bool:
        """Whether a window may be planned here."""
        del base
        return True

    def placement(self, base: Base) -> Placement | None:
        """By which a window is dealt out to nodes; None for as the order says."""
        del base
        return None

    def planned(self, ahead: Ahead) -> None:
        """A window is planned here."""

    def share_out(self, task: DescribeTask) -> bool:
        """Whether another node describes these."""
        del task
        return False
