"""Where a node is found by others, and whether a job has several."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from libhelix import meeting
from libhelix.errors import UsageError
from libhelix.wire import messages as m
from libhelix.wire.keys import new_keys
from libhelix.wire.settings import IndexRef
from tests.helixd.core.nodes import fixed
from tests.helixd.core.world import start_at


@pytest.mark.parametrize(
    ("environ", "several"),
    [
        ({}, False),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, False),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, True),
        ({"SLURM_NNODES": "4"}, True),
        ({"SLURM_NNODES": "4", "SLURM_STEP_NUM_NODES": "1"}, False),
    ],
)
def test_launchers_say_whether_there_are_several_nodes(environ: dict[str, str], several: bool) -> None:
    assert meeting.several_nodes(environ) == several


def test_what_is_said_of_the_host_is_taken() -> None:
    assert meeting.own_host({"HELIX_PEER_HOST": "node7", "MASTER_ADDR": "127.0.0.1"}) == "node7"


def test_a_job_on_this_machine_alone_is_found_here() -> None:
    assert meeting.own_host({"MASTER_ADDR": "127.0.0.1"}) == "127.0.0.1"


def test_a_name_that_is_this_machine_in_etc_hosts_is_not_told_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Debian writes it for the first node."""
    asked: list[str] = []

    def towards(where: str) -> str:
        asked.append(where)
        return "127.0.1.1" if where == "first-node" else "10.0.0.1"

    monkeypatch.setattr(meeting, "_host_towards", towards)
    assert meeting.own_host({"MASTER_ADDR": "first-node"}) == "10.0.0.1"
    assert asked == ["first-node", meeting._ELSEWHERE]


def test_no_way_to_the_first_node_is_said_with_the_cure() -> None:
    with pytest.raises(UsageError, match="HELIX_PEER_HOST"):
        meeting.own_host({"MASTER_ADDR": "no-such-node.invalid"})


def test_a_loader_that_not_all_processes_have_is_not_helped() -> None:
    said: list[str] = []
    environ = {"HELIX_HELPERS": "1", "WORLD_SIZE": "8"}
    assert meeting.meeting_of("eval", 0, fixed(1), 1.0, warn=said.append, environ=environ) is None
    assert said == ["no node can help this loader: the loader has 1 processes, the job 8"]


def test_where_nobody_can_be_met_none_is_said_to_help() -> None:
    said: list[str] = []
    environ = {"HELIX_HELPERS": "1"}
    met = meeting.meeting_of("train", 0, fixed(1), 1.0, warn=said.append, environ=environ)
    assert met is not None
    met._alone("there is no store")
    assert said == ["nodes plan each for themselves, and none can help: there is no store"]


class _Daemon:
    """A client whose daemon listens with the keys it is given, unless the port is taken."""

    def __init__(self, job: str, taken: int = 0) -> None:
        self.job, self.taken = job, taken
        self.asked: list[m.Meet] = []
        self.told: list[m.Peers] = []

    def meet(self, meet: m.Meet, limit_s: float, *, anew: bool = False) -> m.Met | m.Unmet:
        self.asked.append(meet)
        if self.taken and meet.port:
            self.taken -= 1
            return m.Unmet("the port is taken")
        return m.Met(meet.keys or new_keys(), meet.port or 4000 + len(self.asked))

    def send(self, peers: m.Peers) -> None:
        self.told.append(peers)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = pytest.importorskip("torch.distributed").HashStore()
    monkeypatch.setattr(meeting.Meeting, "_store", lambda _: found)
    monkeypatch.setattr(meeting, "_AGAIN_S", 0.0)
    monkeypatch.setattr(meeting, "_met", {})
    return found


def _meeting(name: str) -> meeting.Meeting:
    environ = {"HELIX_HELPERS": "1", "HELIX_PEER_HOST": "10.0.0.1"}
    found = meeting.meeting_of(name, 0, fixed(1), 5.0, warn=lambda _: None, environ=environ)
    assert found is not None
    return found


def _introduce(one: meeting.Meeting, daemon: _Daemon) -> None:
    attach = m.Attach(1, "train", 0, 0, fixed(1), (IndexRef("i", "r"),), (), start_at(0, 0).packed())
    one.introduce(daemon, attach, time.monotonic() + 5)  # type: ignore[arg-type]


def test_a_daemon_that_is_started_anew_gets_the_keys_of_before_whichever_loader_asks(
    store: Any,
) -> None:
    first, again = _Daemon("j"), _Daemon("j", taken=2)
    train, held_out = _meeting("train"), _meeting("eval")
    _introduce(train, first)
    keys = first.told[-1].leader.key
    _introduce(held_out, again)  # another one is there now, and this loader has not met anybody
    assert again.told[-1].leader.key == keys
    _introduce(train, again)
    assert [told.name for told in again.told] == ["eval", "train"]
    assert {told.leader.key for told in again.told} == {keys}


@pytest.mark.parametrize("deaf", [None, 1])
def test_nothing_of_a_meeting_stays_in_the_store(
    store: Any, monkeypatch: pytest.MonkeyPatch, deaf: int | None
) -> None:
    """A job may make loaders for a month; also where a node's daemon cannot listen."""
    environ = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "1", "HELIX_PEER_HOST": "10.0.0.1"}
    met = []
    for rank in range(3):
        monkeypatch.setattr(meeting, "_count", {})  # as each rank has its own
        chosen = fixed(3)
        met.append(meeting.meeting_of("eval", rank, chosen, 5.0, warn=lambda _: None, environ=environ))
    monkeypatch.setattr(meeting, "_met", {"a": m.Met(new_keys(), 4000)})  # of one node, two ranks
    daemons = [_Daemon("a"), _Daemon("a"), _Daemon("b")]
    if deaf is not None:
        monkeypatch.setattr(daemons[deaf], "meet", lambda *_, **__: m.Unmet("no such address"))
    with ThreadPoolExecutor(3) as ranks:
        list(ranks.map(_introduce, met, daemons))
    assert bool(daemons[2].told) == (deaf is None)
    assert store.num_keys() == 0


def test_the_port_that_others_know_is_asked_for_until_it_is_free(store: Any) -> None:
    first, again = _Daemon("j"), _Daemon("j", taken=3)
    train = _meeting("train")
    _introduce(train, first)
    _introduce(train, again)
    assert len(again.asked) == 4
    assert {meet.port for meet in again.asked} == {again.asked[0].port} != {0}
    assert again.told == first.told
