"""Nodes that decode for each other, where one is started anew, ends, is dead, or is at something else."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from helixd.core.batch import Batch, Piece
from helixd.core.guests import Guests
from helixd.core.peering import Peering
from helixd.core.remote import Remote
from helixd.core.team import MOST_ACQUAINTANCES
from libhelix.plan.layout import BatchLayout
from libhelix.wire import messages as m
from libhelix.wire import peer as p
from libhelix.wire.settings import FixedBatch, Position
from tests.helixd.core.nodes import Uneven, check_steps, fixed
from tests.helixd.core.test_remote import THREE, TWO_EPOCHS, _job
from tests.helixd.core.world import Carried, World, planned


class Overheard(Uneven):
    """Notes all that is said: from, to, message."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.said: list[tuple[int, int, p.PeerMessage]] = []
        super().__init__(*args, **more)

    def send(self, world: World, key: str, said: p.Said, beside: Carried) -> None:
        self.said.append((self._where(world), int(key), said.message))
        super().send(world, key, said, beside)

    def all_of(self, kind: type[Any], source: int | None = None) -> list[Any]:
        """What was said of one kind, by one node or by all."""
        return [said for at, _, said in self.said if isinstance(said, kind) and source in (None, at)]

    def run(self, until: Any, limit: int = 60_000) -> None:
        """Step until the condition holds."""
        for _ in range(limit):
            if until():
                return
            self.step()
        raise AssertionError("it never came to that")

    def asked_from(self, source: int, more: int) -> None:
        """Step until a node has asked for so many further samples."""
        until = len(self.all_of(p.Decode, source)) + more
        self.run(lambda: len(self.all_of(p.Decode, source)) >= until)

    def tell(self, to: int, source: int, message: p.PeerMessage, payload: bytes = b"") -> None:
        """One node says something to another, at once."""
        stream = next(iter(_job(self.worlds[to]).streams.values()))
        self.worlds[to].now = self.now
        peering = _job(self.worlds[to]).peering
        assert peering.link is not None
        self.worlds[to].tell(_said(peering.link, self._key(source), stream.name, message, payload))


def _said(link: int, key: str, name: str, message: p.PeerMessage, payload: bytes) -> Any:
    from helixd.core.actions import PeerSaid

    return PeerSaid(link, key, p.Said(name, message), Carried(payload))


def _remote(world: World) -> Remote:
    team = next(iter(_job(world).streams.values())).team
    assert team is not None
    return team.remote


def _guests(world: World) -> Guests:
    team = next(iter(_job(world).streams.values())).team
    assert team is not None
    return team.guests


def _nodes(seed: int = 0, **changes: Any) -> Overheard:
    chosen = fixed(6, **{"batching": FixedBatch(4), "index_samples": 240, **changes})
    return Overheard(random.Random(seed), chosen, THREE)


def test_a_daemon_that_is_started_anew_numbers_nothing_as_the_one_before_it() -> None:
    nodes = _nodes()
    for _ in range(4):
        nodes.asked_from(1, 10)
        nodes.restart(1)
    numbers = [said.task for said in nodes.all_of(p.Decode, 1)]
    assert len(numbers) == len(set(numbers))


def test_a_loader_of_the_same_name_and_other_settings_decodes_nothing() -> None:
    nodes = _nodes()
    nodes.run(lambda: _guests(nodes.worlds[2]).filling and not _guests(nodes.worlds[1]).filling)
    asked = next(iter(nodes.all_of(p.Decode, 1)))
    guests, key = _guests(nodes.worlds[2]), nodes._key(1)
    guests.behind_us = lambda *_: 0
    nodes.tell(2, 1, msgspec.structs.replace(asked, task=7, of=asked.of ^ 1))
    nodes.tell(2, 1, msgspec.structs.replace(asked, task=8))
    assert [(key, task) in guests.filling for task in (7, 8)] == [False, True]
    assert [said.task for said in nodes.all_of(p.Declined, 2)][-1] == 7


def test_a_sample_that_one_node_failed_on_is_not_sent_to_the_next() -> None:
    nodes = _nodes()
    for i in (0, 2):
        nodes.worlds[i].bad = set(range(240))
        for rank in THREE[i]:
            nodes.worlds[i].bad -= {s for ranks in planned(nodes.settings).values() for s in ranks[rank]}
    nodes.drain(Position(2, 0, 0))
    asked: dict[int, tuple[int, int]] = {}
    failed: set[tuple[int, int]] = set()
    for _, _, said in nodes.said:
        if isinstance(said, p.Decode):
            assert (said.epoch, said.row.id) not in failed
            asked[said.task] = said.epoch, said.row.id
        elif isinstance(said, p.Declined) and said.bad:
            failed.add(asked[said.task])
    assert len(failed) > 3, (len(failed), len(asked))


