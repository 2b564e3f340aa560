"""`bench ablate`: what is made of steps, where ranks meet, and a run of all systems on tiny clips."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from rich.console import Console

from bench.ablate import command
from bench.ablate.barrier import Meeting, Place
from bench.ablate.command import AblateSettings, run
from bench.ablate.recipe import LevelClip
from bench.ablate.report import (
    TARGETS,
    Bounds,
    Run,
    figures,
    per_token_s,
    run_figures,
    same_samples,
    table,
)
from bench.ablate.requests import Step
from bench.ablate.systems import FULL, LOCAL, SYSTEMS
from bench.clips import ClipPlan, encode
from bench.samples import Visit, describe, descriptor_bytes, read_samples, write_index
from helixd.core.policy import PRODUCTION
from tests.bench.test_handoff import marked_by_us

BOUNDS = Bounds(cores=2, cpu_s_per_sample=0.1)


def made(
    system: str, *, step_s: float = 1.0, late_s: float = 0.4, ids: tuple[int, ...] = (0, 1, 2, 3)
) -> Run:
    """Eight steps of two ranks, two samples each; the second rank's windows are twice as long."""
    steps = []
    for number in range(8):
        one, other = (
            Step(
                wait_s=late_s if rank else 0.0,
                window_s=0.3 * (rank + 1),
                done_at_s=10.0 + number * step_s,
                epoch=0,
                ids=tuple(4 * number + i for i in ids[2 * rank : 2 * rank + 2]),
            )
            for rank in range(2)
        )
        steps.append((one, other))
    return Run(system=system, steps=tuple(steps))


def test_a_run_is_held_against_cores_and_against_accelerators() -> None:
    found = run_figures(made("full"), BOUNDS, warm_up=1)
    assert found.samples_per_s == pytest.approx(4.0)
    assert found.of_bound == pytest.approx(0.45)  # 0.9 s of windows a step, over two ranks
    assert found.of_own_bound == pytest.approx(0.6)
    slow = run_figures(made("full"), Bounds(cores=1, cpu_s_per_sample=0.2), warm_up=1)
    assert slow.of_bound == slow.of_own_bound == pytest.approx(0.8)


def test_a_wait_of_more_than_a_hundredth_of_a_step_is_a_miss() -> None:
    assert run_figures(made("full", late_s=0.011), BOUNDS, 1).misses == pytest.approx(0.5)
    assert run_figures(made("full", late_s=0.009), BOUNDS, 1).misses == 0.0
    assert run_figures(made("full", late_s=0.4), BOUNDS, 1).wait_p95_ms == pytest.approx(400.0)


def test_a_run_without_steps_after_its_warm_up_has_no_figures() -> None:
    with pytest.raises(ValueError, match="nothing to measure"):
        run_figures(made("full"), BOUNDS, warm_up=8)


def test_systems_are_compared_within_a_repetition() -> None:
    fast_then_slow = [
        made(system.name, step_s=pace / (2 if system is FULL else 1))
        for pace in (1.0, 5.0, 2.0)
        for system in SYSTEMS
    ]
    found = figures(fast_then_slow, BOUNDS, 1)
    assert found["full_to_samples"] == pytest.approx(2.0)
    assert found["samples_to_pooled"] == pytest.approx(1.0)
    assert {t.figure for t in TARGETS} <= set(found)
    assert all(t.met_by(found[t.figure]) for t in TARGETS)


def test_ranks_may_share_the_samples_of_a_window_out_otherwise_but_not_have_others() -> None:
    assert same_samples([made("a"), made("b", ids=(3, 0, 2, 1))])
    assert not same_samples([made("a"), made("b", ids=(3, 0, 2, 2))])


def test_windows_ask_for_the_demanded_share_of_the_cores() -> None:
    seconds = per_token_s(cpu_s_per_sample=0.02, tokens_per_sample=50.0, cores=2, ranks=4, demand=0.8)
    samples_per_s = 4 / (50.0 * seconds)  # four accelerators that never wait
    assert samples_per_s * 0.02 == pytest.approx(0.8 * 2)


def test_every_system_has_one_lever_more() -> None:
    policies = [s.policy for s in SYSTEMS]
    assert policies[0] is None
    levers = [sum((p.by_piece, p.by_deadline, p.split)) for p in policies if p is not None]
    assert levers == [0, 1, 2, 3, 3]
    assert SYSTEMS[-1].policy == PRODUCTION
    assert [s.regroup for s in SYSTEMS] == [1, 1, 1, 1, 1, 8]
    assert LOCAL.name == SYSTEMS[0].name


def test_all_clips_take_the_same_memory_where_rings_are_compared(tmp_path: Path) -> None:
    for number, frames in enumerate((12, 30, 60)):
        encode(ClipPlan(f"clip{number}.mp4", "mpeg4", 64, 48, frames, 0, number), tmp_path / "clips")
    samples = read_samples(write_index(tmp_path / "clips", tmp_path / "index.arrow"))
    for level in (True, False):
        recipe = LevelClip(max_frames=8, size=(32, 48), level=level)
        sizes = {descriptor_bytes(describe(recipe, samples, Visit(i, 0), 0)) for i in range(3)}
        assert len(sizes) == (1 if level else 3)


def test_ranks_go_on_when_all_have_come_and_fail_when_one_leaves(tmp_path: Path) -> None:
    with Meeting(tmp_path / "meet", 2):
        here, there = Place(str(tmp_path / "meet")), Place(str(tmp_path / "meet"))
        other = threading.Thread(target=there.wait)
        other.start()
        here.wait()
        other.join(10.0)
        assert not other.is_alive()
        there.close()
        with pytest.raises(ConnectionError, match="another rank"):
            here.wait()
        here.close()


def test_a_meeting_to_which_nobody_comes_ends(tmp_path: Path) -> None:
    with Meeting(tmp_path / "meet", 2) as meeting:
        pass
    assert not meeting._thread.is_alive()


def test_a_tiny_run_of_all_systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "WARM_UP", 1)
    settings = AblateSettings(
        repetitions=1,
        steps=7,  # with the warm-up a window
        demand=2.0,
        cores=tuple(sorted(os.sched_getaffinity(0))[:2]),
        ranks=2,
        batch=1,
        clips=16,
        clip_size=(48, 64),
        median_s=0.5,
        longest_s=1.0,
        recipe=LevelClip(max_frames=4, size=(32, 48), level=False),
    )
    results = run(settings, tmp_path, Console(quiet=True))
    assert {t.figure for t in results.targets} <= set(results.figures)
    assert all(results.figures[f"{s.name}_samples_per_s"] > 0 for s in SYSTEMS)
    assert table(results).row_count == len(SYSTEMS)
    assert not marked_by_us()
