"""Ranks on several nodes get each sample once, whatever the net and the daemons do."""

from __future__ import annotations

import contextlib
import cProfile
import pstats
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from helixd.core import actions as a
from helixd.core.job import Job
from helixd.core.leader import Leader
from helixd.core.stream import Stream
from helixd.core.team import AskedTask
from libhelix.errors import HelixError
from libhelix.plan.placement import Placement, place
from libhelix.wire import messages as m
from libhelix.wire import peer as p
from libhelix.wire.messages import Row
from libhelix.wire.settings import Buckets, FixedBatch, Packed, Position, TokenBudget
from tests.helixd.core.nodes import Nodes, check_steps, fixed
from tests.helixd.core.world import SCHEMAS, Carried, World, planned, row_of, settings
from tests.libhelix.wire.generate import instances

FOUR = [[0, 1], [2, 3], [4, 5], [6, 7]]
TWO_EPOCHS = Position(2, 0, 0)


@pytest.mark.parametrize(
    "batching",
    [FixedBatch(2), FixedBatch(2, regroup=4), TokenBudget(40), Packed(40), Buckets(20)],
    ids=lambda b: f"{type(b).__name__}-{b.regroup}",
)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_four_nodes_give_the_batches_of_one(batching: object, micro_batches: int) -> None:
    layout = "pack" if isinstance(batching, Packed) else "pad"
    chosen = settings(
        layout,
        dp_size=8,
        batching=batching,
        index_samples=150,
        micro_batches=micro_batches,
        ring=2 * micro_batches + 1,
    )
    nodes = Nodes(random.Random(1), chosen, FOUR)
    nodes.drain(Position(1, 0, 0))
    check_steps(nodes, chosen, Position(1, 0, 0))
    assert nodes.sent["Share"] > 0


@pytest.mark.parametrize("seed", range(8))
def test_lost_doubled_and_reordered_messages_change_nothing(seed: int) -> None:
    rng = random.Random(seed)
    chosen = fixed(8, batching=FixedBatch(2, regroup=2))
    nodes = Nodes(rng, chosen, FOUR, loss=0.2)
    for _ in range(4000):
        nodes.step()
    nodes.drain(TWO_EPOCHS)
    check_steps(nodes, chosen, TWO_EPOCHS)


@pytest.mark.parametrize("placement", ["static", "dynamic"])
@pytest.mark.parametrize("seed", [*range(12), 41])  # 41: only trainers remember how a window was placed
def test_daemons_that_die_or_stand_still_lose_and_double_nothing(seed: int, placement: str) -> None:
    rng = random.Random(seed)
    chosen = fixed(8, batching=FixedBatch(2, regroup=rng.choice([1, 3])), placement=placement)
    nodes = Nodes(rng, chosen, FOUR, loss=0.05)
    for _ in range(12):
        for _ in range(rng.randrange(600)):
            nodes.step()
        nodes.frozen.clear()  # before 30 s are over, in which a worker host has to come
        match rng.choice(["restart", "restart", "cut", "freeze", "mend"]):
            case "restart":
                # By load, windows are placed by the leader alone, and its daemon comes back only when its
                # ranks ask for a batch: who has lost its windows, too, may wait for these in vain.
                if placement == "static" or nodes.supplied:
                    nodes.restart(rng.randrange(4))
            case "cut":
                nodes.cut.add(rng.randrange(4))
            case "freeze":
                nodes.frozen = {rng.randrange(4)}
            case "mend":
                nodes.cut.clear()
    nodes.drain(TWO_EPOCHS)
    check_steps(nodes, chosen, TWO_EPOCHS)


def test_describing_is_shared_out() -> None:
    chosen = fixed(8, index_samples=2000, batching=FixedBatch(8, regroup=8))
    nodes = Nodes(random.Random(0), chosen, FOUR)
    nodes.drain(Position(0, 9, 0))
    assert nodes.sent["Describe"] >= 6
    assert nodes.sent["Rows"] >= 6
    assert "Over" not in nodes.sent