def test_who_does_not_know_a_late_node_says_so() -> None:
    nodes = _nodes()
    nodes.asked_from(1, 1)
    _guests(nodes.worlds[2]).hosts.clear()
    nodes.tell(2, 1, msgspec.structs.replace(nodes.all_of(p.Decode, 1)[0], task=7))
    assert nodes.all_of(p.Declined, 2)[-1].task == 7
    assert not _guests(nodes.worlds[2]).filling


def test_what_nobody_waits_for_is_recalled() -> None:
    nodes = _nodes()
    nodes.run(lambda: any(helper.sent for helper in _remote(nodes.worlds[1]).helpers.values()))
    key, number = next((h.peer.key, n) for h in _remote(nodes.worlds[1]).helpers.values() for n in h.sent)
    nbytes = _remote(nodes.worlds[1]).helpers[key].sent[number].parcel.nbytes
    nodes.tell(1, int(key), p.Decoded(7, 0, 0, nbytes, 1), bytes(8))
    nodes.tell(1, int(key), p.Decoded(number, 0, 8, nbytes, 1), bytes(8))  # what was before it is lost
    assert [said.task for said in nodes.all_of(p.Recall, 1)] == [7, number]
    assert number not in _remote(nodes.worlds[1]).helpers[key].sent


def test_a_loader_that_ends_keeps_nobody_waiting() -> None:
    nodes = _nodes()
    late, helps = nodes.worlds[1], nodes.worlds[2]
    nodes.run(lambda: any(h.sent for h in _remote(late).helpers.values()) and _guests(helps).filling)
    sent = {number for helper in _remote(late).helpers.values() for number in helper.sent}
    guests = {task for _, task in (*_guests(helps).filling, *_guests(helps).sending)}
    for world in (late, helps):
        for trainer in list(world.trainers):
            world.kill_trainer(trainer)
    assert sent <= {said.task for said in nodes.all_of(p.Recall, 1)}
    assert guests <= {said.task for said in nodes.all_of(p.Declined, 2)}


def test_a_loader_that_has_failed_decodes_nothing_for_others() -> None:
    nodes = _nodes()
    nodes.run(lambda: _guests(nodes.worlds[2]).filling)
    world, guests, key = nodes.worlds[2], _guests(nodes.worlds[2]), nodes._key(1)
    job, asked = _job(world), nodes.all_of(p.Decode, 1)[0]
    world.connect()  # keeps the job
    guests.behind_us = lambda *_: 0
    guests.stream.fail_from("media", "an end", Position(1, 0, 0))
    for trainer in list(world.trainers):
        world.kill_trainer(trainer)
    assert job.streams
    assert guests.arena not in job.rings.held
    nodes.tell(2, 1, msgspec.structs.replace(asked, task=7))
    assert (key, 7) not in guests.filling
    assert nodes.all_of(p.Declined, 2)[-1].task == 7


def _cut_sample(fields: int, cuts: int) -> Batch:
    """A batch of one sample, alone, in so many parts; as of a guest, its layout has no fields."""
    row = m.Row(1, (), {}, cuts + 1, tuple(range(1, cuts + 1)), (1,) * (cuts + 1))
    consumer: Any = SimpleNamespace(stream=SimpleNamespace(schema=(None,) * fields))
    nowhere: Any = None
    layout = BatchLayout(64, (), ((),), (0, 0), (0,))
    batch = Batch(consumer, Position(0, 0, 0), (row,), layout, nowhere, nowhere, 0.0, 1, 1000)
    for begin in range(cuts + 1):
        batch.add(Piece(0, begin, begin + 1, 1))
    return batch


def test_a_sample_that_is_begun_here_is_not_sent_for() -> None:
    batch = _cut_sample(1, 1)
    assert batch.untouched() == {0: 2}
    batch.group_us = 0
    (piece,) = batch.take(lambda: 1).pieces
    assert not batch.untouched()
    batch.done()
    batch.filled(piece, 1)
    assert not batch.untouched()


def test_parts_of_a_guest_with_many_fields_fit_a_message() -> None:
    batch = _cut_sample(64, 16)
    assert len(batch.take(lambda: 1).pieces) * 64 <= m.MAX_PLACES


