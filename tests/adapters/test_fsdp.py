"""The example for FSDP: ranks share the samples out, and one of them goes on from a checkpoint of two."""

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

pytest.importorskip("torch.distributed.fsdp", reason="this torch has no FSDP")
EXAMPLE = ROOT / "docs" / "examples" / "fsdp_train.py"
_SAID = re.compile(r"rank (\d+) epoch (\d+) step (\d+) samples \[([\d, ]*)\]")


def _trained(folder: Path, ranks: int, epochs: int) -> dict[tuple[int, int], list[int]]:
    """The samples of every epoch and step, of all ranks."""
    ours = {"PYTHONPATH": str(ROOT), "HELIX_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command = [*torchrun, str(ranks), str(EXAMPLE), "videos", "checkpoint", str(epochs)]
    env = {**os.environ, **ours}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    # How it ended is not looked at: threads of gloo may outlive its group, and abort a process that is over.
    found: dict[tuple[int, int], list[int]] = {}
    for _, epoch, step, ids in _SAID.findall(done.stdout):
        found.setdefault((int(epoch), int(step)), []).extend(map(int, ids.split(", ")))
    assert found, done.stderr
    return found


def test_ranks_share_the_samples_and_a_checkpoint_goes_on_with_another_number(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    make_clip(tmp_path / "videos" / "00.mp4", 8, size=(64, 64))
    for i in range(1, 12):
        shutil.copy(tmp_path / "videos" / "00.mp4", tmp_path / "videos" / f"{i:02d}.mp4")
    one = _trained(tmp_path, ranks=2, epochs=1)
    assert sorted(one) == [(0, 0), (0, 1), (0, 2)]
    assert sorted(i for ids in one.values() for i in ids) == list(range(12))
    rest = _trained(tmp_path, ranks=1, epochs=1)  # the checkpoint is that of step 1
    assert sorted(i for ids in rest.values() for i in ids) == sorted(one[0, 2])
