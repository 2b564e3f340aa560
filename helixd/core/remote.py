"""Samples of this node's batches that another node decodes, because they would be late here.

    queued --the gate lets it pass--> sent for --all bytes have landed--> filled
                                          |
                                          +--declined, overdue, or a core here has nothing to do--> queued

Only whole samples that nobody has begun are sent for. What comes for one that was taken back is dropped: this
node alone writes to its rings, and a sample is in one place at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from helixd.core.actions import Action, Land, Payload, Reach
from helixd.core.gate import TRY_AGAIN_S, Gate
from helixd.core.history import ErrandRecord
from helixd.core.metrics import Errands
from helixd.core.parcels import Parcel, landing, parcel_of
from libhelix.wire import messages as m
from libhelix.wire import peer as p

if TYPE_CHECKING:
    from helixd.core.batch import Batch, FillTask
    from helixd.core.stream import Stream

LATE_S = 0.002
"""What is expected to be later than this is late."""
LOOK_S = 0.005
WATCH_S = 0.05
CREDIT_BYTES = 64 << 20
"""So much may be on its way from one node."""
OVERDUE, OVERDUE_S = 4.0, 1.0
"""What takes so many times what was predicted, and so much longer, is taken back."""
LEAST_REST_S, MOST_REST_S = 0.01, 1.0
"""Who has declined is not asked before it says, within these."""
CONNECT_S = 0.2
"""Before a connection is made nothing can be sent for."""
AT_ONCE = 8
LEAST_CORES = 0.25


@dataclass(eq=False)
class Sent:
    """A sample that was sent for. `parcel` and `begins`: where its bytes go."""

    task: FillTask
    parcel: Parcel
    begins: tuple[int, ...]
    decode_s: float
    work_s: float
    """This, and what is before it there."""
    at: float
    takes_s: float
    expected_s: float
    """The same, without what is known of the gate's bias."""
    alone: bool
    """Whether nothing else was on its way."""
    got: int = 0
    first: tuple[float, int] | None = None
    """When the first bytes came, and how many."""

    @property
    def row(self) -> m.Row:
        """The sample."""
        return self.task.batch.rows[self.task.pieces[0].sample]

    @property
    def to_come(self) -> int:
        """Bytes that are not here yet."""
        return self.parcel.nbytes - self.got


@dataclass(eq=False)
class Helper:
    """A node that decodes for this one."""

    peer: m.Peer
    cores: float
    """That it has to spare."""
    gate: Gate = field(default_factory=Gate)
    sent: dict[int, Sent] = field(default_factory=dict)
    rests_until: float = 0.0
    heard: bool = False
    """Whether it has ever answered."""
    silent: bool = True
    """Whether it has not yet, or not since something was overdue; it is tried with one sample at a time."""

    @property
    def on_the_way(self) -> int:
        """Bytes that are still to come."""
        return sum(sent.to_come for sent in self.sent.values())

    def free(self, now: float) -> bool:
        """Whether it may be asked."""
        return now >= self.rests_until and not (self.silent and self.sent)

    def work_s(self, decode_s: float) -> float:
        """What is to be decoded there before a further sample is done, as the time of one core."""
        return decode_s + sum(sent.decode_s for sent in self.sent.values()) / max(self.cores, LEAST_CORES)


