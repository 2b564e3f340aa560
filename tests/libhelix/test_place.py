"""Which rank this process is, and of which job: asked of those who know, refused where they disagree."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from libhelix.errors import UsageError
from libhelix.place import Place, check_still, job_name, resolve

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8"}
SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}


@pytest.fixture(autouse=True)
def _no_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def _process_group(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    group = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: rank,
        get_world_size=lambda: size,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=group))


def _mesh(
    names: tuple[str, ...] | None, shape: tuple[int, ...], at: tuple[int, ...] | None
) -> SimpleNamespace:
    return SimpleNamespace(mesh_dim_names=names, shape=shape, get_coordinate=lambda: at)


def test_a_process_of_its_own_is_rank_0_of_1() -> None:
    assert resolve(None, None, 0, 1, None, {}) == Place(0, 1, 0, 1)


def test_an_argument_goes_before_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    _process_group(monkeypatch, 3, 8)
    assert resolve(1, 4, 1, 2, None, TORCHRUN) == Place(1, 4, 1, 2)


@pytest.mark.parametrize(("rank", "size"), [(1, None), (None, 4)])
def test_half_a_place_is_refused(rank: int | None, size: int | None) -> None:
    with pytest.raises(UsageError, match="dp_rank and dp_size belong together"):
        resolve(rank, size, 0, 1, None, {})


@pytest.mark.parametrize(("rank", "size"), [(4, 4), (-1, 4)])
def test_a_rank_outside_its_size_is_refused(rank: int, size: int) -> None:
    with pytest.raises(UsageError, match=f"dp_rank {rank} is not in"):
        resolve(rank, size, 0, 1, None, {})


def test_a_size_below_one_is_refused_whatever_the_rank() -> None:
    for size in (0, -1):
        with pytest.raises(UsageError, match="dp_size must be >= 1"):
            resolve(0, size, 0, 1, None, {})


def test_a_replica_outside_its_rank_is_refused() -> None:
    with pytest.raises(UsageError, match="replica 2 is not in"):
        resolve(0, 1, 2, 2, None, {})


def test_more_ranks_than_the_launcher_counts_are_refused() -> None:
    with pytest.raises(UsageError, match="8 ranks of 2 replicas, but torchrun counts 8 processes"):
        resolve(0, 8, 0, 2, None, TORCHRUN)


def test_replicas_without_ranks_are_refused_under_a_launcher() -> None:
    with pytest.raises(UsageError, match="torchrun counts 8 processes, not data-parallel ranks"):
        resolve(None, None, 0, 2, None, TORCHRUN)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (TORCHRUN, Place(3, 8, 0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, Place(0, 2, 0, 1)),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, Place(1, 3, 0, 1)),
        (SLURM, Place(1, 2, 0, 1)),
        ({**SLURM, **TORCHRUN}, Place(3, 8, 0, 1)),
        ({"RANK": "3"}, Place(0, 1, 0, 1)),
    ],
    ids=["torchrun", "open mpi", "pmi", "slurm", "torchrun under slurm", "half a launcher"],
)
def test_launchers_are_understood(environ: dict[str, str], place: Place) -> None:
    assert resolve(None, None, 0, 1, None, environ) == place


@pytest.mark.parametrize("environ", [{"RANK": "x", "WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"}])
def test_a_launcher_that_makes_no_sense_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="RANK"):
        resolve(None, None, 0, 1, None, environ)


def test_torch_distributed_goes_before_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    _process_group(monkeypatch, 1, 2)
    assert resolve(None, None, 0, 1, None, {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) == Place(1, 2, 0, 1)


def test_a_group_that_was_made_after_the_loader_counts_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where Lightning starts its processes itself: each would train on all samples of rank 0."""
    alone = resolve(None, None, 0, 1, None, {})
    assert check_still(alone) is None
    _process_group(monkeypatch, 1, 2)
    with pytest.raises(UsageError, match=r"rank 0 of 1, before .* rank 1 of 2; make it afterwards"):
        check_still(alone)
    assert check_still(Place(1, 2, 0, 1)) is None


def test_torchrun_without_a_group_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    _process_group(monkeypatch, 0, 1)
    monkeypatch.setattr(sys.modules["torch"].distributed, "is_initialized", lambda: False)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    said = check_still(Place(3, 8, 0, 1))
    assert said is not None
    assert "torchrun has started 8 processes, and torch.distributed is not initialised" in said


