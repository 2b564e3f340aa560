"""Jobs whose ranks are on several nodes: network namespaces, real daemons, torchrun and gloo."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import libhelix as hx
from bench.peers import rough
from bench.peers.job import PORT, Job, write_data
from bench.peers.net import Net, net, why_not
from bench.peers.recipe import Paced, checksum_of, ids_of_one_node
from bench.peers.trainer import ENOUGH
from libhelix.index.build import build
from tests.system.processes import eventually

NODES, RANKS_PER_NODE = 4, 2
RANKS = NODES * RANKS_PER_NODE
LIMIT_S = 120.0
NO_NODES = why_not()
pytestmark = pytest.mark.skipif(NO_NODES is not None, reason=NO_NODES or "")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Net]:
    with net(NODES) as made:
        yield made


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nodes")
    path = folder / "data.arrow"
    build([write_data(folder, 600)], path)
    return path


@pytest.fixture
def start(nodes: Net, index: Path, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start_job(*options: str, **how: Any) -> Job:
        jobs.append(Job(nodes, RANKS_PER_NODE, index, tmp_path / f"job{len(jobs)}", options, **how))
        return jobs[-1]

    yield start_job
    for job in jobs:
        job.end()


def _ids(steps: list[list[dict[str, Any]]], step: int) -> list[int]:
    return sorted(i for rank in steps for i in rank[step]["ids"])


def _as_one_node(
    index: Path, steps: int, nbytes: int = 4096, ranks: int = RANKS, **how: Any
) -> list[list[tuple[list[int], int]]]:
    """(ids, checksum) of every rank and step."""
    found = ids_of_one_node(index, ranks, steps, hx.FixedBatch(4, **how))
    return [[(ids, checksum_of(ids, nbytes)) for ids in rank] for rank in found]


def test_nodes_deliver_what_one_would_whatever_ends_meanwhile(
    start: Callable[..., Job], nodes: Net, index: Path
) -> None:
    """The leader's and another daemon are killed, one stands still, and a link is down for five seconds."""
    job = start("--steps", "5000", "--window-ms", "60", "--regroup", "2")
    job.reached(5, LIMIT_S)
    job.signal_daemon(0, signal.SIGKILL)
    job.reached(15, LIMIT_S)
    job.signal_daemon(2, signal.SIGKILL)
    job.reached(25, LIMIT_S)
    nodes.cut(1)
    time.sleep(5)
    nodes.cut(1, cut=False)
    job.reached(35, LIMIT_S)
    job.signal_daemon(0, signal.SIGSTOP)
    time.sleep(6)  # longer than it takes others to plan for themselves
    job.signal_daemon(0, signal.SIGCONT)
    job.reached(60, LIMIT_S)
    _check_status(nodes)
    (job.out / ENOUGH).touch()
    assert job.wait(LIMIT_S) == [0] * NODES, job.log()
    took = [[(step["ids"], step["crc"]) for step in rank] for rank in job.steps()]
    assert took == _as_one_node(index, len(took[0]), regroup=2)


def test_a_node_that_decodes_slowly_gets_lighter_samples(start: Callable[..., Job], index: Path) -> None:
    steps = 40
    job = start(
        *("--steps", str(steps), "--regroup", "2", "--placement", "dynamic", "--mean-us", "10000"),
        env_of={1: {"HELIX_BENCH_SLOWNESS": "4"}},
    )
    job.reached(20, LIMIT_S)
    job.signal_daemon(0, signal.SIGKILL)  # what it placed is placed the same by the next
    assert job.wait(LIMIT_S) == [0] * NODES, job.log()
    took, expected = job.steps(), _as_one_node(index, steps, regroup=2)
    for step in range(steps):
        assert _ids(took, step) == sorted(i for rank in expected for i in rank[step][0])
    work = [_work(took[2 * i : 2 * i + 2], 16) for i in range(NODES)]
    assert work[1] < 0.5 * min(work[0], *work[2:])


