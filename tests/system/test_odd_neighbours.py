"""What users' processes do to ours: none of it may stop the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import libhelix as hx
from libhelix.errors import RecipeError, Stalled
from libhelix.index.build import build
from tests.clips import make_clip
from tests.system import recipes
from tests.system.processes import ROOT, Trainer, eventually, of_job


def _batches(trainer: Trainer) -> list[dict[str, Any]]:
    events, _ = trainer.finish()
    return [e for e in events if e["event"] == "batch"]


@pytest.mark.parametrize("full", [True, False], ids=["full", "closed"])
def test_a_stderr_that_nobody_reads_stops_nobody(index: Path, job: str, full: bool) -> None:
    os.environ["HELIX_LOG"] = "info"
    try:
        options: dict[str, Any] = {"dp_size": 2, "samples": 1, "epochs": 3, "step_by_step": True}
        first = Trainer(index, job, dp_rank=0, **options)
        first.event("batch")
    finally:
        del os.environ["HELIX_LOG"]
    assert first.process.stderr is not None
    if full:
        (daemon,) = of_job(job, "helixd")
        flags = os.open(f"/proc/{daemon}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
        try:
            while True:
                os.write(flags, b"x" * 4096)
        except BlockingIOError:
            os.close(flags)
    else:
        first.process.stderr.close()
    second = Trainer(index, job, dp_rank=1, dp_size=2, samples=1, epochs=3)
    for pid in of_job(job, "w"):
        os.kill(pid, signal.SIGKILL)  # something to write about
    assert len(_batches(second)) == 12
    first.kill()


def test_a_worker_that_forked_and_died_is_replaced(index: Path, job: str, tmp_path: Path) -> None:
    trainer = Trainer(index, job, recipe="Forking", parameters={"once": str(tmp_path / "once")}, timeout_s=15)
    assert len(_batches(trainer)) == 4
    for pid in of_job(job):
        os.kill(pid, signal.SIGKILL)  # the child, which is the recipe's


def test_costs_that_no_message_carries_are_the_recipes_fault(index: Path, job: str) -> None:
    with (
        hx.Loader(index, recipe=recipes.Costly(), batching=hx.FixedBatch(8)) as loader,
        pytest.raises(RecipeError, match="declared costs"),
    ):
        next(iter(loader))


def test_a_fifo_in_place_of_a_clip_is_masked_at_once(tmp_path: Path, job: str) -> None:
    folder = tmp_path / "clips"
    folder.mkdir()
    for i in range(4):
        make_clip(folder / f"{i}.mp4", 20, size=(64, 96))
    build([folder], tmp_path / "x.arrow")
    (folder / "2.mp4").unlink()
    os.mkfifo(folder / "2.mp4")
    began = time.monotonic()
    for batch in _batches(Trainer(tmp_path / "x.arrow", job, samples=2)):
        assert batch["valid"] == [not k.endswith("2.mp4") for k in batch["keys"]]
    assert time.monotonic() - began < 30


def test_a_daemon_that_is_restarted_a_moment_later_is_waited_for(
    index: Path, job: str, tmp_path: Path
) -> None:
    socket = tmp_path / "s.sock"
    command = [sys.executable, "-m", "helixd", "run", "--socket", str(socket)]
    daemon = subprocess.Popen(command, cwd=ROOT)
    eventually("helixd listens", socket.exists)
    trainer = Trainer(index, job, epochs=2, env={"HELIX_SOCKET": str(socket)}, step_by_step=True)
    trainer.event("batch")
    daemon.terminate()
    daemon.wait(timeout=10)
    for _ in range(8):
        trainer.go()
    time.sleep(1.0)  # the trainer has asked by now, and nobody is there
    daemon = subprocess.Popen(command, cwd=ROOT)
    assert len(_batches(trainer)) == 7
    daemon.terminate()
    assert daemon.wait(timeout=10) == 0


def test_an_error_that_is_survived_loses_no_batch(index: Path, job: str) -> None:
    with hx.Loader(index, recipe=recipes.Plain(), batching=hx.FixedBatch(2), timeout_s=30) as loader:
        batches = iter(loader)
        seen = [next(batches).step]
        (daemon,) = of_job(job, "helixd")
        while seen[-1] < 2:  # what has come already is there
            seen.append(next(batches).step)
        os.kill(daemon, signal.SIGSTOP)
        loader._source._timeout_s = 0.5  # type: ignore[union-attr]  # not half a minute
        try:
            while True:
                seen.append(next(batches).step)
        except (Stalled, StopIteration):
            os.kill(daemon, signal.SIGCONT)
        loader._source._timeout_s = 30.0  # type: ignore[union-attr]
        seen += [batch.step for batch in batches]
        assert seen == [0, 1, 2, 3]
