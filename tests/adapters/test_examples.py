"""The examples for trainers run, and go on where their checkpoints stand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clips import make_clip
from tests.system.processes import ROOT

EXAMPLES = ROOT / "docs" / "examples"
SAMPLES = 10
_SAID = re.compile(r"epoch (\d+) step (\d+) samples \[([\d, ]*)\]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "videos").mkdir()
    make_clip(tmp_path / "videos" / "00.mp4", 8, size=(64, 64))
    for i in range(1, SAMPLES):
        shutil.copy(tmp_path / "videos" / "00.mp4", tmp_path / "videos" / f"{i:02d}.mp4")
    return tmp_path


def _run(folder: Path, name: str, *arguments: str) -> str:
    ours = {"PYTHONPATH": str(ROOT), "HELIX_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / name), "videos", *arguments]
    env = {**os.environ, **ours}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _steps(said: str) -> dict[tuple[int, int], list[int]]:
    found: dict[tuple[int, int], list[int]] = {}
    for epoch, step, ids in _SAID.findall(said):
        found.setdefault((int(epoch), int(step)), []).extend(map(int, ids.split(", ")))
    return found


def test_megatron(folder: Path) -> None:
    steps = _steps(_run(folder, "megatron_loop.py", "7"))
    assert list(steps) == [(0, k) for k in range(5)] + [(1, 0), (1, 1)]
    assert sorted(i for (epoch, _), ids in steps.items() if epoch == 0 for i in ids) == list(range(SAMPLES))


@pytest.mark.parametrize(
    ("package", "name"), [("accelerate", "accelerate_train.py"), ("lightning", "lightning_train.py")]
)
def test_what_says_its_samples_goes_on_with_the_rest(folder: Path, package: str, name: str) -> None:
    pytest.importorskip(package, reason=f"pip install {package}")
    first = _steps(_run(folder, name, "saved"))
    assert list(first) == [(0, k) for k in range(5)]
    assert sorted(i for ids in first.values() for i in ids) == list(range(SAMPLES))
    rest = _steps(_run(folder, name, "saved"))
    assert rest == {at: ids for at, ids in first.items() if at[1] > 3}  # saved after step 3


def test_hugging_face(folder: Path) -> None:
    pytest.importorskip("transformers", reason="pip install transformers accelerate")
    pytest.importorskip("accelerate", reason="pip install accelerate")
    assert "steps 5" in _run(folder, "hf_train.py", "saved")
    assert "steps 10" in _run(folder, "hf_train.py", "saved", "2")