def test_what_others_do_not_describe_is_described_here() -> None:
    chosen = fixed(8, index_samples=2000, batching=FixedBatch(8, regroup=8))
    nodes = Nodes(random.Random(0), chosen, FOUR)
    nodes.dropped = {"Rows"}
    for _ in range(60_000):
        if all(t.at >= Position(0, 6, 0) for t in nodes.trainers):
            break
        nodes.step()
    assert nodes.sent["Rows"] >= 3, "they do, and are not heard"
    assert all(t.at >= Position(0, 6, 0) for t in nodes.trainers)
    nodes.drain(Position(0, 9, 0))
    check_steps(nodes, chosen, Position(0, 9, 0))


def test_rows_of_another_epoch_are_not_taken() -> None:
    nodes = Nodes(random.Random(0), fixed(8, index_samples=2000, batching=FixedBatch(8, regroup=8)), FOUR)
    nodes.dropped = {"Rows"}
    job = next(iter(nodes.worlds[0].machine.jobs.values()))
    while not (asked := [(n.peer.key, n.asked) for n in _leader(job).nodes.values() if n.asked]):
        nodes.step()
    key, number, task = asked[0][0], *next((n, t) for n, (t, _) in asked[0][1].items())
    stream, link = next(iter(job.streams.values())), job.peering.link
    assert link is not None

    def tell(epoch: int) -> bool:
        rows = p.Rows(number, epoch, SCHEMAS["stack"], (row_of("stack", task.ids[0]),))
        nodes.worlds[0].tell(a.PeerSaid(link, key, p.Said(stream.name, rows)))
        return stream.windows.asked(task.epoch, task.draws[0])

    assert tell(task.epoch + 1)
    assert not tell(task.epoch)


def _leader(job: Job) -> Leader:
    team = next(iter(job.streams.values())).team
    assert isinstance(team, Leader)
    return team


def _failures(nodes: Nodes, ranks: int) -> dict[int, str]:
    """What ranks were told when their loader ended, by rank."""
    found: dict[int, str] = {}
    for _ in range(12_000):
        try:
            nodes.step()
        except HelixError:
            pass  # as `next()` raises it
        found |= {t.rank: t.attachment.failure.text for t in nodes.trainers if t.attachment.failure}
        if len(found) == ranks:
            break
    return found


def test_a_failure_on_one_node_ends_the_loader_on_all() -> None:
    nodes = Nodes(random.Random(0), fixed(8), FOUR)
    for _ in range(1500):
        nodes.step()
    stream = next(iter(next(iter(nodes.worlds[2].machine.jobs.values())).streams.values()))
    stream.fail("recipe", "it broke")
    assert _failures(nodes, 8) == dict.fromkeys(range(8), "it broke")


def test_other_settings_on_one_node_are_refused_by_name() -> None:
    nodes = Nodes(random.Random(0), fixed(4), [[0, 1], []])
    nodes.ranks[1] = [2, 3]
    for rank in nodes.ranks[1]:
        nodes.worlds[1].attach(rank, fixed(4, seed=7))
    found = _failures(nodes, 4)
    assert sorted(found) == [0, 1, 2, 3]
    assert all("node 1 (node1:1) has other settings" in text and "seed" in text for text in found.values())


def test_a_slow_node_gets_the_samples_that_are_lighter_to_decode() -> None:
    rng = random.Random(3)
    us = [int(rng.lognormvariate(9, 1)) for _ in range(64)]
    rows = {d: Row(d, ((4,),), {"tokens": 1}, 1, (), (us[d],)) for d in range(64)}
    step = (tuple(tuple(range(8 * r, 8 * r + 8)) for r in range(8)),)
    placement = Placement(tuple(map(tuple, FOUR)), (100, 300, 300, 300))
    (placed,) = place((step,), rows, placement)
    assert sorted(d for rank in placed[0] for d in rank) == list(range(64))
    work = [sum(us[d] for rank in ranks for d in placed[0][rank]) for ranks in FOUR]
    time = [w / s for w, s in zip(work, placement.speeds)]
    assert max(time) <= 1.05 * sum(us) / sum(placement.speeds)


