"""Nodes without ranks that decode for those that have: batches come in time, and are the very same."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from helixd.core import account
from helixd.core import actions as a
from helixd.core.helping import Helping
from helixd.core.peering import MOST_TABLES
from helixd.core.team import MOST_ACQUAINTANCES
from helixd.core.view import view
from libhelix.wire import messages as m
from libhelix.wire import peer as p
from libhelix.wire.settings import FixedBatch, IndexRef, Position, Segment, Settings
from tests.helixd.core.nodes import Uneven, check_steps, fixed
from tests.helixd.core.world import start_at

ONE_EPOCH, TWO_EPOCHS = Position(1, 0, 0), Position(2, 0, 0)


class Late(Uneven):
    """The leader's workers are the slow ones."""

    slow = 0

    def say(self, i: int, to: int, message: p.PeerMessage) -> None:
        """One node says something to another."""
        (job,) = self.worlds[to].machine.jobs.values()
        assert job.peering.link is not None
        self.worlds[to].tell(a.PeerSaid(job.peering.link, self._key(i), p.Said("train", message), b""))

    def team(self, i: int) -> Helping:
        (job,) = self.worlds[i].machine.jobs.values()
        (stream,) = job.streams.values()
        assert isinstance(stream.team, Helping)
        return stream.team


def _settings(ranks: int, **how: Any) -> Settings:
    return fixed(ranks, batching=FixedBatch(4), index_samples=60 * ranks, **how)


def _until(nodes: Late, what: Any, limit: int = 20_000) -> None:
    for _ in range(limit):
        if what():
            return
        nodes.step()
    raise AssertionError("it does not come")


@pytest.mark.parametrize("layout", ["stack", "pad", "pack", "ragged"])
def test_a_job_on_one_node_is_helped_and_gets_the_very_same_batches(layout: str) -> None:
    chosen = _settings(2, layout=layout)
    nodes = Late(random.Random(0), chosen, [[0, 1]], helpers=2)
    for i in nodes.places:
        nodes.help(i, chosen)
    nodes.drain(TWO_EPOCHS)
    check_steps(nodes, chosen, TWO_EPOCHS)
    assert nodes.count("landed") > 20
    for world in nodes.worlds:  # also of who has no ranks
        (job,) = world.machine.jobs.values()
        assert account.why([job], None, None)
        assert view([job])[0]["loaders"][0]["nodes"]


def _landed(nodes: Late, i: int) -> int:
    (job,) = nodes.worlds[i].machine.jobs.values()
    (stream,) = job.streams.values()
    assert stream.team is not None
    landed: int = stream.team.remote.view()["landed"]
    return landed


def test_the_late_of_several_nodes_is_helped_most() -> None:
    chosen = _settings(4)
    nodes = Late(random.Random(1), chosen, [[0, 1], [2, 3]], helpers=1)
    nodes.help(2, chosen)
    nodes.drain(TWO_EPOCHS)
    check_steps(nodes, chosen, TWO_EPOCHS)
    assert nodes.worlds[2].machine.counters.guests > 10
    # The other decodes for it, too, and may then be late itself.
    assert _landed(nodes, 0) > 5 * _landed(nodes, 1)


@pytest.mark.parametrize("seed", range(8))
def test_helpers_that_come_go_freeze_and_lose_messages_lose_nothing(seed: int) -> None:
    rng = random.Random(seed)
    chosen = _settings(4)
    nodes = Late(rng, chosen, [[0, 1], [2, 3]], helpers=2, loss=rng.choice([0.0, 0.05]))
    conns: dict[int, int] = {}
    for _ in range(12):
        for _ in range(rng.randrange(1200)):
            nodes.step()
        nodes.frozen.clear()
        i = rng.choice(nodes.places)
        match rng.choice(["come", "leave", "die", "freeze", "leader", "worker", "cut", "mend"]):
            case "come" if i not in conns:
                conns[i] = nodes.help(i, chosen)
            case "leave" if i in conns:
                nodes.worlds[i].tell(a.Closed(conns.pop(i), "left"))
            case "die" if i in conns:
                nodes.restart(i)
                conns[i] = nodes.help(i, chosen)
            case "freeze":
                nodes.frozen = {i}
            case "leader":
                nodes.restart(0)
            case "worker" if alive := [w for w in nodes.worlds[i].workers.values() if not w.dead]:
                nodes.worlds[i].kill_worker(rng.choice(alive))
            case "cut":
                nodes.cut.add(i)
            case "mend":
                nodes.cut.clear()
    nodes.drain(TWO_EPOCHS)
    check_steps(nodes, chosen, TWO_EPOCHS)