def test_a_node_that_is_late_is_helped_whoever_dies_meanwhile(
    start: Callable[..., Job], nodes: Net, index: Path
) -> None:
    nbytes = 700_000
    job = start(
        *("--steps", "5000", "--window-ms", "10", "--mean-us", "10000", "--nbytes", str(nbytes)),
        env_of={1: {"HELIX_BENCH_SLOWNESS": "6"}},
    )
    job.reached(12, LIMIT_S)
    job.signal_daemon(2, signal.SIGKILL)  # one that may be decoding for another
    job.reached(26, LIMIT_S)
    remote = _status(nodes, 1)[0]["jobs"][0]["loaders"][0]["nodes"]["remote"]
    (job.out / ENOUGH).touch()
    assert job.wait(LIMIT_S) == [0] * NODES, job.log()
    took = [[(step["ids"], step["crc"]) for step in rank] for rank in job.steps()]
    assert took == _as_one_node(index, len(took[0]), nbytes)
    assert remote["landed"] > 10, remote
    assert remote["nbytes"] > remote["landed"] * nbytes


def test_nodes_without_ranks_help_and_may_die_and_come_again(
    start: Callable[..., Job], nodes: Net, index: Path
) -> None:
    nbytes = 700_000
    options = ("--steps", "5000", "--window-ms", "10", "--mean-us", "40000", "--nbytes", str(nbytes))
    job = start(*options, nodes=1, env={"HELIX_HELPERS": "2"})
    command = [sys.executable, "-m", "helixd", "run", "--helper"]
    store = ["--store", f"{nodes.address(0)}:{PORT}"]
    env = {"MASTER_ADDR": nodes.address(0), "MASTER_PORT": str(PORT)}
    first = nodes.start(1, [*command, *store], stderr=subprocess.PIPE)
    second = nodes.start(2, command, env, stderr=subprocess.PIPE)
    eventually("nodes 1 and 2 help", lambda: all(_helps(nodes, i) for i in (1, 2)), LIMIT_S)
    assert "has no ranks: decodes for 1 late node" in _says(nodes, 2, "status")
    assert "has no ranks here" in _says(nodes, 2, "why")
    first.kill()
    job.signal_daemon(2, signal.SIGKILL)  # another one takes over
    _, said = first.communicate(timeout=LIMIT_S)
    assert "as helper" in said
    job.reached(len(job.steps()[0]) + 10, LIMIT_S)
    again = nodes.start(1, [*command, *store], stderr=subprocess.PIPE)
    eventually("it helps", lambda: _helps(nodes, 1), LIMIT_S)
    job.signal_daemon(0, signal.SIGKILL)  # the next one knows the helpers, too
    job.reached(len(job.steps()[0]) + 20, LIMIT_S)
    leader = _status(nodes, 0)[0]["jobs"][0]["loaders"][0]["nodes"]
    assert leader["remote"]["landed"] > 10, leader
    assert len([h for h in leader["helpers"] if h["silent_s"] < 3]) == 2
    (job.out / ENOUGH).touch()
    assert job.wait(LIMIT_S) == [0], job.log()
    for helper in (second, again):  # the job is over
        _, said = helper.communicate(timeout=LIMIT_S)
        assert helper.returncode == 0, said
        assert "is gone, and the job with it" in said
    took = [[(step["ids"], step["crc"]) for step in rank] for rank in job.steps()]
    assert took == _as_one_node(index, len(took[0]), nbytes, ranks=RANKS_PER_NODE)


@pytest.mark.skipif(rough.why_not() is not None, reason=rough.why_not() or "")
def test_a_link_that_is_long_and_loses_packets_costs_time_alone(
    start: Callable[..., Job], nodes: Net, index: Path
) -> None:
    """100 ms each way and one packet in twenty lost: of plans, of samples decoded elsewhere, of all."""
    nbytes = 100_000
    job = start(
        *("--steps", "5000", "--window-ms", "10", "--mean-us", "10000", "--nbytes", str(nbytes)),
        *("--regroup", "2", "--placement", "dynamic"),
        env_of={1: {"HELIX_BENCH_SLOWNESS": "6"}},
    )
    job.reached(5, LIMIT_S)
    with nodes.rough(1, delay_s=0.1, loss=0.05):
        job.reached(len(job.steps()[0]) + 12, LIMIT_S)
    job.reached(len(job.steps()[0]) + 5, LIMIT_S)
    (job.out / ENOUGH).touch()
    assert job.wait(LIMIT_S) == [0] * NODES, job.log()
    took, expected = job.steps(), _as_one_node(index, len(job.steps()[0]), nbytes, regroup=2)
    for step in range(len(took[0])):
        assert _ids(took, step) == sorted(i for rank in expected for i in rank[step][0])
    for taken in (step for rank in took for step in rank):
        assert taken["crc"] == checksum_of(taken["ids"], nbytes)