@settings_of_hypothesis(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.sampled_from([0, 1]), instances(p.PeerMessage)), min_size=1, max_size=12))
def test_whatever_a_peer_says_raises_nothing(said: list[tuple[int, p.PeerMessage]]) -> None:
    nodes = Nodes(random.Random(0), fixed(4), [[0, 1], [2, 3]])
    for _ in range(150):
        nodes.step()
    for to, message in said:
        nodes.wire.append((1 - to, to, p.encode(p.Said("train", message)), Carried()))
    try:
        for _ in range(100):
            nodes.step()
    except HelixError:
        return  # what a peer said has ended the loader, as its trainer is told


def test_a_rank_that_was_not_there_when_nodes_met_is_refused() -> None:
    nodes = Nodes(random.Random(0), fixed(4), [[0, 1], [2]])
    nodes.worlds[1].attach(3, fixed(4))
    assert "was not there when its nodes met" in _failures(nodes, 4)[3]


def test_nodes_of_a_loader_made_anew_take_the_place_of_those_before() -> None:
    nodes = Nodes(random.Random(0), fixed(4), [[0, 1], [2, 3]])
    world = nodes.worlds[0]
    job = next(iter(world.machine.jobs.values()))
    conn = world.trainers[0].conn
    anew = tuple(m.Peer(key * 40, "n:1") for key in "xy")
    for part, last in ((anew[:1], False), (anew[1:], True)):
        world.tell(a.Received(conn, m.Peers("train", anew[0], (0, 1), part, last=last)))
    assert list(job.peering.tables["train"].nodes) == [peer.key for peer in anew]


def test_a_bad_sample_of_one_node_ends_all_ranks_at_one_step() -> None:
    chosen = fixed(8, on_bad="raise")
    nodes = Nodes(random.Random(0), chosen, FOUR)
    bad = planned(chosen)[Position(0, 5, 0)][6][0]
    for world in nodes.worlds:
        world.bad.add(bad)
    _failures(nodes, 8)
    ends = set()
    for _ in range(6000):
        try:
            nodes.step()
        except HelixError:
            continue
    for t in nodes.trainers:
        assert t.attachment.failure is not None
        ends.add((t.attachment.failure.at, t.at))
    ((end, stands),) = ends
    assert end == stands
    assert end in {
        Position(0, 6, 0),
        Position(0, 7, 0),
    }  # the other rank of its node may have had step 5 before


def _team(nodes: Nodes, i: int) -> Stream:
    (stream,) = (s for job in nodes.worlds[i].machine.jobs.values() for s in job.streams.values())
    return stream


def _say(nodes: Nodes, to: int, source: int, message: p.PeerMessage) -> None:
    """Node `source` says something to another, at once."""
    (job,) = nodes.worlds[to].machine.jobs.values()
    assert job.peering.link is not None
    nodes.worlds[to].tell(a.PeerSaid(job.peering.link, nodes._key(source), p.Said("train", message)))


def test_what_a_node_holds_of_a_leader_before_is_not_placed_anew() -> None:
    nodes = Nodes(random.Random(0), fixed(8, placement="dynamic"), FOUR)
    while not nodes.supplied:
        nodes.step()
    leader = _team(nodes, 0).team
    assert isinstance(leader, Leader)
    leader.log.clear()
    leader.load = lambda: p.Load(1000)
    for i in (1, 2, 3):
        held = p.Held(9, 40, 0, 0) if i == 2 else p.Held(9, 3, 0, 0)
        load = p.Load(3000 if i == 1 else 1000)
        _say(nodes, 0, i, p.Want((), (), _team(nodes, i).fingerprint, load, None, (held,)))
    leader._issue()
    assert list(leader.log) == [(9, 41)]


def test_of_nodes_that_fail_at_once_the_earliest_end_counts_for_all() -> None:
    nodes = Nodes(random.Random(0), fixed(8), FOUR, loss=0.2)
    for _ in range(800):
        nodes.step()
    step = max(t.at.step for t in nodes.trainers) + 4
    for i, later in ((0, 2), (2, 0), (3, 1)):
        _team(nodes, i).fail_from("media", f"node {i} fails", Position(0, step + later, 0))
    for _ in range(12_000):
        with contextlib.suppress(HelixError):
            nodes.step()
    assert {t.attachment.failure.text for t in nodes.trainers if t.attachment.failure} == {"node 2 fails"}
    assert {t.at for t in nodes.trainers} == {Position(0, step, 0)}