def test_what_fails_on_a_helper_ends_no_job() -> None:
    chosen = _settings(2)
    nodes = Late(random.Random(0), chosen, [[0, 1]], helpers=1)
    conn = nodes.help(1, chosen)
    nodes.team(1).stream.fail("recipe", "cannot be imported")
    nodes.drain(ONE_EPOCH)
    assert (nodes.worlds[1].machine.deadline() or 0.0) < nodes.now + 5  # that a socket can be waited for
    told = nodes.worlds[1].told[conn]
    assert [x.text for x in told if isinstance(x, m.Failed)] == ["cannot be imported"]
    check_steps(nodes, chosen, ONE_EPOCH)


def test_a_node_that_is_not_expected_or_has_other_settings_decodes_nothing() -> None:
    chosen = _settings(2)
    nodes = Late(random.Random(0), chosen, [[0, 1]], helpers=1)
    nodes.worlds.append(nodes._new())
    nodes.help(2, chosen)
    conn = nodes.help(1, replace(chosen, seed=chosen.seed + 1))
    nodes.drain(ONE_EPOCH)
    assert nodes.count("landed") == 0
    (failed,) = [x for x in nodes.worlds[1].told[conn] if isinstance(x, m.Failed)]
    assert failed.text == "loader 'train' goes on with other settings"
    assert "has never answered" in (nodes.team(2).waits_for(nodes.now) or "")


def test_other_weights_are_nothing_to_a_helper() -> None:
    chosen = _settings(2)
    nodes = Late(random.Random(0), chosen, [[0, 1]], helpers=1)
    nodes.help(1, replace(chosen, schedule=(Segment(0, (1.0,)),)))
    nodes.say(0, 1, p.Engaged(0, (), chosen))
    nodes.say(0, 1, p.Engaged(0, (), chosen))  # messages come twice
    nodes.drain(TWO_EPOCHS)
    assert nodes.count("landed") > 0


def test_a_helper_takes_its_memory_before_it_is_asked_and_gives_it_back() -> None:
    chosen = _settings(2)
    nodes = Late(random.Random(0), chosen, [[0, 1]], helpers=1)
    conn = nodes.help(1, chosen)
    _until(nodes, lambda: nodes.team(1).guests.state == "serving")
    assert not nodes.team(1).guests.hosts
    world = nodes.worlds[1]
    assert len(world.arenas) == 1
    world.tell(a.Received(conn, m.Detach(1)))
    assert not world.arenas
    assert not next(iter(world.machine.jobs.values())).streams


def test_a_loader_that_is_closed_is_over_on_its_helpers() -> None:
    chosen = _settings(2)
    nodes = Late(random.Random(0), chosen, [[0, 1]], helpers=1)
    conn = nodes.help(1, chosen)
    _until(nodes, lambda: nodes.count("landed") > 0)
    trainers = nodes.worlds[0].trainers
    while trainers:
        trainer = trainers.pop()
        nodes.worlds[0].tell(a.Received(trainer.conn, m.Detach(trainer.attachment.loader)))
    told = nodes.worlds[1].told[conn]
    _until(nodes, lambda: any(isinstance(x, m.Failed) for x in told))
    assert [x.text for x in told if isinstance(x, m.Failed)] == ["its trainers have closed it"]
    nodes.worlds[1].tell(a.Received(conn, m.Detach(1)))
    assert not nodes.worlds[1].arenas
    again = nodes.help(1, chosen)
    nodes.worlds[0].attach(0, chosen)
    nodes.worlds[0].attach(1, chosen)
    before = nodes.count("landed")
    _until(nodes, lambda: nodes.count("landed") > before)
    assert not [x for x in nodes.worlds[1].told[again] if isinstance(x, m.Failed)]


