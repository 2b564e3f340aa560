"""The node of a loader that plans for all: it tells others what they need, and has them describe a share."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from helixd.core.batch import DescribeTask
from helixd.core.team import BEAT_S, SILENT_S, Team, renew
from helixd.core.windows import Ahead
from libhelix.plan.placement import Placement
from libhelix.wire import messages as m
from libhelix.wire import peer as p
from libhelix.wire.codec import short
from libhelix.wire.settings import Base, PackedBase, Position, differences, fingerprint

if TYPE_CHECKING:
    from helixd.core.stream import Failure

DESCRIBE_LIMIT_S = 1.0
"""Rows that another node has not sent by then are described here, too."""
GONE_S = 30.0
"""Nothing is kept planned for a node that was not heard for so long."""
REMEMBERED = 1024
"""Windows of which a checksum is kept."""
SENT_S = 0.5
"""What was sent by then and is still asked for is sent again."""
SHARED_AT_ONCE = 8
"""Nodes that are told of a window before others are served: a window of a thousand nodes takes seconds."""
BEHIND_US = 5_000
"""Nodes whose batches will be later than this get help."""
SPARE = 250
"""Who has so many thousandths of cores to spare can help."""
HELPERS = 4
"""So many nodes are asked to help one."""
CHANGED = 1.1
"""Speeds of nodes, to each other, that have changed by less are not worth an entry."""


@dataclass(eq=False)
class Node:
    """A node, as the leader sees it. `ranks` are known once it has joined."""

    number: int
    peer: m.Peer
    ranks: tuple[int, ...] = ()
    joined: int | None = None
    """The number of its loader there."""
    of: int | None = None
    """The fingerprint of that loader's settings."""
    heard: float | None = None
    stands: list[tuple[Base, Position]] = field(default_factory=list)
    windows: dict[Base, None] = field(default_factory=dict)
    """Those that it waits for."""
    load: p.Load = p.Load()  # noqa: RUF009  # frozen
    told: tuple[int, int] | None = None
    """The last entry of the log that it has."""
    held: tuple[int, int] = (0, 0)
    """The epoch and step of the last window that it has had."""
    shared: dict[Base, float] = field(default_factory=dict)
    """Those of them that were sent, and when: they may be on their way."""
    asked: dict[int, tuple[DescribeTask, float]] = field(default_factory=dict)
    """What it describes, and since when, by number."""