def test_who_is_made_known_again_is_not_forgotten_first() -> None:
    peering = Peering([], lambda: 1, "0")
    peers = [m.Peer(f"{i:040d}", f"node{i}:1") for i in range(MOST_ACQUAINTANCES + 1)]
    peering.acquaint(tuple(peers[:-1]))
    peering.acquaint((peers[0],))
    peering.acquaint((peers[-1],))
    assert peers[0].key in peering.acquaintances
    assert peers[1].key not in peering.acquaintances


def test_who_answers_nothing_is_tried_with_one_sample_now_and_then() -> None:
    nodes = _nodes()
    nodes.run(lambda: all(helper.heard for helper in _remote(nodes.worlds[1]).helpers.values()), 4000)
    nodes.run(lambda: nodes.count("landed") > 5)
    nodes.dropped = {"Decoded", "Declined"}
    until = nodes.now + 5
    nodes.run(lambda: nodes.now > until)
    before, until = len(nodes.all_of(p.Decode, 1)), nodes.now + 15
    nodes.run(lambda: nodes.now > until)
    assert len(nodes.all_of(p.Decode, 1)) - before <= 2 * 3
    nodes.dropped.clear()
    landed = nodes.count("landed")
    nodes.run(lambda: nodes.count("landed") > landed + 10)


def _taken(nodes: Overheard, behind_us: Callable[[Guests], Callable[[float, int], int]]) -> list[bool]:
    """Whether a node that has no core idle takes each of two samples."""
    nodes.run(lambda: _guests(nodes.worlds[2]).filling)
    guests, asked = _guests(nodes.worlds[2]), nodes.all_of(p.Decode, 1)[0]
    for guest in list(guests.filling.values()):
        guests._drop(guest)
    guests.behind_us, guests.stream.idle = behind_us(guests), lambda: False
    for task in (7, 8):
        nodes.tell(2, 1, msgspec.structs.replace(asked, task=task))
    return [(nodes._key(1), task) in guests.filling for task in (7, 8)]


def test_a_node_with_another_loader_that_is_late_helps_nobody() -> None:
    def late(guests: Guests) -> Callable[[float, int], int]:
        assert guests.stream.team is not None
        guests.stream.team.load = lambda: p.Load(behind_us=10_000)
        return guests.behind_us

    assert _taken(_nodes(), late) == [False, False]


def test_guests_count_in_what_makes_the_batches_of_their_host_late() -> None:
    assert _taken(_nodes(), lambda _: lambda _, guests_us: guests_us) == [True, False]


def test_who_is_new_is_tried_with_one_sample_until_it_answers() -> None:
    nodes = _nodes()
    nodes.dropped = {"Decode"}  # nobody is connected yet
    nodes.asked_from(1, 1)
    until = nodes.now + 2
    nodes.run(lambda: nodes.now > until)
    assert len(nodes.all_of(p.Decode, 1)) <= 2 * 2
    nodes.dropped.clear()
    until = nodes.now + 3
    nodes.run(lambda: nodes.count("landed") > 10)
    assert nodes.now < until


@pytest.mark.parametrize("seed", range(6))
def test_odd_and_late_words_double_and_lose_nothing(seed: int) -> None:
    nodes = _nodes(seed, layout=("stack", "pack", "ragged")[seed % 3])
    rng, huge = random.Random(seed), (1 << 62) - 1
    for _ in range(12_000):
        nodes.step()
        errands = [entry for entry in nodes.said[-40:] if isinstance(entry[2], p.ErrandMessage)]
        if not errands or rng.random() > 0.05:
            continue
        source, to, said = rng.choice(errands)
        odd, payload = rng.choice([0, 1, 7, 1 << 20, huge]), b""
        match said:
            case p.Decode(places=(first, *rest)):
                place = msgspec.structs.replace(first, slot=(odd,) * rng.randrange(3), strides=(odd,))
                row = msgspec.structs.replace(said.row, id=rng.choice([-1, odd]))
                changes: list[dict[str, Any]] = [
                    {"places": (place, *rest)},
                    {"places": ()},
                    {"row": row},
                    {"due_us": huge},
                    {},
                ]
                said = msgspec.structs.replace(said, task=rng.choice([odd, said.task]), **rng.choice(changes))
            case p.Decoded():  # of what is lost, too long, of another size
                payload = bytes(rng.choice([0, 8, 1 << 16]))
                said = msgspec.structs.replace(
                    said, at=said.at + 1 + odd, nbytes=rng.choice([1, said.nbytes])
                )
            case p.Declined():
                said = msgspec.structs.replace(said, after_us=odd, bad=rng.random() < 0.5)
        nodes.tell(to, source, said, payload)
    nodes.drain(TWO_EPOCHS)
    check_steps(nodes, nodes.settings, TWO_EPOCHS)
    assert nodes.count("landed") > 20
