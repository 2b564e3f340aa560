"""helixctl top of a job that runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from libhelix.ctl import main as ctl
from libhelix.errors import DaemonUnreachable
from tests.system.processes import ROOT, Trainer


def test_top_shows_rings_rates_and_workers_and_ends_clean_with_ctrl_c(index: Path, job: str) -> None:
    trainer = Trainer(index, job, epochs=None, step_by_step=True, env={"HELIX_RESERVE": "0"})
    for _ in range(4):
        trainer.event("batch")
        trainer.go()
    trainer.event("batch")
    once = CliRunner().invoke(ctl.cli, ["top", "--once", "--json"], catch_exceptions=False)
    assert once.exit_code == 0
    (mine,) = [j for j in json.loads(once.output)["jobs"] if j["job"] == job]
    (loader,) = mine["loaders"]
    (rank,) = loader["ranks"]
    assert rank["at"] == [1, 0, 0]
    assert rank["ring_bytes"]["leased"] > 0
    assert rank["wait_p95_ms"] >= rank["wait_p50_ms"] >= 0
    assert mine["workers"]["all"] > 0
    assert all(s["key"] is None or s["key"].endswith((".mp4", ".mkv", ".webm")) for s in loader["slowest"])
    text = CliRunner().invoke(ctl.cli, ["top", "--once"], catch_exceptions=False).output
    assert job in text
    assert "workers busy" in text
    command = [sys.executable, "-m", "libhelix.ctl.main", "top", "--json", "--interval", "0.5"]
    live = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert live.stdout is not None
    for _ in range(2):
        assert job in live.stdout.readline()
    live.send_signal(signal.SIGINT)
    _, stderr = live.communicate(timeout=10)
    assert (live.returncode, stderr) == (0, "")
    trainer.kill()


def test_top_of_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnreachable):
        CliRunner().invoke(
            ctl.cli,
            ["top", "--socket", str(tmp_path / "none")],
            standalone_mode=False,
            catch_exceptions=False,
        )
