"""kill -9 of anything: nothing is left, and what can go on goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.system import processes
from tests.system.processes import Trainer, eventually, expect_nothing_left, of_job


def _whole(index: Path, job: str, **options: Any) -> list[Any]:
    """Batches of an undisturbed run."""
    events, _ = Trainer(index, job, name="undisturbed", **options).finish()
    return [e for e in events if e["event"] == "batch"]


@pytest.mark.parametrize("forked", [False, True], ids=["plain", "forked"])
def test_a_killed_trainer_leaves_nothing_even_if_it_had_forked(index: Path, job: str, forked: bool) -> None:
    trainer = Trainer(index, job, epochs=None, fork=forked, step_by_step=True)
    trainer.event("forked" if forked else "batch")
    pid = trainer.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert of_job(job, "w")
    os.kill(pid, signal.SIGKILL)
    trainer.process.wait(timeout=10)
    try:
        expect_nothing_left(job)
    finally:
        for child in children:  # the forked child itself is the user's, and lives on
            os.kill(int(child), signal.SIGKILL)
        trainer.process.communicate(timeout=10)


def test_the_other_ranks_go_on_when_one_is_killed(index: Path, job: str) -> None:
    options: dict[str, Any] = {"dp_size": 2, "samples": 1, "epochs": 2, "step_by_step": True}
    victim, survivor = (Trainer(index, job, dp_rank=r, **options) for r in range(2))
    victim.event("batch")
    survivor.event("batch")
    victim.kill()
    for _ in range(8):
        survivor.go()
    events, _ = survivor.finish()
    assert len([e for e in events if e["event"] == "batch"]) == 7


def test_a_killed_trainer_that_comes_back_takes_its_place_again(index: Path, job: str) -> None:
    options: dict[str, Any] = {"dp_size": 2, "samples": 1, "step_by_step": True}
    first, other = (Trainer(index, job, dp_rank=r, **options) for r in range(2))
    before = first.event("batch")
    other.event("batch")
    first.kill()
    again = Trainer(index, job, dp_rank=0, **options)
    assert again.event("batch") == before
    again.kill()
    other.kill()


@pytest.mark.parametrize("kind", ["w", "host", "helixd"], ids=["worker", "host", "daemon"])
def test_batches_go_on_unchanged_when_a_process_is_killed(index: Path, job: str, kind: str) -> None:
    expected = _whole(index, job, epochs=4, recipe="Split", parameters={"frames": 8})
    expect_nothing_left(job)
    trainer = Trainer(index, job, epochs=4, recipe="Split", parameters={"frames": 8}, step_by_step=True)
    got = [trainer.event("batch")]
    for i in range(len(expected) - 1):
        if i in (2, 7):
            eventually(f"the {kind} runs", lambda: bool(of_job(job, kind)))
            os.kill(of_job(job, kind)[0], signal.SIGKILL)
        trainer.go()
        got.append(trainer.event("batch"))
    trainer.go()
    trainer.finish()
    assert got == expected


def test_a_worker_killed_while_idle_is_replaced(index: Path, job: str) -> None:
    trainer = Trainer(index, job, epochs=None, step_by_step=True)
    trainer.event("batch")
    workers = set(of_job(job, "w"))
    os.kill(min(workers), signal.SIGKILL)
    eventually("another worker", lambda: len(set(of_job(job, "w")) - workers) == 1)
    trainer.kill()


def test_a_killed_daemon_leaves_nothing_when_its_trainer_has_gone_too(index: Path, job: str) -> None:
    trainer = Trainer(index, job, epochs=None, step_by_step=True)
    trainer.event("batch")
    trainer.process.send_signal(signal.SIGSTOP)
    for pid in of_job(job, "helixd"):
        os.kill(pid, signal.SIGKILL)
    eventually("workers go with their daemon", lambda: not of_job(job), 2.0)
    trainer.kill()


def test_a_sample_that_kills_workers_is_masked_after_two_of_them(index: Path, job: str) -> None:
    trainer = Trainer(index, job, recipe="Deadly", parameters={"deadly": 3}, epochs=2)
    events, _ = trainer.finish()
    batches = [e for e in events if e["event"] == "batch"]
    assert len(batches) == 8
    for batch in batches:
        assert batch["valid"] == [i != 3 for i in batch["ids"]]
    (key,) = {k for b in batches for i, k in zip(b["ids"], b["keys"]) if i == 3}
    died = [w for w in events[-1]["warnings"] if "2 workers died while they decoded it, the last by" in w]
    assert died
    assert all(key in w for w in died)


def test_a_sample_that_kills_a_worker_once_is_delivered(index: Path, job: str, tmp_path: Path) -> None:
    once = {"deadly": 3, "once": str(tmp_path / "once")}
    events, _ = Trainer(index, job, recipe="Deadly", parameters=once).finish()
    assert all(all(e["valid"]) for e in events if e["event"] == "batch")
    assert (tmp_path / "once").exists()


def test_a_sample_that_kills_workers_in_describe_is_masked_alone(index: Path, job: str) -> None:
    events, _ = Trainer(index, job, recipe="Deadly", parameters={"deadly": 5, "in_describe": True}).finish()
    for batch in [e for e in events if e["event"] == "batch"]:
        assert batch["valid"] == [i != 5 for i in batch["ids"]]


def test_a_trainer_that_ends_without_close_leaks_nothing(index: Path, job: str) -> None:
    import subprocess
    import sys

    script = (
        "import libhelix as hx; from tests.system.recipes import Plain; "
        f"b = next(iter(hx.Loader({str(index)!r}, recipe=Plain(), batching=hx.FixedBatch(2)))); "
        "print(b['video'].sum().item())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=processes.ROOT,
        env={**os.environ, "HELIX_JOB": job},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