def _helps(nodes: Net, i: int) -> bool:
    """Whether a node without ranks decodes for one that is late."""
    told = _status(nodes, i)
    jobs = told[0]["jobs"] if told else []
    return any(loader["nodes"]["helps"] for job in jobs for loader in job["loaders"])


def _says(nodes: Net, i: int, command: str) -> str:
    ask = [sys.executable, "-m", "libhelix.ctl", command]
    told: str = nodes.start(i, ask, stdout=subprocess.PIPE).communicate(timeout=LIMIT_S)[0]
    return told


def _check_status(nodes: Net) -> None:
    """The leader knows all nodes and their ranks, others their leader."""
    leader, other = (_status(nodes, i)[0]["jobs"][0]["loaders"][0]["nodes"] for i in (0, 1))
    assert leader["leads"]
    assert sorted(node["ranks"] for node in leader["nodes"]) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert not other["leads"]
    assert other["joined"]
    assert other["leader"].startswith(f"{nodes.address(0)}:")
    assert _status(nodes, 1)[0]["peer_bytes"] > 0


def _status(nodes: Net, i: int) -> Any:
    ask = [sys.executable, "-m", "libhelix.ctl", "status", "--json"]
    told, _ = nodes.start(i, ask, stdout=subprocess.PIPE).communicate(timeout=LIMIT_S)
    return json.loads(told or "[]")


def _work(ranks: list[list[dict[str, Any]]], first: int) -> float:
    """What the samples of these ranks take to decode, by their recipe's own word."""
    recipe = Paced(mean_us=10_000)
    rng: Any = None
    return sum(
        sum(recipe.describe(hx.Sample(i, "", ()), rng).segment_us)
        for rank in ranks
        for step in rank[first:]
        for i in step["ids"]
    )


def test_without_peers_every_node_plans_for_itself(start: Callable[..., Job], index: Path) -> None:
    """As where one node's daemon cannot listen."""
    job = start("--steps", "6", env_of={1: {"HELIX_PEER_HOST": "192.0.2.1"}})
    assert job.wait(LIMIT_S) == [0] * NODES, job.log()
    assert "nodes plan each for themselves: " in job.log()
    assert "helixd cannot listen for peers at 192.0.2.1" in job.log()
    took = [[(step["ids"], step["crc"]) for step in rank] for rank in job.steps()]
    assert took == _as_one_node(index, 6)


def test_a_node_with_data_of_its_own_has_an_index_of_its_own(nodes: Net, tmp_path: Path) -> None:
    """Ranks of a node share its samples out; nodes need not have equally many."""
    for i in range(NODES):
        (tmp_path / f"data{i}").mkdir()
        build([write_data(tmp_path / f"data{i}", 32 + 8 * i)], tmp_path / f"{i}.arrow")
    job = Job(nodes, RANKS_PER_NODE, tmp_path, tmp_path / "job", ["--steps", "12", "--apart"])
    try:
        assert job.wait(LIMIT_S) == [0] * NODES, job.log()
    finally:
        job.end()
    took = [[(step["ids"], step["crc"]) for step in rank] for rank in job.steps()]
    for i in range(NODES):
        mine = took[i * RANKS_PER_NODE : (i + 1) * RANKS_PER_NODE]
        assert mine == _as_one_node(tmp_path / f"{i}.arrow", 12, ranks=RANKS_PER_NODE)