def test_windows_before_the_end_are_asked_for_until_they_are_there() -> None:
    nodes = Nodes(random.Random(0), fixed(8, batching=FixedBatch(2, regroup=3)), FOUR)
    for _ in range(800):
        nodes.step()
    end = Position(0, max(t.at.step for t in nodes.trainers) + 6, 0)
    _team(nodes, 1).fail_from("media", "the end", end)
    for dropped in ({"Share", "Want"}, set()):
        nodes.dropped = dropped
        for _ in range(4000):
            with contextlib.suppress(HelixError):
                nodes.step()
    assert {t.at for t in nodes.trainers} == {end}


def test_an_end_of_a_loader_that_was_made_before_ends_nothing() -> None:
    nodes = Nodes(random.Random(0), fixed(8), FOUR)
    while not nodes.supplied:
        nodes.step()
    _say(nodes, 0, 1, p.Over("media", "long ago", meeting=7))
    _say(nodes, 1, 0, p.Over("media", "long ago", meeting=7))
    assert not any(_team(nodes, i).failure for i in range(4))
    _say(nodes, 0, 1, p.Over("media", "now"))
    assert _failures(nodes, 8) == dict.fromkeys(range(8), "now")


def test_what_the_leader_has_long_since_described_itself_is_not_described() -> None:
    nodes = Nodes(random.Random(0), fixed(8), FOUR)
    while not nodes.supplied:
        nodes.step()
    stream = _team(nodes, 1)
    _say(nodes, 1, 0, p.Describe(1, 0, (1, 2, 3), (0, 0, 0)))
    tasks = [*nodes.worlds[1].machine.jobs[1, "j"].tasks.values(), *stream.describes]
    (asked,) = (task for task in tasks if isinstance(task, AskedTask))
    assert asked.wanted
    assert stream.team is not None
    stream.team.now += 4
    assert not asked.wanted


def test_a_node_that_has_planned_otherwise_ends_the_loader() -> None:
    """Samples that it alone cannot describe weigh nothing there, so that its steps are others."""
    chosen = settings("pad", dp_size=8, batching=TokenBudget(40), index_samples=600)
    nodes = Nodes(random.Random(0), chosen, FOUR)
    while not nodes.supplied:
        nodes.step()
    windows = _team(nodes, 2).windows
    known = {row.id for ahead in windows.planned.values() for row in ahead.rows.values()}
    nodes.cut.add(2)
    nodes.worlds[2].undescribed |= {i for i in range(0, 600, 3) if i not in known}
    while windows.remote:
        nodes.step()
    shared = set(windows.planned)
    while not set(windows.planned) - shared:
        nodes.step()
    nodes.cut.clear()
    texts = set(_failures(nodes, 8).values())
    assert len(texts) == 1
    assert "node 2 (node2:1) have other plans of epoch 1 from step 8 on" in texts.pop()


def test_on_one_node_nothing_of_all_this_runs() -> None:
    """A job without peers pays nothing for them: once, as a loader comes, it is asked whether it has some."""
    profile = cProfile.Profile()
    world = World(random.Random(0), long=True)
    profile.enable()
    for rank in range(2):
        world.attach(rank, settings("pad"))
    world.drain(Position(2, 0, 0))
    profile.disable()
    called: Any = pstats.Stats(profile)
    run = {(Path(file).stem, function) for file, _, function in called.stats}
    assert ("stream", "want_rows") in run
    of_nodes = {"follower", "gate", "guests", "helping", "leader", "peer", "peering", "remote", "team"}
    assert [(module, function) for module, function in run if module in of_nodes] == [("peering", "team")]


def test_a_window_on_its_way_is_not_sent_again_at_once() -> None:
    nodes = Nodes(random.Random(0), fixed(8), FOUR)
    while not nodes.supplied:
        nodes.step()
    leader = _team(nodes, 0)
    assert leader.team is not None
    want = p.Want((), p.packed(list(leader.windows.planned)[:1]), leader.fingerprint)
    before, shared = nodes.sent["Share"], []
    for later_s in (0.0, 0.1, 1.0):
        nodes.worlds[0].now += later_s
        _say(nodes, 0, 1, want)
        shared.append(nodes.sent["Share"] - before)
    assert shared == [1, 1, 2]


