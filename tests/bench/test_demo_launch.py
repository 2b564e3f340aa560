"""Ranks that fail, hang or are left alone: the demo ends, says why, and leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.demo import launch
from bench.demo.launch import run_ranks
from bench.demo.recipe import LabelledClip
from bench.demo.records import Finished, StepRecord, TrainSettings, Window
from bench.interrupts import shielded_children
from bench.results import BenchFailed

SETTINGS = TrainSettings(
    index="none.arrow",
    recipe=LabelledClip(),
    window=Window(fixed_s=0.0, per_token_s=0.0),
    classes=5,
    steps=1,
    batch=1,
    seed=0,
)

STEP = (
    '{"type":"step","rank":%d,"step":0,"epoch":0,"asked_at_s":0,"done_at_s":1,"wait_s":0,"compute_s":0,'
    '"window_s":0,"cpu_s":0,"tokens":1,"nbytes":1,"loss":1,"ids":[1],"masked":0}\n'
)


def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> list[int]:
    """Ranks run this script instead of the trainer. Returns the list that gets their process ids."""
    path = tmp_path / "rank.py"
    path.write_text(f"import os, sys, time\nrank = int(os.environ['RANK'])\nSTEP = {STEP!r}\n{text}")
    pids: list[int] = []
    real = subprocess.Popen

    def start(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        assert command[1:3] == ["-m", "bench.demo.train"]
        process: subprocess.Popen[bytes] = real([sys.executable, "-I", str(path)], **options)  # type: ignore[call-overload]
        pids.append(process.pid)
        return process

    monkeypatch.setattr(subprocess, "Popen", start)
    return pids


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_records_of_all_ranks_arrive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = 'print(STEP % rank + \'{"type":"finished","rank":%d}\' % rank, flush=True)'
    script(monkeypatch, tmp_path, done)
    steps: list[StepRecord] = []
    messages = run_ranks(SETTINGS, 2, tmp_path, steps.append)
    assert {s.rank for s in steps} == {0, 1}
    assert {m.rank for m in messages if isinstance(m, Finished)} == {0, 1}
    assert (tmp_path / "settings.json").exists()


def test_one_failing_rank_ends_the_others_and_shows_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pids = script(monkeypatch, tmp_path, "if rank == 1: sys.exit('no luck')\ntime.sleep(60)")
    with pytest.raises(BenchFailed, match=r"(?s)rank 1 ended with exit code 1.*no luck"):
        run_ranks(SETTINGS, 2, tmp_path, lambda _: None)
    assert all(gone(p) for p in pids)


def test_a_rank_that_ends_early_is_a_failure_even_with_exit_code_0(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script(monkeypatch, tmp_path, "print(STEP % rank, end='')")
    with pytest.raises(BenchFailed, match="rank 0 ended with exit code 0"):
        run_ranks(SETTINGS, 1, tmp_path, lambda _: None)


def test_silence_ends_the_demo_and_names_the_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pids = script(monkeypatch, tmp_path, "print(STEP % rank, end='', flush=True)\ntime.sleep(60)")
    monkeypatch.setattr(launch, "PROGRESS_S", 0.2)
    with pytest.raises(BenchFailed, match="rank 0: step 0"):
        run_ranks(SETTINGS, 1, tmp_path, lambda _: None)
    assert all(gone(p) for p in pids)


def test_an_interrupt_ends_stubborn_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    pids = script(monkeypatch, tmp_path, stubborn + "print(STEP % rank, end='', flush=True)\ntime.sleep(60)")
    monkeypatch.setattr(launch, "STOP_S", 0.1)

    def interrupt(_: StepRecord) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_ranks(SETTINGS, 2, tmp_path, interrupt)
    assert all(gone(p) for p in pids)


def test_an_interrupt_between_two_starts_waits_for_both_and_spares_the_children(
    request: pytest.FixtureRequest,
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs tests may ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    children: list[subprocess.Popen[bytes]] = []

    @shielded_children()
    def start_two() -> None:
        for _ in range(2):
            children.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        start_two()
    assert len(children) == 2
    for child in children:
        child.send_signal(signal.SIGINT)
        child.communicate(b"\n")
        assert child.returncode == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
