"""Device batches through the real torch_npu, over an AscendCL of our own: evidence for the code path, not for
hardware. `make npu-env` makes what it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from libhelix.index.build import build
from tests.clips import make_clip
from tests.npu import environment, inside
from tests.system import processes

HERE = environment.folder()
if os.environ.get("CI") and os.environ.get("HELIX_NPU_TESTS") != "1":
    pytest.skip("set HELIX_NPU_TESTS=1 to run it in CI", allow_module_level=True)
if not HERE.is_dir():
    pytest.skip(f"no {HERE}; {environment.problem() or 'make npu-env makes it'}", allow_module_level=True)

ROOT = Path(__file__).parents[2]


def _run(scene: Callable[..., None], *arguments: object, **variables: str) -> None:
    """Run a scene in the environment; what it prints is shown if it fails."""
    command = [sys.executable, "-m", "tests.npu.inside", scene.__name__, *map(str, arguments)]
    env = {**os.environ, "HELIX_ACL_COPY_US": "30000", **environment.variables(HERE), **variables}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "scene",
    [
        inside.a_registered_ring_is_read_while_the_host_goes_on,
        inside.a_copy_from_a_ring_that_is_not_registered_is_read_when_it_returns,
        inside.a_wait_that_is_limited_ends,
        inside.windows_are_what_the_device_takes,
        inside.without_the_wait_for_events_the_device_reads_what_came_after,
        inside.without_the_stream_dependency_the_trainer_sees_what_is_not_there_yet,
    ],
)
def test_with_torch_npu(scene: Callable[[], None]) -> None:
    _run(scene)


@pytest.mark.parametrize(("driver", "tier"), [("25.5.0", "registered"), ("25.0.0", "staged")])
def test_an_old_driver_costs_a_copy_and_no_batch(driver: str, tier: str) -> None:
    _run(inside.batches_arrive_whole_and_the_tier_is, tier, HELIX_ACL_DRIVER=driver)


@pytest.mark.parametrize(("driver", "tier"), [("25.5.0", "registered"), ("25.0.0", "staged")])
def test_doctor_finds_the_device_and_its_tier(driver: str, tier: str) -> None:
    env = {**os.environ, **environment.variables(HERE), "HELIX_ACL_DRIVER": driver}
    env["PYTHONPATH"] += os.pathsep + str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", "import json; from libhelix.ctl.checks import accelerator as a; "
         "print(json.dumps([[f.name, f.grade, f.found] for f in a.judge(a.read())]))"],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {name: (grade, said) for name, grade, said in json.loads(done.stdout)}
    assert found["accelerator"][0] == "ok"
    assert f'device="auto" takes npu:0 here, tier {tier}' in found["accelerator"][1]
    assert found["torch_npu"][0] == "ok"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Five clips."""
    (tmp_path / "clips").mkdir()
    for i in range(5):
        make_clip(tmp_path / "clips" / f"{i}.mp4", 9, size=(64, 96), first_number=20 * i)
    build([tmp_path / "clips"], tmp_path / "x.arrow")
    return tmp_path / "x.arrow"


def test_a_loader_gives_the_batches_that_it_gives_on_the_host(index: Path, tmp_path: Path) -> None:
    job = f"test-{uuid.uuid4().hex[:12]}"
    scene = inside.a_loader_gives_the_batches_that_it_gives_on_the_host
    _run(scene, index, HELIX_JOB=job, HELIX_CACHE=str(tmp_path / "cache"))
    processes.expect_nothing_left(job)


def test_a_broken_torch_npu_breaks_nobody_who_does_not_ask_for_it(index: Path, tmp_path: Path) -> None:
    job = f"test-{uuid.uuid4().hex[:12]}"
    scene = inside.with_a_torch_npu_that_is_broken_there_are_host_tensors
    without = {"LD_LIBRARY_PATH": "", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    _run(scene, index, HELIX_JOB=job, HELIX_CACHE=str(tmp_path / "cache"), **without)
    processes.expect_nothing_left(job)
