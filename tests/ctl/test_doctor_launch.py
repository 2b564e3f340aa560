"""helixctl doctor on launchers that contradict each other, and on nodes that cannot reach each other."""

from __future__ import annotations

import socket
import threading

import pytest

from libhelix.ctl.checks import launch
from libhelix.ctl.checks.finding import Finding
from libhelix.ctl.checks.launch import Network
from tests.ctl.test_doctor import named

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_RUN_ID": "run",
    "MASTER_ADDR": "n0",
    "MASTER_PORT": "29500",
}
REACHED = Network(master=("10.0.0.1",), host="10.0.0.2")


def launcher(environ: dict[str, str]) -> Finding:
    return named(launch.judge(environ, Network()), "launcher")


def test_one_process_without_a_launcher_is_fine_and_told_how_to_see_more() -> None:
    found = launch.judge({}, Network())
    assert {f.grade for f in found} == {"ok"}
    assert "srun helixctl doctor" in named(found, "launcher").found
    inside = launcher({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"})
    assert inside.found.startswith("inside a Slurm allocation, but not started by srun")


def test_a_rank_of_torchrun_on_two_nodes_is_told_with_its_job_and_addresses() -> None:
    found = launch.judge(TORCHRUN, REACHED)
    assert [(f.name, f.grade, f.found) for f in found] == [
        ("launcher", "ok", "rank 5 of 8, job 'torchrun-run'"),
        ("master", "ok", "MASTER_ADDR=n0 is 10.0.0.1"),
        ("other nodes", "ok", "other nodes reach this one at 10.0.0.2, at any free port of TCP"),
    ]


@pytest.mark.parametrize(
    ("changed", "grade", "said"),
    [
        ({"RANK": "9"}, "problem", "RANK=9 is not a rank of WORLD_SIZE=8"),
        ({"RANK": "five"}, "problem", "not numbers"),
        ({"LOCAL_RANK": "4"}, "problem", "LOCAL_RANK=4 and LOCAL_WORLD_SIZE=4 exclude each other"),
        ({"LOCAL_WORLD_SIZE": "16"}, "problem", "LOCAL_WORLD_SIZE=16 and WORLD_SIZE=8 exclude each other"),
        (
            {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_NNODES": "2"},
            "warning",
            "Slurm started 8 tasks on 2 nodes, and torchrun in each: 8 ranks in all",
        ),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_NNODES": "2"}, "ok", "rank 5 of 8"),
    ],
)
def test_what_torchrun_cannot_have_set_is_told(changed: dict[str, str], grade: str, said: str) -> None:
    one = launcher({**TORCHRUN, **changed})
    assert one.grade == grade
    assert said in one.found


def test_ranks_that_all_were_given_one_number_by_a_script_are_a_problem() -> None:
    script = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_PORT": "1"}
    one = launcher({**script, "SLURM_PROCID": "3", "SLURM_NTASKS": "4"})
    assert one.grade == "problem"
    assert one.found == "RANK and WORLD_SIZE say rank 0 of 4, which is believed; Slurm says rank 3 of 4"
    of_mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    assert launcher({**script, **of_mpi}).grade == "warning"
    assert "Open MPI says rank 1 of 2" in launcher({**script, **of_mpi}).found
    left_over = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    assert launcher({**script, **left_over}).grade == "ok"


def test_half_a_rank_and_a_job_without_a_name_are_told() -> None:
    half = launcher({"RANK": "3"})
    assert (half.grade, half.found) == ("warning", "RANK=3 is set and WORLD_SIZE is not: neither is heeded")
    nameless = launcher({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})
    assert (nameless.grade, "HELIX_JOB" in nameless.cure) == ("problem", True)


@pytest.mark.parametrize(
    ("environ", "network", "grade", "said"),
    [
        ({}, Network(master_error="Name or service not known"), "problem", "has no address: Name or"),
        ({"MASTER_ADDR": "localhost"}, Network(("127.0.0.1",)), "problem", "another machine, itself"),
        ({"MASTER_ADDR": "127.0.0.1"}, Network(("127.0.0.1",)), "problem", "another machine, itself"),
        ({}, Network(("127.0.1.1",)), "warning", "right on the first node alone"),
        ({"MASTER_PORT": "x"}, REACHED, "problem", "MASTER_PORT=x is no port"),
        ({"MASTER_PORT": "70000"}, REACHED, "problem", "MASTER_PORT=70000 is no port"),
        ({"MASTER_ADDR": ""}, Network(), "warning", "MASTER_ADDR is not set"),
        (
            {"LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "localhost"},
            Network(("127.0.0.1",)),
            "ok",
            "is 127.0.0.1",
        ),
    ],
)
def test_a_first_node_that_others_do_not_find_is_told(
    environ: dict[str, str], network: Network, grade: str, said: str
) -> None:
    one = named(launch.judge({**TORCHRUN, **environ}, network), "master")
    assert one.grade == grade
    assert said in one.found


@pytest.mark.parametrize(
    ("environ", "network", "grade", "said"),
    [
        ({"HELIX_PEERS": "off"}, REACHED, "ok", "every node plans for itself"),
        ({"HELIX_PEERS": "on"}, REACHED, "warning", "HELIX_PEERS=on means nothing"),
        (
            {},
            Network(("10.0.0.1",), host="127.0.0.1"),
            "problem",
            "at 127.0.0.1, at any free port of TCP: they",
        ),
        (
            {"HELIX_PEER_HOST": "10.9.9.9"},
            Network(("10.0.0.1",), host="10.9.9.9", host_error="Cannot assign requested address"),
            "warning",
            "no daemon can listen at 10.9.9.9: Cannot assign requested address",
        ),
        ({}, Network(("10.0.0.1",), host_error="no way to n0"), "problem", "no way to n0"),
        ({}, Network(master_error="unknown"), "ok", "not looked at"),
        ({"LOCAL_WORLD_SIZE": "8"}, Network(("10.0.0.1",)), "ok", "on this node alone"),
    ],
)
def test_a_node_that_others_cannot_reach_is_told(
    environ: dict[str, str], network: Network, grade: str, said: str
) -> None:
    one = named(launch.judge({**TORCHRUN, **environ}, network), "other nodes")
    assert one.grade == grade
    assert said in one.found


def test_names_are_resolved_and_sockets_bound_for_real() -> None:
    read = launch.read({**TORCHRUN, "MASTER_ADDR": "127.0.0.1"})
    assert (read.master, read.master_error, read.host, read.host_error) == (
        ("127.0.0.1",),
        "",
        "127.0.0.1",
        "",
    )
    elsewhere = launch.read({"HELIX_PEER_HOST": "192.0.2.1"})
    assert (elsewhere.host, elsewhere.host_error) == ("192.0.2.1", "Cannot assign requested address")
    assert launch.read({}) == Network()
    wrong = launch.read({**TORCHRUN, "MASTER_ADDR": "a" * 70})
    assert (wrong.master, wrong.host) == ((), "")
    assert wrong.master_error


def test_a_resolver_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer.wait(10) and [])
    monkeypatch.setattr(launch, "RESOLVE_LIMIT_S", 0.05)
    assert launch.read({"MASTER_ADDR": "n0"}).master_error.startswith("no answer within")
    answer.set()