@dataclass(eq=False, kw_only=True)
class Leader(Team):
    """This node plans. `nodes` are all of them, this one too, by key."""

    nodes: dict[str, Node]
    leads: bool = True
    joined: bool = True
    helpers: dict[str, Node] = field(default_factory=dict)
    """Nodes without ranks that have offered to decode for others."""
    _digests: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """Checksums of the last windows that were planned here, by those of their beginning."""
    _turn: int = 0
    _unshared: deque[tuple[Node, Ahead]] = field(default_factory=deque)
    """Windows that are planned, and nodes that still have to be told of them."""

    def learn(self, placed: Iterable[m.Placed]) -> None:
        """Entries of these nodes alone."""
        super().learn(one for one in placed if len(one.speeds) == len(self.nodes))

    def deadline(self) -> float:
        """At once while nodes have to be told of windows."""
        return -math.inf if self._unshared else self.beat_at

    def beat(self, now: float) -> None:
        """Tell the next nodes of windows; do what others do not."""
        for _ in range(min(SHARED_AT_ONCE, len(self._unshared))):
            node, ahead = self._unshared.popleft()
            if ahead.window.base in node.windows:
                self._share(node, ahead)
        if now < self.beat_at:
            return
        self.beat_at = now + BEAT_S
        if self.stream.failure is None:
            self._overdue(now)
            self._issue()
            self._match()

    def over(self, failure: Failure) -> None:
        """Who does not hear it hears it when it asks."""
        for node in self.nodes.values():
            self.say(node.peer.key, self.over_of(failure))

    def close(self) -> None:
        """Helpers need not keep memory for it. Why it failed, they hear when they offer."""
        super().close()
        for key in self.helpers if self.stream.failure is None else ():
            self.say(key, p.Over(p.CLOSED, "its trainers have closed it"))

    def said(self, key: str, message: p.PeerMessage, now: float) -> None:
        """A node said something."""
        node = self.nodes.get(key)
        if node is not None and key != self.me:
            node.heard = now
            self._follower_said(node, message)
        elif key in self.helper_keys and isinstance(message, p.Offer):
            self._offered(key, message, now)

    def waits_for(self, now: float) -> str | None:
        """Nodes that lack the last entry of the log."""
        del now
        last = max(self.log, default=None)
        if last is not None and (late := self._without(last)):
            some = ", ".join(node.peer.address for node in late[:4])
            return f"{len(late)} nodes do not say how windows are placed, such as {some}; see what they say"
        return None

    def view(self) -> dict[str, Any]:
        """With all nodes."""
        nodes = [self._view(node, ranks) for node, ranks in self._known()]
        helpers = [
            {
                "address": helper.peer.address,
                "silent_s": self._silent_s(helper),
                "spare": helper.load.spare / 1000,
            }
            for helper in self.helpers.values()
        ]
        return {**super().view(), "nodes": nodes, "helpers": helpers}

    def _view(self, node: Node, ranks: Sequence[int]) -> dict[str, Any]:
        mine, last = node.peer.key == self.me, max(self.log, default=None)
        return {
            "address": node.peer.address,
            "ranks": list(ranks),
            "silent_s": 0.0 if mine else self._silent_s(node),
            "capacity": (self.load() if mine else node.load).capacity / 1000 or None,
            "speed": self.log[last][node.number] if last is not None else None,
        }

    def _silent_s(self, node: Node) -> float | None:
        return None if node.heard is None else round(self.now - node.heard, 1)

    # ---- what nodes say ----------------------------------------------------------------------------

    def _follower_said(self, node: Node, message: p.PeerMessage) -> None:
        failure = self.stream.failure
        match message:
            case p.Join():
                if failure is None or message.number == node.joined:  # else it is of a loader made anew
                    self._joins(node, message)
            case p.Want(stands, windows, of, load, told, held, alone):
                if failure is not None:
                    self.say(node.peer.key, self.over_of(failure))
                    if failure.at is None:
                        return
                if not node.ranks or of != node.of:
                    self.say(node.peer.key, p.Unknown())
                    return
                if told != node.told:
                    node.told = told
                    self.stream.look_again()  # windows may have waited for that
                if failure is None:
                    self._agrees(node, (*held, *alone))
                node.load = load
                node.held = max(node.held, *((window.epoch, window.step) for window in held), (0, 0))
                self.say(node.peer.key, p.Joined())  # it is heard
                if told != max(self.log, default=None):
                    self.say(node.peer.key, p.Placing(self.entries()))
                settled = (self.stream.planner.settled(start.unpacked()) for start in stands)
                node.stands = [(start.base, start.at) for start in settled if start is not None]
                node.windows = dict.fromkeys(base.unpacked() for base in windows)
                lately = self.now - SENT_S
                node.shared = {b: at for b, at in node.shared.items() if b in node.windows and at > lately}
                for base in list(node.windows):
                    ahead = self.stream.windows.planned.get(base)
                    if ahead is not None:
                        self._share(node, ahead)
            case p.Rows():
                self._rows(node, message)
            case p.Over() if message.meeting == self.meeting:  # else of one that was made before
                self.heard_over(message)
            case _:
                pass

    def _agrees(self, node: Node, held: Iterable[p.Held]) -> None:
        """End the loader where a node has a window that was planned otherwise: it was alone then, or has
        it of a leader before this one. Samples would be lost and doubled."""
        for one in held:
            if self._digests.get((one.epoch, one.step, one.base), one.digest) != one.digest:
                self.stream.fail(
                    "conflict",
                    f"rank 0's node and node {node.number} ({node.peer.address}) have other plans of epoch "
                    f"{one.epoch} from step {one.step} on, made while they did not hear each other: samples "
                    "could be described on one of them alone; see that both reach the same data, and resume",
                )
                return

    def _offered(self, key: str, offer: p.Offer, now: float) -> None:
        stream, peer = self.stream, m.Peer(key, offer.address)
        node = self.helpers.get(key)
        if node is None or node.peer != peer:
            number = len(self.nodes) + self.helper_keys.index(key)
            node = self.helpers[key] = Node(number, peer)
        node.heard, node.load = now, offer.load
        self.acquaint((peer,))
        if stream.over and stream.failure is not None:
            self.say(key, self.over_of(stream.failure))
        elif offer.protocol != p.PEER_PROTOCOL or offer.version != self.version:
            text = f"it runs datahelix {offer.version}, and rank 0's node {self.version}; install one"
            self.say(key, p.Misfit(text))
        else:
            known = offer.of == stream.fingerprint
            self.say(key, p.Engaged(stream.max_bytes, stream.schema, None if known else stream.settings))

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
            self.say(node.peer.key, p.Misfit(short(f"loader {self.stream.name!r}: {text}")))
            return
        node.ranks, node.joined, node.of = join.ranks, join.number, fingerprint(join.settings)
        self.learn(join.placed)
        self.say(node.peer.key, p.Joined())

    def _known(self) -> Iterable[tuple[Node, Sequence[int]]]:
        for node in self.nodes.values():
            yield node, self.ranks if node.peer.key == self.me else node.ranks

    def may_plan(self, base: Base) -> bool:
        """Whether every node has the entry of the log that a window is placed by."""
        first = self._entry_of(base)
        return first is None or not self._without(first)

    def _entry_of(self, base: Base) -> tuple[int, int] | None:
        return max((first for first in self.log if first <= (base.epoch, base.step)), default=None)

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
        return Placement(tuple(tuple(ranks) for _, ranks in self._known()), self.log[first])

    def _issue(self) -> None:
        """Enter how fast nodes decode, where that has changed, for windows that are not begun."""
        stream, last = self.stream, max(self.log, default=None)
        if stream.settings.placement == "static" or (last is not None and self._without(last)):
            return
        loads = [self.load() if node.peer.key == self.me else node.load for node in self.nodes.values()]
        found = [load.capacity for load in loads]
        begun = [(b.epoch, b.step) for b in (*stream.windows.planned, *stream.windows.openings)]
        # Some have windows of a leader before this one.
        begun += [node.held for node in self.nodes.values()] if begun else []
        if not begun or not all(found) or (last is not None and last > max(begun)):
            return
        before = self.log[last] if last is not None else (1,) * len(found)
        ratios = [new / old for new, old in zip(found, before)]
        if max(ratios) <= min(ratios) * CHANGED:
            return
        epoch, step = max(begun)
        self.learn([m.Placed(epoch, step + 1, tuple(found))])
        for node in self.nodes.values():
            self.say(node.peer.key, p.Placing(self.entries()))

    def _match(self) -> None:
        """Make nodes that are late known to some that have cores to spare, and these to them."""
        there = [node for node in self.nodes.values() if self._describes(node)]
        there += [node for node in self.helpers.values() if self._lately(node)]
        loads = [(self.load() if node.peer.key == self.me else node.load, node) for node in there]
        # Who has cores to spare is not late for want of them, whatever it waits for at this moment.
        busy = [(load.behind_us, node.number, node) for load, node in loads if load.spare < SPARE]
        late = sorted(entry for entry in busy if entry[0] > BEHIND_US)
        spare = sorted((load.spare, node.number, node) for load, node in loads if load.spare >= SPARE)[::-1]
        for i, (_, _, node) in enumerate(late[::-1]):
            helpers = [spare[(i * HELPERS + j) % len(spare)] for j in range(min(HELPERS, len(spare)))]
            if helpers:
                self._acquaint(
                    node,
                    p.Acquaint(tuple(h.peer for _, _, h in helpers), True, tuple(s for s, _, _ in helpers)),
                )
            for _, _, helper in helpers:
                self._acquaint(helper, p.Acquaint((node.peer,), helps=False))

    def _acquaint(self, node: Node, message: p.Acquaint) -> None:
        if node.peer.key == self.me:
            self.acquainted(message)
        else:
            self.say(node.peer.key, message)

    def planned(self, ahead: Ahead) -> None:
        """A window is planned: nodes that wait for it get what they need."""
        one = ahead.held
        renew(self._digests, (one.epoch, one.step, one.base), one.digest, REMEMBERED)
        waiting = [node for node in self.nodes.values() if ahead.window.base in node.windows]
        for node in waiting[:SHARED_AT_ONCE]:
            self._share(node, ahead)
        self._unshared.extend((node, ahead) for node in waiting[SHARED_AT_ONCE:])

    def _share(self, node: Node, ahead: Ahead) -> None:
        node.windows.pop(ahead.window.base, None)
        if ahead.window.base in node.shared:
            return
        node.shared[ahead.window.base] = self.now
        shared = share_of(
            ahead, node.ranks, self.stream.schema, self.stream.skips.get(ahead.window.base.epoch)
        )
        data = p.seal(shared)
        size = p.SHARE_PART_BYTES
        parts = [data[a : a + size] for a in range(0, len(data), size)]
        for i, part in enumerate(parts):
            self.say(node.peer.key, p.Share(shared.base, i, len(parts), part))

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
        self.say(node.peer.key, p.Describe(task.number, task.epoch, task.ids, task.occurrences))
        return True

    def _describes(self, node: Node) -> bool:
        return node.peer.key == self.me or (bool(node.ranks) and self._lately(node))

    def _lately(self, node: Node) -> bool:
        return node.heard is not None and self.now - node.heard < SILENT_S

    def _queued(self, node: Node) -> int:
        return len(self.stream.describes) if node.peer.key == self.me else len(node.asked)

    def _rows(self, node: Node, said: p.Rows) -> None:
        task, _ = node.asked.get(said.task, (None, 0.0))
        if task is None or task.epoch != said.epoch:
            return
        drawn = list(zip(task.draws, task.ids, task.occurrences))
        for row in said.rows:
            for draw, sample, before in drawn:
                if sample == row.id and (before == row.occurrence or row.error):
                    one = DescribeTask(said.task, self.stream, task.epoch, (draw,), (sample,), (before,))
                    self.stream.described(one, said.schema, (row,))
        if not task.wanted:
            node.asked.pop(said.task, None)

    def _overdue(self, now: float) -> None:
        for node in self.nodes.values():
            for number, (task, since) in list(node.asked.items()):
                if now >= since + DESCRIBE_LIMIT_S or not task.wanted:
                    del node.asked[number]
                    if task.wanted:
                        self.stream.describes.append(task)


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
        digest=ahead.digest,
        skips=skips,
    )
