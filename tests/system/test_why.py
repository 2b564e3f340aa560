"""helixctl why tells real jobs apart by what limits them, and helixctl trace shows what they did."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image as Pil

import libhelix as hx
from libhelix.ctl import main as ctl
from libhelix.index.build import build
from tests.system.recipes import Plain, Working

QUICK_S, SLOW_S = 0.002, 0.02


def _ctl(*args: str) -> str:
    done = CliRunner().invoke(ctl.cli, args, standalone_mode=False, catch_exceptions=False)
    return done.stdout


def _why(job: str, *args: str) -> Any:
    found = [j for daemon in json.loads(_ctl("why", "--json", *args)) for j in daemon["jobs"]]
    (mine,) = [j for j in found if j["job"] == job]
    return mine


def _train(loader: hx.Loader, window_s: float = 0.0) -> None:
    for batch in loader:
        time.sleep(window_s)
        del batch


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of sixteen images, numbered in the order of their names."""
    folder = tmp_path_factory.mktemp("pictures")
    for i in range(16):
        Pil.new("RGB", (8, 8)).save(folder / f"{i:02d}.png")
    build([folder], folder / "pictures.arrow")
    return folder / "pictures.arrow"


ATTEMPTS = 3
"""Where others take the cores meanwhile, it is decoding that limits, and rightly told so."""
# The ring is too small for the one batch in four that takes longer than a window. It sleeps for most of that,
# which takes as long where others use the cores.
CASES: dict[str, tuple[Working, float, str]] = {
    "accelerator": (Working(cpu_s=QUICK_S), 0.1, "the accelerator"),
    "decode": (Working(cpu_s=SLOW_S), 0.0, "CPU decode"),
    "storage": (Working(sleep_s=SLOW_S), 0.0, "storage"),
    "ring": (Working(cpu_s=QUICK_S, long=(4, 5, 6, 7), long_sleep_s=0.1), 0.15, "ring memory"),
    "sample": (Working(cpu_s=QUICK_S, long=(5,), long_s=0.3), 0.02, "one long sample"),
    "describe": (Working(cpu_s=QUICK_S / 10, describe_s=SLOW_S), 0.0, "describe"),
}


@pytest.mark.parametrize("cause", CASES)
def test_what_limits_a_job_is_told(pictures: Path, job: str, cause: str) -> None:
    recipe, window_s, in_words = CASES[cause]
    for _ in range(ATTEMPTS):
        found, text = _account_of(pictures, job, recipe, window_s, ring=2 if cause == "ring" else 3)
        verdict = found["verdict"]
        if verdict["cause"] == cause:
            break
    assert verdict["cause"] == cause, verdict
    assert verdict["cure"]
    assert sum(verdict["shares"].values()) == pytest.approx(1.0 if verdict["misses"] else 0.0)
    assert verdict["step_s"] >= window_s
    assert f"job {job}, loader train: limited by {in_words}" in text.splitlines()
    if cause == "sample":
        assert verdict["slowest"][0]["key"] == "05.png"
        assert "slowest samples   05.png " in text


def _account_of(pictures: Path, job: str, recipe: Working, window_s: float, ring: int) -> tuple[Any, str]:
    """What helixctl says, as JSON and to people, of a loader that has been gone through."""
    options: dict[str, Any] = {"epochs": 4, "ring": ring, "shuffle": False}
    with hx.Loader(pictures, recipe=recipe, batching=hx.FixedBatch(4), **options) as loader:
        _train(loader, window_s)
        return _why(job)["loaders"][0], _ctl("why")


def test_only_steps_that_were_asked_for_are_judged_and_names_need_an_index(
    index: Path, job: str, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.arrow"
    mine.write_bytes(index.read_bytes())
    recipe = Working(cpu_s=QUICK_S)
    with hx.Loader(mine, recipe=recipe, batching=hx.FixedBatch(1), epochs=2) as loader:
        batches = iter(loader)
        next(batches)
        assert _why(job)["loaders"][0]["verdict"] is None
        assert "not known: no two steps were taken after the first" in _ctl("why")
        for _ in range(14):
            next(batches)
        verdict = _why(job, "--steps", "2:4")["loaders"][0]["verdict"]
        assert (verdict["first"], verdict["last"], verdict["batches"]) == ([1, 2], [1, 4], 3)
        assert all(slow["key"] for slow in verdict["slowest"])
        mine.unlink()
        verdict = _why(job)["loaders"][0]["verdict"]
        assert verdict["first"] == [0, 1]
        assert [slow["key"] for slow in verdict["slowest"]] == [None] * len(verdict["slowest"])
        assert "number " in _ctl("why")


def test_costs_show_what_was_learned(index: Path, job: str) -> None:
    with hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2), epochs=8) as loader:
        _train(loader, 0.005)
        found = _why(job)
        text = _ctl("why", "--costs")
    kinds = {cost["kind"]: cost for cost in found["decode_costs"]}
    assert set(kinds) == {"h264", "mpeg4", "vp9"}
    assert all(cost["tasks"] >= 8 and cost["scale"] > 0 for cost in kinds.values())
    model = found["loaders"][0]["window_model"]
    assert model["windows"] > 10
    assert model["usual_s"] >= 0.005
    assert "of predicted" in text
    assert "rank correlation" in text


def test_a_trace_can_be_loaded_and_shows_every_batch(index: Path, job: str, tmp_path: Path) -> None:
    output = tmp_path / "t.json"
    options: dict[str, Any] = {"batching": hx.FixedBatch(1), "epochs": 2, "dp_size": 2}
    loaders = [hx.Loader(index, recipe=Plain(), dp_rank=rank, **options) for rank in range(2)]
    for batches in zip(*loaders):
        del batches
        time.sleep(0.002)
    _ctl("trace", "-o", str(output))
    for loader in loaders:
        loader.close()
    events = json.loads(output.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    rows = {pid for pid, name in names.items() if name.startswith(f"{job}: ")}  # others may run here
    cores = {pid for pid in rows if ": core " in names[pid]}
    ranks = {pid for pid in rows if ", rank " in names[pid]}
    assert len(ranks) == 2
    spans = defaultdict(list)
    for event in events:
        assert {"ph", "name", "pid", "tid", "ts"} <= event.keys()
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            spans[event["pid"]].append(event)
    for pid in rows:
        ordered = sorted(spans[pid], key=lambda span: (span["ts"], span["dur"]))
        for one, other in pairwise(ordered):
            assert one["ts"] + one["dur"] <= other["ts"], f"{names[pid]}: {one} overlaps {other}"
    tasks = [span for pid in cores for span in spans[pid] if span["name"] != "describe"]
    assert {s for task in tasks for s in task["args"]["samples"]} == set(range(8))
    assert {"deadline_us", "late_ms", "rank", "step", "cpu_ms", "stall_ms"} <= tasks[0]["args"].keys()
    for pid in ranks:
        kinds = [span["name"].split()[0] for span in spans[pid]]
        # What a rank took last, it tells with its next message.
        assert 7 <= kinds.count("wait") <= 8
        assert kinds.count("window") in (kinds.count("wait") - 1, kinds.count("wait"))
        assert sum(e["ph"] == "i" and e["pid"] == pid for e in events) >= 8
