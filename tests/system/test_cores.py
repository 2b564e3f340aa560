"""Workers are where the job may run now: affinities, cpusets and CPU limits that change while it runs."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from libhelix.client import embedded_address
from libhelix.ctl import main as ctl
from tests.system.processes import Trainer, eventually, of_job

CORES = sorted(os.sched_getaffinity(0))[:2]
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="cores that come and go take two")


@contextlib.contextmanager
def _running(index: Path, job: str, **options: Any) -> Iterator[Trainer]:
    """A trainer without end that steps when told to."""
    env = {"HELIX_RESERVE": "0"}
    trainer = Trainer(index, job, epochs=None, step_by_step=True, env=env, **options)
    try:
        yield trainer
    finally:
        trainer.kill()


def _both() -> list[str]:
    return ["taskset", "-c", ",".join(map(str, CORES))]


def _status(job: str) -> dict[str, Any]:
    """What helixctl says of the job; of this daemon only, as others of this machine may be of any version."""
    args = ["status", "--json", "--socket", embedded_address(job)]
    text = CliRunner().invoke(ctl.cli, args, standalone_mode=False, catch_exceptions=False).output
    ((state,),) = (daemon["jobs"] for daemon in json.loads(text))
    found: dict[str, Any] = state
    return found


def _are_at(job: str, cores: list[int]) -> bool:
    """Whether there is one worker on each of these cores, pinned, and helixctl says so."""
    pinned = sorted((os.sched_getaffinity(pid) for pid in of_job(job, "w")), key=sorted)
    told = _status(job)
    return (
        pinned == [{core} for core in cores]
        and [worker["core"] for worker in told["workers"]] == cores
        and told["cores"]["owned"] == cores
    )


def _expect_workers(job: str, cores: list[int], *trainers: Trainer) -> None:
    """Soon workers are there, while these trainers step; who waits for nothing looks at nothing."""

    def there() -> bool:
        assert [trainer.step() for trainer in trainers] == [None] * len(trainers)
        return _are_at(job, cores)

    eventually(f"workers are on {cores}", there, 60.0)


def _group(controller: str, *files: str) -> Path:
    """A cgroup of our own with one of these files, in version 2 or in version 1. Skips where none can be."""
    if os.geteuid() != 0:
        pytest.skip("making a cgroup needs root")
    for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup") / controller):
        folder = root / f"helix-test-cores-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if any((folder / file).exists() for file in files):
            return folder
        folder.rmdir()
    pytest.skip(f"no {controller} cgroup can be made here")


def _remove(folder: Path) -> None:
    # A process that has ended is in its cgroup until its parent, here init, has seen it.
    deadline = time.monotonic() + 10.0
    while True:
        try:
            folder.rmdir()
            return
        except OSError:
            assert time.monotonic() < deadline, f"processes are left in {folder}"
            time.sleep(0.1)


def _inside(folder: Path) -> list[str]:
    return ["sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]


@pytest.fixture
def cpu_group() -> Iterator[Path]:
    """A cgroup that can limit CPU time."""
    folder = _group("cpu", "cpu.max", "cpu.cfs_quota_us")
    yield folder
    _remove(folder)


@pytest.fixture
def cpuset() -> Iterator[Path]:
    """A cgroup that can limit cores, to two of them."""
    folder = _group("cpuset", "cpuset.cpus")
    _allow(folder, *CORES)
    if not (folder / "cpuset.cpus.effective").exists():  # version 1 wants memory nodes, too
        (folder / "cpuset.mems").write_text((folder.parent / "cpuset.mems").read_text())
    yield folder
    _remove(folder)


def _limit(folder: Path, cores: float | None) -> None:
    quota = None if cores is None else int(cores * 100_000)
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text(f"{quota or 'max'} 100000")
    else:
        (folder / "cpu.cfs_quota_us").write_text(str(quota or -1))


def _allow(folder: Path, *cores: int) -> None:
    (folder / "cpuset.cpus").write_text(",".join(map(str, cores)))


def test_there_are_no_more_workers_than_the_cpu_limit_pays_for_even_when_it_changes(
    index: Path, job: str, cpu_group: Path
) -> None:
    _limit(cpu_group, 0.9)
    with _running(index, job, under=[*_inside(cpu_group), *_both()]) as trainer:
        _expect_workers(job, CORES[:1], trainer)
        assert _status(job)["cores"]["limit"] == 0.9
        for cores, expected in ((1.5, CORES), (1.0, CORES[:1]), (None, CORES)):
            _limit(cpu_group, cores)
            _expect_workers(job, expected)  # the host looks, whatever trainers do
            assert _status(job)["cores"]["limit"] == cores
            _expect_workers(job, expected, trainer)


def test_workers_follow_the_cpuset_down_and_up(index: Path, job: str, cpuset: Path) -> None:
    with _running(index, job, under=_inside(cpuset)) as trainer:
        _expect_workers(job, CORES, trainer)
        _allow(cpuset, *CORES[1:])
        _expect_workers(job, CORES[1:])
        _expect_workers(job, CORES[1:], trainer)
        _allow(cpuset, *CORES)
        _expect_workers(job, CORES, trainer)


def test_workers_that_were_unpinned_are_pinned_again(index: Path, job: str) -> None:
    with _running(index, job, under=_both()) as trainer:
        _expect_workers(job, CORES, trainer)
        for pid in of_job(job, "w"):  # as kernels before 6.2 do when their core leaves the cpuset and returns
            os.sched_setaffinity(pid, CORES)
        _expect_workers(job, CORES, trainer)


def test_workers_follow_a_rank_that_is_moved(index: Path, job: str) -> None:
    with _running(index, job, under=_both()) as trainer:
        for cores in (CORES, CORES[1:], CORES):
            os.sched_setaffinity(trainer.process.pid, cores)
            _expect_workers(job, cores, trainer)


def test_workers_are_on_the_cores_of_all_ranks_whichever_starts_the_host(index: Path, job: str) -> None:
    two = {"dp_size": 2, "samples": 1}
    with _running(index, job, dp_rank=0, under=["taskset", "-c", str(CORES[0])], **two) as first:
        eventually("the first rank has started the host", lambda: bool(of_job(job, "host")))
        with _running(index, job, dp_rank=1, under=["taskset", "-c", str(CORES[1])], **two) as second:
            _expect_workers(job, CORES, first, second)
        _expect_workers(job, CORES[:1])