def _want(nodes: Nodes, *held: p.Held, alone: bool = False) -> None:
    """Node 1 says which windows it has, or planned while it was alone."""
    of = _team(nodes, 0).fingerprint
    _say(nodes, 0, 1, p.Want((), (), of, held=() if alone else held, alone=held if alone else ()))


def test_windows_that_begin_otherwise_are_no_conflict_and_those_of_the_past_are_remembered() -> None:
    """Ranks go over from one state to another one by one: for a while there are two windows of one step."""
    nodes = Nodes(random.Random(0), fixed(8), FOUR)
    while not nodes.supplied:
        nodes.step()
    leader = _team(nodes, 0)
    first = next(iter(leader.windows.planned.values())).held
    nodes.drain(Position(0, 4, 0))
    _want(nodes, first, msgspec.structs.replace(first, base=first.base ^ 1, digest=first.digest ^ 1))
    _want(nodes, msgspec.structs.replace(first, step=first.step + 99, digest=1), alone=True)
    assert not leader.failure
    _want(nodes, msgspec.structs.replace(first, digest=first.digest ^ 1), alone=True)
    failure = _team(nodes, 0).failure
    assert failure is not None
    assert failure.code == "conflict"


def test_a_failure_that_is_known_is_not_replaced_by_what_it_led_to() -> None:
    nodes = Nodes(random.Random(0), fixed(8), FOUR)
    while not nodes.supplied:
        nodes.step()
    leader = _team(nodes, 0)
    held = next(iter(leader.windows.planned.values())).held
    leader.fail_from("media", "the sample", Position(0, 5, 0))
    _want(nodes, msgspec.structs.replace(held, digest=held.digest ^ 1))
    assert leader.failure is not None
    assert leader.failure.text == "the sample"


def test_ranks_of_a_node_that_go_elsewhere_one_after_the_other_break_nothing() -> None:
    """Its windows then are two of one step."""
    nodes = Nodes(random.Random(0), fixed(8), FOUR)
    while not nodes.supplied:
        nodes.step()
    windows = _team(nodes, 1).windows
    base, ahead = next(iter(windows.planned.items()))
    windows.planned[msgspec.structs.replace(base, draw=base.draw + 1)] = ahead
    before = nodes.sent["Want"]
    for _ in range(200):
        nodes.step()
    assert nodes.sent["Want"] > before


@pytest.mark.parametrize("seconds", [10, 25])
def test_a_change_of_placement_that_comes_late_stops_nobody(seconds: int) -> None:
    chosen = fixed(8, index_samples=2000, batching=FixedBatch(2, regroup=4), placement="dynamic")
    nodes = Nodes(random.Random(0), chosen, FOUR)
    nodes.tick_s = 0.002
    while not all(t.at >= Position(0, 2, 0) for t in nodes.trainers):
        nodes.step()
    for i in range(4):
        team = _team(nodes, i).team
        assert team is not None
        team.load = lambda speed=1000 * (1 + i): p.Load(speed)  # type: ignore[misc]
    leader = _team(nodes, 0).team
    assert leader is not None
    nodes.dropped, known = {"Placing"}, len(leader.log)
    while len(leader.log) == known:
        nodes.step()
    until = nodes.now + seconds
    while nodes.now < until:
        nodes.step()
    nodes.dropped = set()
    step = min(t.at for t in nodes.trainers).step
    nodes.drain(Position(0, step + 12, 0))


def test_settings_that_only_their_text_tells_apart_are_the_same_loader() -> None:
    """224 and 224.0: a node that was let in is heard."""
    recipe, change = fixed(4).recipe, msgspec.structs.replace
    one, other = (
        fixed(4, recipe=change(recipe, params=params)) for params in ('{"size": 224}', '{"size": 224.0}')
    )
    nodes = Nodes(random.Random(0), one, [[0, 1], []])
    nodes.ranks[1] = [2, 3]
    for rank in nodes.ranks[1]:
        nodes.worlds[1].attach(rank, other)
    for _ in range(3000):
        nodes.step()
    assert min(t.at for t in nodes.trainers) > Position(0, 1, 0)
    assert nodes.sent.get("Unknown", 0) < 10
