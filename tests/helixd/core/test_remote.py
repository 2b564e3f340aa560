"""A node that is late has samples decoded by others; whatever happens, each comes once and whole."""

from __future__ import annotations

import random
from itertools import combinations

import msgspec
import pytest

from helixd.core import account
from helixd.core.job import Job
from libhelix.ctl.trace import events_of
from libhelix.wire import peer as p
from libhelix.wire.settings import FixedBatch, Position
from tests.helixd.core.nodes import Uneven, check_steps, fixed
from tests.helixd.core.world import World, planned

THREE = [[0, 1], [2, 3], [4, 5]]
TWO_EPOCHS = Position(2, 0, 0)


def _job(world: World) -> Job:
    return next(iter(world.machine.jobs.values()))


@pytest.mark.parametrize("layout", ["stack", "pad", "pack", "ragged"])
def test_a_late_node_is_helped_and_gets_the_very_same_batches(layout: str) -> None:
    chosen = fixed(6, layout=layout, batching=FixedBatch(4), index_samples=240)
    nodes = Uneven(random.Random(0), chosen, THREE)
    nodes.drain(TWO_EPOCHS)
    check_steps(nodes, chosen, TWO_EPOCHS)
    assert nodes.count("landed") > 20


def test_a_trace_shows_what_other_nodes_decoded_beside_what_was_predicted() -> None:
    chosen = fixed(6, batching=FixedBatch(4), index_samples=240)
    nodes = Uneven(random.Random(0), chosen, THREE)
    nodes.drain(TWO_EPOCHS)
    late = nodes.worlds[1]
    answer = msgspec.to_builtins({"jobs": account.trace([_job(late)])})
    events, _ = events_of([answer])
    rows = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    spans = [e for e in events if e["ph"] == "X" and rows[e["pid"]].endswith(": other nodes")]
    assert len(spans) == late.machine.counters.remote.landed > 20
    for one, other in combinations(spans, 2):
        apart = one["ts"] + one["dur"] <= other["ts"] or other["ts"] + other["dur"] <= one["ts"]
        assert one["tid"] != other["tid"] or apart
    for span in spans:
        assert span["args"]["rank"] in THREE[1]
        assert span["args"]["predicted_ms"] > 0
        assert span["args"]["bytes"] > 0


@pytest.mark.parametrize("seed", range(10))
def test_lost_messages_killed_workers_and_daemons_double_and_lose_nothing(seed: int) -> None:
    rng = random.Random(seed)
    chosen = fixed(6, batching=FixedBatch(4, regroup=rng.choice([1, 2])), index_samples=240)
    nodes = Uneven(rng, chosen, THREE, loss=rng.choice([0.0, 0.05]))
    for _ in range(10):
        for _ in range(rng.randrange(1500)):
            nodes.step()
        nodes.frozen.clear()
        world = rng.choice(nodes.worlds)
        match rng.choice(["restart", "cut", "freeze", "mend", "worker", "host"]):
            case "restart":
                nodes.restart(nodes.worlds.index(world))
            case "cut":
                nodes.cut.add(rng.randrange(3))
            case "freeze":
                nodes.frozen = {rng.randrange(3)}
            case "mend":
                nodes.cut.clear()
            case "worker" if alive := [w for w in world.workers.values() if not w.dead]:
                world.kill_worker(rng.choice(alive))
            case "host" if world.host is not None:
                world.kill_host()
    nodes.drain(TWO_EPOCHS)
    check_steps(nodes, chosen, TWO_EPOCHS)
    assert nodes.count("sent") > 0


def test_a_sample_that_is_bad_elsewhere_is_tried_here() -> None:
    chosen = fixed(6, batching=FixedBatch(4), index_samples=240)
    nodes = Uneven(random.Random(0), chosen, THREE)
    for i in (0, 2):
        nodes.worlds[i].bad = set(range(0, 240, 3))
        for rank in THREE[i]:
            nodes.worlds[i].bad -= {s for ranks in planned(chosen).values() for s in ranks[rank]}
    nodes.drain(Position(1, 0, 0))
    assert nodes.count("landed") > 0
    assert all(not s.bad for world in nodes.worlds for s in _job(world).streams.values())


def test_who_answers_nothing_costs_no_more_than_time() -> None:
    chosen = fixed(6, batching=FixedBatch(4), index_samples=240)
    nodes = Uneven(random.Random(0), chosen, THREE)
    nodes.dropped = {"Decoded", "Declined"}
    nodes.drain(TWO_EPOCHS)
    check_steps(nodes, chosen, TWO_EPOCHS)
    assert nodes.count("landed") == 0
    assert nodes.count("taken_back") > 0


@pytest.mark.parametrize("who", [[1], [0, 2]], ids=["who is late", "who would help"])
def test_rings_that_cannot_be_mapped_cost_help_and_no_more(who: list[int]) -> None:
    chosen = fixed(6, batching=FixedBatch(4), index_samples=240)
    nodes = Uneven(random.Random(0), chosen, THREE)
    for i in who:
        nodes.worlds[i].unmappable = True
    nodes.drain(TWO_EPOCHS)
    check_steps(nodes, chosen, TWO_EPOCHS)
    assert nodes.worlds[1].machine.counters.remote.landed == 0
    told = [text for i in who for text in nodes.worlds[i].logs if "a ring cannot be mapped" in text]
    assert told == ["loader 'train': no help between nodes, a ring cannot be mapped: no address space"] * len(
        told
    )
    assert len(told) >= 1


def test_nothing_is_left_of_guests_when_all_is_done() -> None:
    chosen = fixed(6, batching=FixedBatch(4), index_samples=240)
    nodes = Uneven(random.Random(0), chosen, THREE)
    nodes.drain(TWO_EPOCHS)
    for world in nodes.worlds:
        for stream in _job(world).streams.values():
            assert stream.team is not None
            for _ in range(4000):
                nodes.step()
            assert not stream.team.guests.sending
            ledger = stream.team.guests.ledger
            assert ledger is None or ledger.used()[0] == sum(
                g.extent.nbytes for g in stream.team.guests.filling.values()
            )


def test_strangers_get_nothing_decoded() -> None:
    chosen = fixed(6, batching=FixedBatch(4), index_samples=240)
    nodes = Uneven(random.Random(0), chosen, THREE)
    for _ in range(3000):
        nodes.step()
    stream = next(iter(_job(nodes.worlds[2]).streams.values()))
    assert stream.team is not None
    stream.team.guests.hosts.clear()
    row = next(iter(next(iter(stream.windows.planned.values())).rows.values()))
    stream.team.errand("9" * 40, p.Decode(1, 0, row, (), 0, stream.fingerprint), b"", nodes.now)
    assert not stream.team.guests.filling