@dataclass(eq=False)
class Remote:
    """What a loader has other nodes decode. `say` tells a node, by its key."""

    stream: Stream
    out: list[Action]
    say: Callable[[str, p.PeerMessage], None]
    helpers: dict[str, Helper] = field(default_factory=dict)
    errands: Errands = field(default_factory=Errands)
    off: bool = False
    """Whether nothing is sent for any more: helixd cannot reach the rings."""
    _look_at: float = 0.0
    _number: int = 0

    def _tallies(self) -> tuple[Errands, Errands]:
        """Of this loader, and of the daemon."""
        return self.errands, self.stream.history.counters.remote

    def acquainted(self, peers: Iterable[tuple[m.Peer, float]], now: float) -> None:
        """These have so many cores to spare."""
        for peer, cores in peers:
            new = Helper(peer, cores, rests_until=now + CONNECT_S)
            known = self.helpers.setdefault(peer.key, new)
            known.peer, known.cores = peer, cores

    def forget(self, count: int) -> None:
        """Forget so many nodes, of which nothing is on its way."""
        idle = [key for key, helper in self.helpers.items() if not helper.sent]
        for key in idle[: max(0, count)]:
            del self.helpers[key]

    # ---- what is late ------------------------------------------------------------------------------

    def behind(self, now: float, workers: int, before_us: int = 0) -> list[tuple[Batch, float]]:
        """Batches with work to be given out, as they are due, and when each would be ready; `before_us` is
        to be decoded before them."""
        batches = [b for c in self.stream.consumers.values() for b in c.batches if b.queued]
        batches.sort(key=lambda b: b.due)
        found, us = [], before_us
        for batch in batches:
            us += batch.queued_us
            found.append((batch, now + us * 1e-6 / workers))
        return found

    def queue_us(self, now: float, workers: int) -> int:
        """How long until all that is to be given out is decoded."""
        found = self.behind(now, workers)
        return int((found[-1][1] - now) * 1e6) if found else 0

    def behind_us(self, now: float, workers: int, before_us: int = 0) -> int:
        """How much later than due the latest batch will be."""
        late_s = [ready - max(batch.due, now) for batch, ready in self.behind(now, workers, before_us)]
        return max(0, int(max(late_s, default=0.0) * 1e6)) if self.stream.readiness.known else 0

    # ---- sending for samples -----------------------------------------------------------------------

    def deadline(self) -> list[float]:
        """When to look again, while something is on its way."""
        return [self._look_at + WATCH_S] if any(h.sent for h in self.helpers.values()) else []

    def look(self, now: float, workers: int, *, idle: bool) -> None:
        """Take back what does not come; send for samples that would be late."""
        if now < self._look_at or self.off or self.stream.settings.chains:
            return
        self._look_at = now + LOOK_S
        for helper in self.helpers.values():
            for number, sent in list(helper.sent.items()):
                self._watch(helper, number, sent, now, idle=idle)
        if self.stream.failure is not None or not self.stream.readiness.known or idle:
            return
        late = [
            (batch, ready)
            for batch, ready in self.behind(now, workers)
            if ready > max(batch.due, now) + LATE_S
        ]
        sent_for = 0
        while late and sent_for < AT_ONCE:
            # The last one has most time; what it does not ask of the cores here, nobody after it waits for.
            batch, ready = late[-1]
            if self._send_one(batch, ready, now):
                sent_for += 1
            else:
                late.pop()

    def _watch(self, helper: Helper, number: int, sent: Sent, now: float, *, idle: bool) -> None:
        batch, waited_s = sent.task.batch, now - sent.at
        if batch.cancelled:
            del helper.sent[number]
            self.say(helper.peer.key, p.Recall(number))
            batch.done()
            batch.consumer.sweep()
            return
        here_s, left_s = sent.decode_s, sent.takes_s - waited_s
        overdue = waited_s > OVERDUE * sent.takes_s + OVERDUE_S
        if overdue:
            # Where the connection was not there yet, it soon is.
            helper.silent, rest_s = True, TRY_AGAIN_S if helper.heard else MOST_REST_S
            helper.rests_until = now + rest_s
        if overdue or (idle and not batch.queued and (left_s > here_s or left_s < -here_s)):
            helper.gate.failed(sent.to_come, waited_s)
            self._take_back(helper, number)
            self.say(helper.peer.key, p.Recall(number))

    def _send_one(self, batch: Batch, ready: float, now: float) -> bool:
        """Send for the sample of a batch that is most to decode for its bytes, if that pays."""
        best: tuple[float, int, Parcel, Helper] | None = None
        here_s, free = ready - now, [h for h in self.helpers.values() if h.free(now)]
        for sample, us in batch.untouched().items() if free else ():
            parcel = parcel_of(self.stream.schema, batch.layout.places[sample])
            if (
                parcel is None
                or batch.rows[sample].error
                or (best is not None and us / parcel.nbytes <= best[0])
            ):
                continue
            helper, takes_s = min(((h, self._takes_s(h, us, parcel)) for h in free), key=lambda pair: pair[1])
            coming = helper.on_the_way
            fits = coming + parcel.nbytes <= CREDIT_BYTES or not coming
            if fits and helper.gate.passes(takes_s, here_s, parcel.nbytes, coming, now):
                best = us / parcel.nbytes, sample, parcel, helper
        if best is None:
            for tally in self._tallies():
                tally.refused += bool(free)
            return False
        _, sample, parcel, helper = best
        self._send(batch, sample, parcel, helper, now)
        return True

    @staticmethod
    def _takes_s(helper: Helper, us: int, parcel: Parcel) -> float:
        return helper.gate.takes_s(helper.work_s(us * 1e-6), helper.on_the_way + parcel.nbytes)

    def _send(self, batch: Batch, sample: int, parcel: Parcel, helper: Helper, now: float) -> None:
        # The clock of a node goes on when its daemon is started anew, under the same key: what was sent for
        # before that may still come, and must not be taken for something else.
        self._number = number = max(self._number + 1, int(now * 1e6))
        coming = helper.on_the_way
        task = batch.lend(sample, number)
        places, start = batch.layout.places[sample], batch.extent.offset
        begins = (*(start + place.offset for place in places), start + batch.layout.records[sample])
        decode_s = task.cost_us * 1e-6
        work_s = helper.work_s(decode_s)
        takes_s = helper.gate.takes_s(work_s, coming + parcel.nbytes)
        expected_s = takes_s / helper.gate.bias
        helper.sent[number] = Sent(
            task, parcel, begins, decode_s, work_s, now, takes_s, expected_s, alone=not coming
        )
        helper.gate.tried = now
        self.out.append(Reach(batch.consumer.arena))
        due_us = max(0, int((batch.due - now) * 1e6))
        row, of = batch.rows[sample], self.stream.fingerprint
        self.say(helper.peer.key, p.Decode(number, batch.at.epoch, row, places, due_us, of))
        for tally in self._tallies():
            tally.sent += 1

    def _take_back(self, helper: Helper, number: int) -> None:
        for tally in self._tallies():
            tally.taken_back += 1
        self._give_back(helper, number)

    @staticmethod
    def _give_back(helper: Helper, number: int) -> None:
        task = helper.sent.pop(number).task
        task.batch.give_back(task)
        if task.batch.cancelled:
            task.batch.consumer.sweep()

    def end(self) -> None:
        """The loader ends here: nothing that is on its way is wanted any more."""
        for helper in self.helpers.values():
            for number, sent in helper.sent.items():
                self.say(helper.peer.key, p.Recall(number))
                sent.task.batch.done()
                sent.task.batch.consumer.sweep()
            helper.sent.clear()

    def turn_off(self) -> None:
        """All that is on its way is decoded here."""
        self.off = True
        for helper in self.helpers.values():
            for number in list(helper.sent):
                self._take_back(helper, number)
                self.say(helper.peer.key, p.Recall(number))

    # ---- what helpers say --------------------------------------------------------------------------

    def said(self, key: str, message: p.Decoded | p.Declined, payload: Payload, now: float) -> None:
        """A node that decodes for this one said something."""
        helper = self.helpers.get(key)
        if helper is not None:
            helper.silent, helper.heard = False, True
        sent = helper.sent.get(message.task) if helper is not None else None
        if helper is None or sent is None:
            if isinstance(message, p.Decoded):
                self.say(key, p.Recall(message.task))  # it keeps room there that others could have
            return
        if isinstance(message, p.Declined):
            helper.rests_until = now + min(MOST_REST_S, max(LEAST_REST_S, message.after_us * 1e-6))
            for tally in self._tallies():
                tally.declined += 1
            if message.bad:
                sent.task.batch.stay.add(sent.task.pieces[0].sample)
            self._give_back(helper, message.task)
        elif (message.id, message.at, message.nbytes) == (
            sent.row.id,
            sent.got,
            sent.parcel.nbytes,
        ) and sent.to_come >= len(payload):
            self._landed(helper, sent, message, payload, now)
        else:  # some of it was lost on the way
            helper.gate.failed(sent.to_come, now - sent.at)
            self._take_back(helper, message.task)
            self.say(key, p.Recall(message.task))

    def _landed(self, helper: Helper, sent: Sent, message: p.Decoded, payload: Payload, now: float) -> None:
        batch = sent.task.batch
        if batch.cancelled:
            return  # `look` lets it go
        consumer = batch.consumer
        to = landing(sent.parcel, sent.begins, consumer.ring_bytes, message.at, len(payload))
        self.out.append(Land(consumer.arena, payload, to))
        sent.got += len(payload)
        self.say(helper.peer.key, p.Got(message.task, sent.got))
        if sent.first is None:
            sent.first = now, sent.got
            if sent.alone:
                helper.gate.answered(now - sent.at - message.took_us * 1e-6)
        if sent.to_come:
            return
        del helper.sent[message.task]
        began, first = sent.first
        rate = (sent.got - first) / max(now - began, 1e-5) if sent.got > first else None
        there_s = message.took_us * 1e-6
        helper.gate.came(sent.takes_s, sent.expected_s, now - sent.at, there_s, sent.work_s, rate)
        for tally in self._tallies():
            tally.came(sent.got, sent.takes_s, now - sent.at)
        batch.done()
        for piece in sent.task.pieces:
            batch.filled(piece, 0)
        record = ErrandRecord(
            helper.peer.address,
            sent.at,
            now,
            sent.takes_s,
            message.took_us,
            sent.got,
            batch.due,
            consumer.rank,
            batch.at,
            sent.row.id,
        )
        self.stream.history.errands.append(record)
        self.stream.succeeded("fill")

    def holds(self, batch: Batch) -> int:
        """How many samples of a batch other nodes are at."""
        return sum(sent.task.batch is batch for h in self.helpers.values() for sent in h.sent.values())

    def view(self) -> dict[str, Any]:
        """What nodes decode for this one, for `helixctl status` and `why`."""
        nodes = [
            {
                "address": helper.peer.address,
                "on_the_way": len(helper.sent),
                "goodput_mb_per_s": round(helper.gate.goodput / 1e6, 1) if helper.gate.goodput else None,
                "latency_ms": round(helper.gate.latency_s * 1e3, 2),
                "margin": round(helper.gate.margin, 2),
            }
            for helper in self.helpers.values()
        ]
        return {**asdict(self.errands), "helpers": nodes}
