"""Where a node is found by others, and whether a job has several."""

from __future__ import annotations

import pytest

from libhelix import meeting
from libhelix.errors import UsageError
from tests.helixd.core.nodes import fixed


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
