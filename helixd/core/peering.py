"""A job's link to other nodes, and the nodes of each of its loaders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from helixd.core.actions import Action, ClosePeers, KnowPeers, OpenPeers, Send
from helixd.core.follower import Follower
from helixd.core.helping import Helping
from helixd.core.leader import Leader, Node
from helixd.core.team import MOST_ACQUAINTANCES, Team, renew
from libhelix.wire import messages as m
from libhelix.wire import peer as p
from libhelix.wire.codec import short

if TYPE_CHECKING:
    from helixd.core.stream import Stream


MOST_NODES = 4096
MOST_TABLES = 64
"""As many loaders may a job have."""
MOST_KNOWN = MOST_NODES + MOST_ACQUAINTANCES
"""Each takes a socket."""


@dataclass(eq=False)
class Table:
    """The nodes of a loader, as its trainers say; of all but the leader only the leader's."""

    leader: m.Peer
    ranks: tuple[int, ...]
    """This node's."""
    nodes: dict[str, m.Peer] = field(default_factory=dict)
    helpers: tuple[str, ...] = ()
    """Keys of nodes without ranks that may come."""
    address: str | None = None
    """Where this node is to be reached, if it is one of those."""
    meeting: int = 0
    """Which loader of its name it is."""


@dataclass(eq=False)
class Peering:
    """What a job knows of other nodes. There is a link once a trainer has asked for it."""

    out: list[Action]
    numbers: Callable[[], int]
    version: str
    link: int | None = None
    met: m.Met | None = None
    tables: dict[str, Table] = field(default_factory=dict)
    acquaintances: dict[str, m.Peer] = field(default_factory=dict)
    """Nodes that the leader has made known, the newest last."""
    _coming: dict[int, dict[str, m.Peer]] = field(default_factory=dict)
    """The nodes that a connection has begun to tell of."""
    _waiting: list[int] = field(default_factory=list)
    """Connections that asked for the link while it was being made."""

    def meet(self, conn: int, meet: m.Meet) -> None:
        """A trainer asks for the link."""
        if self.met is not None:
            self.out.append(Send(conn, self.met))
            return
        self._waiting.append(conn)
        if self.link is None:
            self.link = self.numbers()
            self.out.append(OpenPeers(self.link, meet.host, meet.keys, meet.port))

    def opened(self, keys: m.Keys, port: int) -> None:
        """The link is there."""
        self.met = m.Met(keys, port)
        self.out += [Send(conn, self.met) for conn in self._waiting]
        self._waiting.clear()

    def failed(self, text: str) -> None:
        """The link cannot be made; who asked for it hears so, and may ask once more."""
        self.link = None
        self.out += [Send(conn, m.Unmet(short(text))) for conn in self._waiting]
        self._waiting.clear()

    def know(self, conn: int, peers: m.Peers) -> None:
        """A trainer says which nodes a loader has; each does, and once more for one made anew."""
        coming = self._coming.setdefault(conn, {})
        coming |= {node.key: node for node in peers.nodes}
        if len(coming) > MOST_NODES:
            coming.clear()
        if not peers.last:
            return
        nodes = self._coming.pop(conn)
        self._enter(peers.name, Table(peers.leader, peers.ranks, nodes, peers.helpers, meeting=peers.meeting))

    def help(self, name: str, leader: m.Peer, address: str) -> None:
        """This node has no rank of a loader, and helps those that have."""
        self._enter(name, Table(leader, (), address=address))

    def _enter(self, name: str, table: Table) -> None:
        renew(self.tables, name, table, MOST_TABLES)
        self._tell_known()

    def acquaint(self, peers: tuple[m.Peer, ...]) -> None:
        """These are to be heard, too."""
        for peer in peers:
            before = self.acquaintances.get(peer.key)
            renew(self.acquaintances, peer.key, peer, MOST_ACQUAINTANCES)
            if before != peer:
                self._tell_known()

    def _tell_known(self) -> None:
        if self.link is not None:
            # Helpers say where they are when they come.
            known = {key: m.Peer(key, "") for table in self.tables.values() for key in table.helpers}
            known |= self.acquaintances
            known |= {peer.key: peer for t in self.tables.values() for peer in (t.leader, *t.nodes.values())}
            if self.met is not None:
                known.pop(self.met.keys.public, None)
            self.out.append(KnowPeers(self.link, tuple(known.values())[-MOST_KNOWN:]))

    def team(self, stream: Stream, load: Callable[[], p.Load], workers: Callable[[], int]) -> Team | None:
        """The nodes of a new loader; None where it has no others."""
        table = self.tables.get(stream.name)
        if table is None or self.met is None or self.link is None:
            return None
        me = self.met.keys.public
        common: dict[str, Any] = {
            "stream": stream,
            "me": me,
            "leader": table.leader,
            "ranks": table.ranks,
            "link": self.link,
            "out": self.out,
            "version": self.version,
            "load": load,
            "acquaint": self.acquaint,
            "workers": workers,
            "meeting": table.meeting,
            "helper_keys": table.helpers,
        }
        if table.address is not None:
            return Helping(**common, address=table.address)
        if table.leader.key != me:
            return Follower(**common)
        return Leader(
            **common, nodes={key: Node(i, peer) for i, (key, peer) in enumerate(table.nodes.items())}
        )

    def left(self, conn: int) -> None:
        """A trainer is gone."""
        self._coming.pop(conn, None)

    def close(self) -> None:
        """The job is over."""
        if self.link is not None:
            self.out.append(ClosePeers(self.link))
