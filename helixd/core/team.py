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

import math
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from helixd.core.actions import Action, Log, PeerSend, Send
from helixd.core.batch import DescribeTask
from helixd.core.windows import Ahead
from libhelix.errors import ProtocolError
from libhelix.plan.placement import Placement, most_placed
from libhelix.plan.planner import Window
from libhelix.wire import messages as m
from libhelix.wire import peer as p
from libhelix.wire.codec import short
from libhelix.wire.settings import Base, PackedBase, PackedStart, Position, differences

if TYPE_CHECKING:
    from helixd.core.consumer import Holder
    from helixd.core.stream import Failure, Stream

BEAT_S = 1.0
"""How often what is waited for is asked for again, and load told."""
FIRST_BEAT_S = 0.1
"""The same in the beginning, when connections are still being made."""
ALONE_S = 5.0
"""When the leader is not heard for so long, nodes plan for themselves where they can."""
DESCRIBE_LIMIT_S = 1.0
"""Rows that another node has not sent by then are described here, too."""
SILENT_S = 3.0
"""A node that was not heard for so long is given nothing to describe."""
MISFIT_LIMIT_S = 30.0
"""Settings may differ for a moment, while ranks go over to new ones."""
GONE_S = 30.0
"""Nothing is kept planned for a node that was not heard for so long."""
SHARED_AT_ONCE = 8
"""Nodes that are told of a window before others are served: a window of a thousand nodes takes seconds."""
CHANGED = 1.1
"""Speeds of nodes, to each other, that have changed by less are not worth an entry."""


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
    joined: int | None = None
    """The number of its loader there."""
    heard: float | None = None
    stands: list[tuple[Base, Position]] = field(default_factory=list)
    windows: dict[Base, None] = field(default_factory=dict)
    """Those that it waits for."""
    load: p.Load = p.Load()  # noqa: RUF009  # frozen
    told: tuple[int, int] | None = None
    """The last entry of the log that it has."""
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
    ranks: tuple[int, ...]
    """Of this node."""
    link: int
    out: list[Action]
    version: str
    load: Callable[[], p.Load]
    joined: bool = False
    heard: float | None = None
    """When the leader was heard last; for followers."""
    silent_since: float | None = None
    """Or since when it is waited for."""
    _beat_at: float = 0.0
    _told_over: bool = False
    _misfit: tuple[float, str] | None = None
    _parts: dict[Base, dict[int, bytes]] = field(default_factory=dict)
    _turn: int = 0
    _unshared: deque[tuple[Node, Ahead]] = field(default_factory=deque)
    """Windows that are planned, and nodes that still have to be told of them."""
    _log: dict[tuple[int, int], m.Speeds] = field(default_factory=dict)
    """By which speeds windows are placed, by the epoch and step from which on."""
    _wanted: frozenset[Base] = frozenset()
    """Windows that were asked for."""
    now: float = 0.0
    """The time of the event that is being handled."""

    # ---- both --------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this node plans."""
        return self.leader.key == self.me

    def learn(self, placed: Iterable[m.Placed]) -> None:
        """Entries of the log, from a trainer, a node or the leader; this node's trainers are told."""
        for one in sorted(placed, key=lambda one: (one.epoch, one.step)):
            first = one.epoch, one.step
            if first in self._log:
                continue
            self._log[first] = one.speeds
            for holder in self.stream.holders():
                self.out.append(Send(holder.conn, m.Dealt(holder.loader, one)))
        while len(self._log) > most_placed(len(self._log[min(self._log)]) if self._log else 1):
            del self._log[min(self._log)]

    def tell(self, holder: Holder) -> None:
        """Tell a trainer that has come what the log says."""
        self.out += [Send(holder.conn, m.Dealt(holder.loader, one)) for one in self._entries()]

    def _entries(self) -> tuple[m.Placed, ...]:
        return tuple(m.Placed(*first, self._log[first]) for first in sorted(self._log))

    def deadline(self) -> float:
        """When `beat` is due."""
        return -math.inf if self._unshared else self._beat_at

    def beat(self, now: float) -> None:
        """Ask again for what has not come; tell how this node is doing."""
        for _ in range(min(SHARED_AT_ONCE, len(self._unshared))):
            node, ahead = self._unshared.popleft()
            if ahead.window.base in node.windows:
                self._share(node, ahead)
        if now < self._beat_at:
            return
        beginning = not self.leads and not self.joined and now < (self.silent_since or now) + ALONE_S
        self._beat_at = now + (FIRST_BEAT_S if beginning else BEAT_S)
        if self.stream.failure is not None:
            if not self._told_over:
                self.over(self.stream.failure)
        elif self.leads:
            self._overdue(now)
            self._issue()
        else:
            self._go_alone(now)
            if self.joined:
                self._want()
            else:
                self._join()

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
            self.heard = self.silent_since = now
            self._leader_said(message, now)

    def waits_for(self, now: float) -> str | None:
        """What of other nodes is waited for, for people; None for nothing."""
        if self.leads:
            last = max(self._log, default=None)
            if last is not None and (late := self._without(last)):
                some = ", ".join(node.peer.address for node in late[:4])
                return (
                    f"{len(late)} nodes do not say how windows are placed, such as {some}; see what they say"
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
        if not self.stream.windows.missing:
            return None
        return f"the leader, helixd of rank 0's node at {where}, has not planned its window yet"

    def view(self) -> dict[str, Any]:
        """How the nodes stand, for `helixctl status`; the leader knows all, others only the leader."""
        last = max(self._log, default=None)
        found: dict[str, Any] = {
            "leads": self.leads,
            "leader": self.leader.address,
            "waits_for": self.waits_for(self.now),
            "placed_since": list(last) if last is not None else None,
        }
        if not self.leads:
            silent_s = None if self.heard is None else round(self.now - self.heard, 1)
            return {**found, "joined": self.joined, "silent_s": silent_s}
        found["nodes"] = [
            {
                "address": node.peer.address,
                "ranks": list(ranks),
                "silent_s": 0.0
                if node.peer.key == self.me
                else None
                if node.heard is None
                else round(self.now - node.heard, 1),
                "capacity": (self.load() if node.peer.key == self.me else node.load).capacity / 1000 or None,
                "speed": self._log[last][node.number] if last is not None else None,
            }
            for node, ranks in self._known()
        ]
        return found

    def _say(self, key: str, message: p.PeerMessage) -> None:
        if key != self.me:
            self.out.append(PeerSend(self.link, key, p.Said(self.stream.name, message)))

    # ---- the follower ------------------------------------------------------------------------------

    def _join(self) -> None:
        stream = self.stream
        join = p.Join(
            p.PEER_PROTOCOL, self.version, stream.settings, self.ranks, self._entries(), stream.number
        )
        self._say(self.leader.key, join)

    def _want(self) -> None:
        stream = self.stream
        stands = {(c.base, c.next) for c in stream.consumers.values() if not stream.ended(c.next)}
        said = [PackedStart(PackedBase.of(base), at) for base, at in sorted(stands, key=lambda s: s[1])[:64]]
        windows = p.packed(list(stream.windows.missing))
        told = max(self._log, default=None)
        self._say(self.leader.key, p.Want(tuple(said), windows, self.load(), told))

    def _go_alone(self, now: float) -> None:
        """Plan here, too, where the leader is not heard and that is sure to give the same."""
        stream = self.stream
        if self.silent_since is None:
            self.silent_since = now
        silent = now >= self.silent_since + ALONE_S
        if stream.windows.remote and silent and stream.windows.missing and self._may_go_alone:
            stream.plan_here(True)
            self.out.append(Log("warning", f"loader {stream.name!r}: {self.waits_for(now)}; plans here, too"))

    @property
    def _may_go_alone(self) -> bool:
        return self.stream.settings.placement == "static"

    def want(self) -> None:
        """Ask for windows that are missing, if they were not asked for yet."""
        missing = frozenset(self.stream.windows.missing)
        anew, self._wanted = missing - self._wanted, missing
        if self._parts:
            self._parts = {base: parts for base, parts in self._parts.items() if base in missing}
        if anew and self.joined:
            self._want()

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
                self.learn(placed)
                self._want()
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
            self.stream.shared(shared)

    def described(self, task: AskedTask, schema: m.Schema, rows: tuple[m.Row, ...]) -> None:
        """Rows for the leader."""
        self._say(self.leader.key, p.Rows(task.ask, schema, rows))

    # ---- the leader --------------------------------------------------------------------------------

    def _follower_said(self, node: Node, message: p.PeerMessage) -> None:
        failure = self.stream.failure
        match message:
            case p.Join():
                if failure is None or message.number == node.joined:  # else it is of a loader made anew
                    self._joins(node, message)
            case p.Want(stands, windows, load, told):
                if failure is not None and failure.at is None:
                    self._say(node.peer.key, p.Over(failure.code, short(failure.text), None, failure.sample))
                    return
                node.load, node.told = load, told
                if not node.ranks:
                    self._say(node.peer.key, p.Unknown())
                    return
                if failure is not None:
                    said = p.Over(failure.code, short(failure.text), failure.at, failure.sample)
                    self._say(node.peer.key, said)
                self._say(node.peer.key, p.Joined())  # it is heard
                if told != max(self._log, default=None):
                    self._say(node.peer.key, p.Placing(self._entries()))
                settled = (self.stream.planner.settled(start.unpacked()) for start in stands)
                node.stands = [(start.base, start.at) for start in settled if start is not None]
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
        node.ranks, node.joined = join.ranks, join.number
        self.learn(join.placed)
        self._say(node.peer.key, p.Joined())

    def _known(self) -> Iterable[tuple[Node, Sequence[int]]]:
        for node in self.nodes.values():
            yield node, self.ranks if node.peer.key == self.me else node.ranks

    def may_plan(self, base: Base) -> bool:
        """Whether every node has the entry of the log that a window is placed by."""
        first = self._entry_of(base)
        return first is None or not self._without(first)

    def _entry_of(self, base: Base) -> tuple[int, int] | None:
        return max((first for first in self._log if first <= (base.epoch, base.step)), default=None)

    def _without(self, first: tuple[int, int]) -> list[Node]:
        """Nodes that are not known to have an entry of the log."""
        others = (node for node in self.nodes.values() if node.peer.key != self.me)
        return [node for node in others if not node.ranks or node.told is None or node.told < first]

    def stands(self) -> list[tuple[Base, Position]]:
        """Where ranks of other nodes stand, of those that are still there."""
        lately = self.now - GONE_S
        return [
            stand
            for node in self.nodes.values()
            if node.heard is not None and node.heard > lately
            for stand in node.stands
        ]

    def placement(self, base: Base) -> Placement | None:
        """By which a window is dealt out to nodes; None for as the order says."""
        first = self._entry_of(base)
        if first is None:
            return None
        return Placement(tuple(tuple(ranks) for _, ranks in self._known()), self._log[first])

    def _issue(self) -> None:
        """Enter how fast nodes decode, where that has changed, for windows that are not begun."""
        stream, last = self.stream, max(self._log, default=None)
        if stream.settings.placement == "static" or (last is not None and self._without(last)):
            return
        loads = [self.load() if node.peer.key == self.me else node.load for node in self.nodes.values()]
        found = [load.capacity for load in loads]
        begun = [(b.epoch, b.step) for b in (*stream.windows.planned, *stream.windows.openings)]
        if not begun or not all(found) or (last is not None and last > max(begun)):
            return
        before = self._log[last] if last is not None else (1,) * len(found)
        ratios = [new / old for new, old in zip(found, before)]
        if max(ratios) <= min(ratios) * CHANGED:
            return
        epoch, step = max(begun)
        self.learn([m.Placed(epoch, step + 1, tuple(found))])
        for node in self.nodes.values():
            self._say(node.peer.key, p.Placing(self._entries()))

    def planned(self, ahead: Ahead) -> None:
        """A window is planned: nodes that wait for it get what they need."""
        waiting = [node for node in self.nodes.values() if ahead.window.base in node.windows]
        for node in waiting[:SHARED_AT_ONCE]:
            self._share(node, ahead)
        self._unshared.extend((node, ahead) for node in waiting[SHARED_AT_ONCE:])

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
        if not self.leads:
            return False
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
            self.stream.fail_from(over.code, over.text, over.at, over.sample)


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
    ahead = Ahead(window, dict(shared.rows), shared.fillers)
    ahead.know(shared.costs, shared.samples, shared.parts)
    return ahead
