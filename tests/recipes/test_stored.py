"""Objects for workers: found again by their name, and only those that the user has stored."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from libhelix.errors import RecipeNotImportable
from libhelix.recipes.stored import KEPT_S, found, stored
from tests.system.datasets import Pairs
from tests.system.processes import ROOT


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path))


def _elsewhere(code: str) -> str:
    """What another process prints, without torch at first."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_object_is_found_in_another_process_and_once_for_equal_content(tmp_path: Path) -> None:
    name = stored(Pairs(7), "dataset")
    assert stored(Pairs(7), "dataset") == name != stored(Pairs(8), "dataset")
    assert len(list((tmp_path / "objects").iterdir())) == 2
    code = f"from libhelix.recipes.stored import found; print(len(found({name!r}, True)))"
    assert _elsewhere(code) == "7"


def test_a_process_that_finds_one_has_no_accelerator_and_one_thread() -> None:
    name = stored(Pairs(7), "dataset")
    code = (
        f"import os; from libhelix.recipes.stored import found, in_worker; found({name!r}, True); "
        "import torch; print(repr(os.environ['CUDA_VISIBLE_DEVICES']), torch.get_num_threads(), in_worker())"
    )
    assert _elsewhere(code) == "'' 1 True"


@pytest.mark.parametrize("name", ["pickle:../../etc/passwd", "pickle:", "pickle:" + "0" * 31 + "/"])
def test_a_name_that_no_trainer_gave_is_refused(name: str) -> None:
    with pytest.raises(RecipeNotImportable, match="names no object that a trainer has stored"):
        found(name, True)


def test_one_that_is_gone_is_named_with_the_cause() -> None:
    with pytest.raises(RecipeNotImportable, match="is not unpickled in a worker: FileNotFoundError"):
        found("pickle:" + "0" * 32, True)


def test_old_ones_are_forgotten(tmp_path: Path) -> None:
    stored(Pairs(7), "dataset")
    (old,) = (tmp_path / "objects").iterdir()
    long_ago = time.time() - KEPT_S - 60
    os.utime(old, (long_ago, long_ago))
    stored(Pairs(8), "dataset")
    assert not old.exists()