def test_torch_distributed_and_torchrun_that_disagree_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _process_group(monkeypatch, 1, 2)
    with pytest.raises(UsageError, match="rank 1 of 2, torchrun says rank 3 of 8"):
        resolve(None, None, 0, 1, None, TORCHRUN)


@pytest.mark.parametrize(
    ("names", "shape", "at", "place"),
    [
        (None, (4,), (2,), Place(2, 4, 0, 1)),
        (("dp", "tp"), (2, 4), (1, 3), Place(1, 2, 3, 4)),
        (("pp", "dp_replicate", "dp_shard", "tp"), (2, 2, 3, 2), (1, 1, 2, 0), Place(5, 6, 2, 4)),
        (("fsdp",), (1,), (0,), Place(0, 1, 0, 1)),
        (("replicate", "shard"), (2, 2), (1, 0), Place(2, 4, 0, 1)),
        (("data_parallel", "tensor_parallel"), (2, 2), (1, 0), Place(1, 2, 0, 2)),
        (("dp", "cp", "ep"), (2, 2, 1), (0, 1, 0), Place(0, 2, 1, 2)),
    ],
    ids=["one dimension", "dp x tp", "pp x hsdp x tp", "one rank", "hsdp", "lightning", "ep of one"],
)
def test_a_mesh_says_ranks_and_replicas(
    names: tuple[str, ...] | None, shape: tuple[int, ...], at: tuple[int, ...], place: Place
) -> None:
    assert resolve(None, None, 0, 1, _mesh(names, shape, at), {}) == place


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        (_mesh(None, (2, 2), (0, 0)), "without names"),
        (_mesh(("tp", "pp"), (2, 2), (0, 0)), "none of them data parallel"),
        (_mesh(("dp",), (2,), None), "not in mesh="),
        (_mesh(("dp", "ep"), (2, 2), (0, 0)), "dimension 'ep', and that does not say whether"),
        (_mesh(("dp_shard_cp",), (4,), (0,)), "dimension 'dp_shard_cp', and that does not say whether"),
    ],
    ids=["no names", "no data parallel dimension", "not in it", "experts", "both kinds"],
)
def test_a_mesh_that_does_not_say_is_refused(mesh: SimpleNamespace, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        resolve(None, None, 0, 1, mesh, {})


def test_a_mesh_and_arguments_together_are_refused() -> None:
    mesh = _mesh(("dp",), (2,), (0,))
    with pytest.raises(UsageError, match="leave out dp_rank= and dp_size=, or mesh="):
        resolve(0, 2, 0, 1, mesh, {})
    with pytest.raises(UsageError, match="leave out replica= and replicas=, or mesh="):
        resolve(None, None, 1, 2, mesh, {})


def test_a_part_of_a_mesh_is_refused_where_it_hides_who_shares_batches() -> None:
    """mesh["dp"] of a mesh ("dp", "tp") has the same coordinates on both ranks of a tensor-parallel pair."""
    with pytest.raises(UsageError, match="mesh= has 2 of the 8 processes that torchrun counts; give"):
        resolve(None, None, 0, 1, _mesh(("dp",), (2,), (0,)), TORCHRUN)


def test_the_job_is_named_by_argument_then_environment_then_launcher() -> None:
    run = {"TORCHELASTIC_RUN_ID": "abc", "MASTER_ADDR": "h", "MASTER_PORT": "29500"}
    assert job_name("mine", 2, {"HELIX_JOB": "other", **run}) == "mine"
    assert job_name(None, 2, {"HELIX_JOB": "other", **run}) == "other"
    assert job_name(None, 2, run) == "torchrun-abc"
    assert job_name(None, 2, {**run, "TORCHELASTIC_RUN_ID": "none"}) == "h-29500"
    assert job_name(None, 2, {"SLURM_JOB_ID": "7"}) == "slurm-7-0"


def test_a_process_of_its_own_has_a_job_of_its_own() -> None:
    assert job_name(None, 1, {}) == f"pid-{os.getpid()}"


def test_ranks_that_nothing_brings_together_are_told_to_name_their_job() -> None:
    with pytest.raises(UsageError, match="give job= or set HELIX_JOB"):
        job_name(None, 2, {})