def test_a_ring_is_of_whole_pages_and_none_is_made_that_cannot_be() -> None:
    chosen = _settings(2)
    nodes = Late(random.Random(0), chosen, [[0, 1]], helpers=2)
    conns = [nodes.help(i, chosen) for i in nodes.places]
    nodes.say(0, 1, p.Engaged(5001, ()))  # of a leader with smaller pages
    assert nodes.team(1).guests.max_bytes == 5056
    nodes.say(0, 2, p.Engaged((1 << 62) - 1, ()))
    assert not nodes.worlds[2].arenas
    (failed,) = [x for x in nodes.worlds[2].told[conns[1]] if isinstance(x, m.Failed)]
    assert failed.text.endswith("bytes is absurd")


def test_a_client_that_asks_for_batches_where_it_helps_is_not_heard() -> None:
    chosen = _settings(2)
    nodes = Late(random.Random(0), chosen, [[0, 1]], helpers=1)
    conn = nodes.help(1, chosen)
    world = nodes.worlds[1]
    leader = m.Peer(nodes._key(0), "node0:1")
    for message in (m.Ask(1, Position(0, 0, 0)), m.Release(1, 1), m.Seek(1, start_at(0, 0).packed(), 1)):
        world.tell(a.Received(conn, message))
    assert world.machine.ignored_messages == 3
    again = m.Help(2, "train", chosen, (IndexRef("i", "r"),), (), leader, "node1:1")
    world.tell(a.Received(conn, again))
    (failed,) = [x for x in world.told[conn] if isinstance(x, m.Failed)]
    assert failed.text == "job 'j' has a loader 'train' here already"
    world.tell(a.Received(conn, m.Help(1, "other", chosen, again.indexes, (), leader, "node1:1")))
    assert isinstance(world.told[conn][-1], m.Refused)


def test_as_many_helpers_as_may_be_and_late_nodes_do_not_drive_one_another_out() -> None:
    chosen = _settings(4)
    nodes = Late(random.Random(0), chosen, [[0, 1], [2, 3]], helpers=m.MAX_HELPERS)
    (job,) = nodes.worlds[0].machine.jobs.values()
    for _ in range(2):
        for i in range(1, 2 + m.MAX_HELPERS):
            job.peering.acquaint((m.Peer(nodes._key(i), f"node{i}:1"),))
    assert len(job.peering.acquaintances) == 1 + m.MAX_HELPERS


def test_what_a_client_and_its_leader_make_known_is_bounded() -> None:
    chosen = _settings(2)
    nodes = Late(random.Random(0), chosen, [[0, 1]], helpers=1)
    conn = nodes.help(1, chosen)
    world, team = nodes.worlds[1], nodes.team(1)
    known: list[int] = []

    act = world._do

    def watched(action: a.Action) -> None:
        if isinstance(action, a.KnowPeers):
            known.append(len(action.peers))
        act(action)

    world._do = watched  # type: ignore[method-assign]
    for i in range(200):
        leader = m.Peer(f"{1000 + i:040d}", f"node{i}:1")
        world.tell(
            a.Received(conn, m.Help(2 + i, f"loader{i}", chosen, (IndexRef("i", "r"),), (), leader, "h:1"))
        )
        team.acquainted(p.Acquaint((leader,), helps=False))
        team.acquainted(p.Acquaint((leader,), helps=True, spare=(1000,)))
    assert max(known) <= MOST_TABLES + MOST_ACQUAINTANCES + 1
    assert len(team.guests.hosts) == len(team.remote.helpers) == MOST_ACQUAINTANCES
