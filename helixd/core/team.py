"""A loader whose ranks are on several nodes: the leader plans, and tells others what they need of it.

follower:  unknown --Join--> joined --Want--> Share, every window that its ranks need; asked every second
leader:    waits --every rank's node has joined--> plans; describing is shared out over all

Only descriptors travel. Who gets no answer asks again; so messages may be lost, doubled, late or out of
order. A window that was placed by load is placed the same for everybody, also by a leader that is started
anew: nodes and trainers bring it the speeds that it was placed by, and nothing is planned before they all
have come.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from helixd.core.actions import Action, Log, PeerSend
from helixd.core.batch import DescribeTask
from helixd.core.windows import Ahead
from libhelix.errors import ProtocolError
from libhelix.plan.placement import Placement
from libhelix.plan.planner import Window
from libhelix.wire import messages as m
from libhelix.wire import peer as p
from libhelix.wire.codec import short
from libhelix.wire.settings import Base, PackedBase, Position, differences

if TYPE_CHECKING:
    from helixd.core.stream import Failure, Stream

BEAT_S = 1.0
"""How often what is waited for is asked for again, and load told."""
DESCRIBE_LIMIT_S = 1.0
"""Rows that another node has not sent by then are described here, too."""
SILENT_S = 3.0
"""A node that was not heard for so long is given nothing to describe."""
MISFIT_LIMIT_S = 10.0
"""Settings may differ for a moment, while ranks go over to new ones."""
LEVEL = 0.05
"""Speeds that are so near to one another are the same."""


@dataclass(eq=False)
class AskedTask(DescribeTask):
    """A describe task of the leader, done here. `ask`: its number there."""

    ask: int = 0

    @property
    def wanted(self) -> bool:
        """Whether the loader goes on."""
        return not self.stream.over


@dataclass(eq=False)
class Node:
    """Another node, as the leader sees it. `ranks` are known once it has joined."""

    number: int
    peer: m.Peer
    ranks: tuple[int, ...] = ()
    heard: float | None = None
    stands: list[tuple[Base, Position]] = field(default_factory=list)
    windows: dict[Base, None] = field(default_factory=dict)
    """Those that it waits for."""
    load: p.Load = p.Load()  # noqa: RUF009  # frozen
    asked: dict[int, tuple[DescribeTask, float]] = field(default_factory=dict)
    """What it describes, and since when, by number."""


@dataclass(eq=False)
class Team:
    """The nodes of one loader. `send(key, message)` is the link; `me` is this node's public key."""

    stream: Stream
    me: str
    leader: m.Peer
    nodes: dict[str, Node]
    """All of them, this one too; for the leader only."""
    link: int
    out: list[Action]
    version: str
    load: Callable[[], p.Load]
    joined: bool = False
    heard: float | None = None
    """When the leader was heard last; for followers."""
    ranks: set[int] = field(default_factory=set)
    """Of this node, all that ever came."""
    _beat_at: float = 0.0
    _told_over: bool = False
    _misfit: tuple[float, str] | None = None
    _parts: dict[Base, dict[int, bytes]] = field(default_factory=dict)
    _turn: int = 0
    _placed: dict[tuple[int, int], m.Speeds] = field(default_factory=dict)
    """By which windows were placed, by epoch and first step."""
    _wanted: frozenset[Base] = frozenset()
    """Windows that were asked for."""
    now: float = 0.0
    """The time of the event that is being handled."""

    # ---- both --------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this node plans."""
        return self.leader.key == self.me

    def came(self, rank: int) -> None:
        """A rank of this node is there."""
        if rank in self.ranks:
            return
        self.ranks.add(rank)
        if not self.leads:
            self.joined = False  # not for this one
            self._beat_at = 0.0

    def placed(self, placed: Iterable[m.Placed]) -> None:
        """Windows were placed so, as a trainer or a node remembers."""
        for one in placed:
            self._remember((one.epoch, one.step), one.speeds)

    def _remember(self, first: tuple[int, int], speeds: m.Speeds) -> None:
        if speeds:
            self._placed.setdefault(first, speeds)
            while len(self._placed) > p.MAX_PLACED:
                del self._placed[next(iter(self._placed))]

    def deadline(self) -> float:
        """When `beat` is due."""
        return self._beat_at

    def beat(self, now: float) -> None:
        """Ask again for what has not come; tell how this node is doing."""
        if now < self._beat_at:
            return
        self._beat_at = now + BEAT_S
        if self.stream.failure is not None:
            if not self._told_over:
                self.over(self.stream.failure)
        elif self.leads:
            self._overdue(now)
        elif not self.joined:
            self._join()
        else:
            self._want()

    def over(self, failure: Failure) -> None:
        """The loader has ended here: it ends everywhere."""
        said = p.Over(failure.code, short(failure.text), failure.at, failure.sample)
        if self.leads:
            for node in self.nodes.values():
                self._say(node.peer.key, said)
            self._told_over = True  # who has not heard it hears it when it asks
        elif not self._told_over:
            self._say(self.leader.key, said)

    def said(self, key: str, message: p.PeerMessage, now: float) -> None:
        """A peer said something of this loader."""
        if self.leads:
            node = self.nodes.get(key)
            if node is not None and key != self.me:
                node.heard = now
                self._follower_said(node, message)
        elif key == self.leader.key:
            self.heard = now
            self._leader_said(message, now)

    def waits_for(self, now: float) -> str | None:
        """What of other nodes is waited for, for people; None for nothing."""
        if self.leads:
            missing = self._missing_ranks()
            if missing:
                some = ", ".join(map(str, missing[:8])) + (" and others" if len(missing) > 8 else "")
                return (
                    f"the nodes of ranks {some} have not joined; look at what these say, and whether they "
                    "can reach this node's port"
                )
            return None
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
        return f"the leader, helixd of rank 0's node at {where}, has not planned its window yet"

    def _say(self, key: str, message: p.PeerMessage) -> None:
        if key != self.me:
            self.out.append(PeerSend(self.link, key, p.Said(self.stream.name, message)))

    # ---- the follower ------------------------------------------------------------------------------

    def _join(self) -> None:
        placed = tuple(m.Placed(epoch, step, speeds) for (epoch, step), speeds in self._placed.items())
        ranks = tuple(sorted(self.ranks))
        settings = self.stream.settings
        self._say(
            self.leader.key,
            p.Join(p.PEER_PROTOCOL, self.version, settings, ranks, placed),
        )

    def _want(self) -> None:
        stream = self.stream
        stands = {(c.base, c.next) for c in stream.consumers.values() if not stream.ended(c.next)}
        said = [p.Stand(PackedBase.of(base), at) for base, at in sorted(stands, key=lambda s: s[1])[:64]]
        self._say(self.leader.key, p.Want(tuple(said), p.packed(list(stream.windows.missing)), self.load()))

    def want(self) -> None:
        """Ask for windows that are missing, if they were not asked for yet."""
        missing = frozenset(self.stream.windows.missing)
        anew, self._wanted = missing - self._wanted, missing
        if anew and self.joined:
            self._want()

    def _leader_said(self, message: p.PeerMessage, now: float) -> None:
        match message:
            case p.Joined(ranks):
                self._misfit = None
                if not self.joined and set(ranks) >= self.ranks:
                    self.joined = True
                    self._want()
            case p.Unknown():
                self.joined = False
                self._join()
            case p.Misfit(text):
                since = self._misfit[0] if self._misfit is not None else now
                self._misfit = (since, text)
                if now >= since + MISFIT_LIMIT_S:
                    self.stream.fail("conflict", text)
            case p.Share():
                self._shared_part(message)
            case p.Describe(number, epoch, ids, occurrences):
                if not self.stream.over and len(ids) == len(occurrences):
                    task = AskedTask(self.stream.number_task(), self.stream, epoch, ids, ids, occurrences)
                    task.ask = number
                    self.stream.describes.append(task)
            case p.Over():
                self._told_over = True
                self._heard_over(message)
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
            data = zlib.decompressobj().decompress(
                b"".join(parts[i] for i in range(share.of)), p.MAX_SHARED_BYTES
            )
            shared = p.decode_shared(data)
        except (zlib.error, KeyError, ProtocolError) as e:
            self.out.append(Log("error", f"loader {self.stream.name!r}: the leader shared no window: {e}"))
            return
        if shared.base == share.base:
            self._remember((base.epoch, base.step), shared.speeds)
            self.stream.shared(shared)

    def described(self, task: AskedTask, schema: m.Schema, rows: tuple[m.Row, ...]) -> None:
        """Rows for the leader."""
        self._say(self.leader.key, p.Rows(task.ask, schema, rows))

    # ---- the leader --------------------------------------------------------------------------------

    def _follower_said(self, node: Node, message: p.PeerMessage) -> None:
        failure = self.stream.failure
        match message:
            case p.Join():
                self._joins(node, message)
            case p.Want(stands, windows, load):
                if failure is not None and failure.at is None:
                    self._say(node.peer.key, p.Over(failure.code, short(failure.text), None, failure.sample))
                    return
                node.load = load
                if not node.ranks:
                    self._say(node.peer.key, p.Unknown())
                    return
                if failure is not None:
                    said = p.Over(failure.code, short(failure.text), failure.at, failure.sample)
                    self._say(node.peer.key, said)
                node.stands = [(s.base.unpacked(), s.at) for s in stands]
                node.windows = dict.fromkeys(base.unpacked() for base in windows)
                for base in list(node.windows):
                    ahead = self.stream.windows.planned.get(base)
                    if ahead is not None:
                        self._share(node, ahead)
            case p.Rows(number, schema, rows):
                self._rows(node, number, schema, rows)
            case p.Over():
                self._heard_over(message)
            case _:
                pass

    def _joins(self, node: Node, join: p.Join) -> None:
        ours, where = self.stream.settings, f"node {node.number} ({node.peer.address})"
        if join.protocol != p.PEER_PROTOCOL or join.version != self.version:
            text = f"{where} runs datahelix {join.version}, and rank 0's node {self.version}; install one"
        elif different := differences(ours, join.settings):
            text = f"{where} has other settings than rank 0's node: {'; '.join(different)}"
        elif taken := sorted(
            set(join.ranks) & {r for n, ranks in self._known() if n is not node for r in ranks}
        ):
            text = f"{where} has ranks {taken}, which another node has, too; give each its own dp_rank"
        else:
            text = ""
        if text:
            self._say(node.peer.key, p.Misfit(short(f"loader {self.stream.name!r}: {text}")))
            return
        node.ranks = join.ranks
        self.placed(join.placed)
        self._say(node.peer.key, p.Joined(node.ranks))

    def _known(self) -> Iterable[tuple[Node, Sequence[int]]]:
        for node in self.nodes.values():
            yield node, (tuple(sorted(self.ranks)) if node.peer.key == self.me else node.ranks)

    def _missing_ranks(self) -> list[int]:
        known = {rank for _, ranks in self._known() for rank in ranks}
        return [rank for rank in range(self.stream.settings.dp_size) if rank not in known]

    def may_plan(self) -> bool:
        """Whether every rank's node is known, with what it remembers."""
        return self.leads and not self._missing_ranks()

    def stands(self) -> list[tuple[Base, Position]]:
        """Where ranks of other nodes stand."""
        return [stand for node in self.nodes.values() for stand in node.stands]

    def placement(self, base: Base) -> Placement | None:
        """By which a window is dealt out to nodes."""
        if self.stream.settings.placement == "static":
            return None
        first = (base.epoch, base.step)
        if first not in self._placed:
            self._remember(first, self._speeds())
        speeds = self._placed[first]
        return Placement(tuple(tuple(ranks) for _, ranks in self._known()), speeds)

    def _speeds(self) -> m.Speeds:
        loads = [self.load() if node.peer.key == self.me else node.load for node in self.nodes.values()]
        known = sorted(load.capacity for load in loads if load.capacity)
        usual = known[len(known) // 2] if known else 1000
        found = [load.capacity or usual for load in loads]
        even = max(found) <= min(found) * (1 + LEVEL)
        return tuple(1000 if even else max(1, speed) for speed in found)

    def planned(self, ahead: Ahead) -> None:
        """A window is planned: nodes that wait for it get what they need."""
        for node in self.nodes.values():
            if ahead.window.base in node.windows:
                self._share(node, ahead)

    def _share(self, node: Node, ahead: Ahead) -> None:
        node.windows.pop(ahead.window.base, None)
        shared = share_of(
            ahead, node.ranks, self.stream.schema, self.stream.skips.get(ahead.window.base.epoch)
        )
        data = zlib.compress(p.encode(shared), 1)
        size = p.SHARE_PART_BYTES
        parts = [data[a : a + size] for a in range(0, len(data), size)]
        for i, part in enumerate(parts):
            self._say(node.peer.key, p.Share(shared.base, i, len(parts), part))

    # ---- describing, shared out --------------------------------------------------------------------

    def share_out(self, task: DescribeTask) -> bool:
        """Whether another node describes these: the one with the least to do, by turns."""
        nodes = list(self.nodes.values())
        self._turn += 1
        order = nodes[self._turn % len(nodes) :] + nodes[: self._turn % len(nodes)]
        node = min((n for n in order if self._describes(n)), key=self._queued, default=None)
        if node is None or node.peer.key == self.me:
            return False
        node.asked[task.number] = (task, self.now)
        self._say(node.peer.key, p.Describe(task.number, task.epoch, task.ids, task.occurrences))
        return True

    def _describes(self, node: Node) -> bool:
        heard = node.heard is not None and self.now - node.heard < SILENT_S
        return node.peer.key == self.me or (bool(node.ranks) and heard)

    def _queued(self, node: Node) -> int:
        return len(self.stream.describes) if node.peer.key == self.me else len(node.asked)

    def _rows(self, node: Node, number: int, schema: m.Schema, rows: tuple[m.Row, ...]) -> None:
        task, _ = node.asked.get(number, (None, 0.0))
        if task is None:
            return
        drawn = list(zip(task.draws, task.ids, task.occurrences))
        for row in rows:
            for draw, sample, before in drawn:
                if sample == row.id and (before == row.occurrence or row.error):
                    one = DescribeTask(number, self.stream, task.epoch, (draw,), (sample,), (before,))
                    self.stream.described(one, schema, (row,))
        if not task.wanted:
            node.asked.pop(number, None)

    def _overdue(self, now: float) -> None:
        for node in self.nodes.values():
            for number, (task, since) in list(node.asked.items()):
                if now >= since + DESCRIBE_LIMIT_S or not task.wanted:
                    del node.asked[number]
                    if task.wanted:
                        self.stream.describes.append(task)

    # ---- the end -----------------------------------------------------------------------------------

    def _heard_over(self, over: p.Over) -> None:
        if over.at is None:
            self.stream.fail(over.code, over.text, over.sample)
        else:
            self.stream.fail_soon(over.code, over.text, over.at, over.sample)


def share_of(
    ahead: Ahead, ranks: tuple[int, ...], schema: m.Schema, skips: tuple[str, int] | None
) -> p.Shared:
    """What the node of these ranks needs of a window."""
    window = ahead.window
    steps = tuple(tuple(tuple(micro[rank] for rank in ranks) for micro in step) for step in window.steps)
    draws = {d for step in steps for micro in step for rank in micro for d in rank if d in ahead.rows}
    numbers = range(window.base.step, window.base.step + len(steps))
    return p.Shared(
        base=PackedBase.of(window.base),
        end=window.end,
        after=PackedBase.of(window.after),
        ranks=ranks,
        steps=steps,
        rows=tuple((d, ahead.rows[d]) for d in sorted(draws)),
        costs=tuple(ahead.costs(k) for k in numbers),
        samples=tuple(ahead.samples(k) for k in numbers),
        fillers=ahead.fillers,
        schema=schema,
        parts=ahead.parts(),
        speeds=ahead.speeds,
        skips=skips,
    )


def ahead_of(shared: p.Shared, dp_size: int) -> Ahead:
    """The window as a node has it: the batches of its own ranks, and sums of the rest."""
    base = shared.base.unpacked()
    at = {rank: i for i, rank in enumerate(shared.ranks)}
    steps = tuple(
        tuple(tuple(micro[at[r]] if r in at else () for r in range(dp_size)) for micro in step)
        for step in shared.steps
    )
    window = Window(base, shared.end, steps, shared.after.unpacked(), (), ())
    ahead = Ahead(window, dict(shared.rows), shared.fillers, shared.speeds)
    ahead.know(shared.costs, shared.samples, shared.parts, frozenset(shared.ranks))
    return ahead
