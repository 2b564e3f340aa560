"""Which rank this process is, and of which job: asked of those who know, refused where they disagree."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from libhelix.errors import UsageError
from libhelix.place import Place, job_name, resolve

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


def test_a_process_of_its_own_is_rank_0_of_1() -> None:
    assert resolve(None, None, 1, {}) == Place(0, 1, "default")


def test_an_argument_goes_before_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    _process_group(monkeypatch, 5, 6)
    assert resolve(1, 4, 2, TORCHRUN) == Place(1, 4, "argument")


@pytest.mark.parametrize(("rank", "size"), [(1, None), (None, 4)])
def test_half_a_place_is_refused(rank: int | None, size: int | None) -> None:
    with pytest.raises(UsageError, match="dp_rank and dp_size belong together"):
        resolve(rank, size, 1, {})


@pytest.mark.parametrize(("rank", "size"), [(4, 4), (-1, 4), (0, 0)])
def test_a_rank_outside_its_size_is_refused(rank: int, size: int) -> None:
    with pytest.raises(UsageError, match=f"dp_rank {rank} is not in"):
        resolve(rank, size, 1, {})


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (TORCHRUN, Place(3, 8, "torchrun")),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, Place(0, 2, "Open MPI")),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, Place(1, 3, "PMI")),
        (SLURM, Place(1, 2, "Slurm")),
        ({**SLURM, **TORCHRUN}, Place(3, 8, "torchrun")),  # torchrun below srun: the inner one counts
        ({"RANK": "3"}, Place(0, 1, "default")),
    ],
)
def test_launchers_say_which_rank_this_is(environ: dict[str, str], place: Place) -> None:
    assert resolve(None, None, 1, environ) == place


@pytest.mark.parametrize("environ", [{"RANK": "x", "WORLD_SIZE": "8"}, {"RANK": "8", "WORLD_SIZE": "8"}])
def test_a_launcher_that_makes_no_sense_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="RANK"):
        resolve(None, None, 1, environ)


def test_the_process_group_says_which_rank_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    _process_group(monkeypatch, 3, 8)
    assert resolve(None, None, 1, {}) == Place(3, 8, "torch.distributed")
    assert resolve(None, None, 1, TORCHRUN) == Place(3, 8, "torch.distributed")


def test_a_process_group_and_torchrun_that_disagree_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _process_group(monkeypatch, 2, 8)
    with pytest.raises(UsageError, match="says rank 2 of 8, torchrun says rank 3 of 8; give dp_rank="):
        resolve(None, None, 1, TORCHRUN)


def test_replicas_need_an_explicit_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="replicas=2: torchrun counts 8 processes, not data-parallel ranks"):
        resolve(None, None, 2, TORCHRUN)
    assert resolve(1, 4, 2, TORCHRUN).rank == 1


def test_torch_is_not_imported_only_to_be_asked() -> None:
    resolve(None, None, 1, {})
    assert "torch" not in sys.modules


# ---- the job -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"HELIX_JOB": "mine", "TORCHELASTIC_RUN_ID": "r"}, "mine"),
        ({"TORCHELASTIC_RUN_ID": "r17"}, "torchrun-r17"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "29500"}, "localhost-29500"),
        ({"MASTER_ADDR": "n1", "MASTER_PORT": "29500", "SLURM_JOB_ID": "4"}, "n1-29500"),
        ({"SLURM_JOB_ID": "4", "SLURM_STEP_ID": "2"}, "slurm-4-2"),
        ({"SLURM_JOB_ID": "4"}, "slurm-4-0"),
    ],
)
def test_the_ranks_of_a_job_agree_on_its_name(environ: dict[str, str], name: str) -> None:
    assert job_name(None, 8, environ) == name


def test_an_explicit_job_goes_before_everything() -> None:
    assert job_name("given", 8, {"HELIX_JOB": "mine"}) == "given"


def test_a_process_of_its_own_is_a_job_of_its_own() -> None:
    assert job_name(None, 1, {"TORCHELASTIC_RUN_ID": "none"}) == f"pid-{os.getpid()}"


def test_ranks_that_nothing_joins_are_refused_with_the_cure() -> None:
    with pytest.raises(UsageError, match="8 ranks share a job, and no launcher names it; give job= or set"):
        job_name(None, 8, {})
