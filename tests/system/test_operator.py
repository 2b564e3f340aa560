"""What an operator does to a standing daemon with helixctl and SIGHUP."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import libhelix as hx
from libhelix import client
from libhelix.ctl.checks.daemons import Daemons, asked, judge
from libhelix.ctl.daemons import ask
from libhelix.errors import DaemonUnreachable
from tests.system.processes import ROOT, Trainer, eventually, of_job
from tests.system.recipes import Plain


class Daemon:
    """A standing daemon with a configuration file of its own."""

    def __init__(self, folder: Path) -> None:
        self.socket, self.file = folder / "s.sock", folder / "helixd.toml"
        self.file.write_text(f'socket = "{self.socket}"\nlog_level = "info"\n')
        command = ["run", "--config", str(self.file)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "helixd", *command], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        eventually("helixd answers", self._answers)

    def _answers(self) -> bool:
        try:
            ask(str(self.socket))
        except DaemonUnreachable:
            return False
        return True

    def ctl(self, *args: str) -> dict[str, Any]:
        """The answer to a helixctl command, which has to succeed."""
        done = subprocess.run(
            [sys.executable, "-m", "libhelix.ctl", *args, "--socket", str(self.socket), "--json"],
            cwd=ROOT, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def kill(self) -> None:
        """SIGKILL, where it still runs: a test has failed."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=10)

    def end(self) -> str:
        """What it wrote, once it ended by itself and without an error."""
        _, stderr = self.process.communicate(timeout=10)
        assert self.process.returncode == 0, stderr
        return stderr


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    found = Daemon(tmp_path)
    yield found
    found.kill()


def test_a_drained_daemon_serves_its_job_to_the_end_and_then_ends(
    index: Path, job: str, daemon: Daemon
) -> None:
    trainer = Trainer(index, job, step_by_step=True, env={"HELIX_SOCKET": str(daemon.socket)})
    trainer.event("batch")
    assert [f.grade for f in judge(Daemons(asked(str(daemon.socket))))] == ["ok"]
    answer = daemon.ctl("drain")
    assert (answer["draining"], [j["job"] for j in answer["jobs"]]) == (True, [job])
    (told,) = judge(Daemons(asked(str(daemon.socket))))
    assert (told.grade, "is being drained and takes no new job" in told.found) == ("problem", True)
    _, refused = Trainer(index, f"{job}-late", env={"HELIX_SOCKET": str(daemon.socket)}).finish(code=1)
    assert "is being drained and takes no new job" in refused
    assert daemon.ctl("drain", "--cancel")["draining"] is False
    assert daemon.ctl("drain")["draining"] is True
    for _ in range(4):
        trainer.go()
    assert len([e for e in trainer.finish()[0] if e["event"] == "batch"]) == 3
    assert "stops: it is drained" in daemon.end()


@pytest.mark.filterwarnings("ignore:.*helixd went away; another one takes over")
def test_a_loader_whose_service_is_gone_for_good_says_so_and_starts_no_daemon_of_its_own(
    index: Path, job: str, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "SYSTEM_SOCKET", str(daemon.socket))
    monkeypatch.setattr(client, "CONNECT_LIMIT_S", 0.5)
    monkeypatch.delenv("HELIX_SOCKET", raising=False)
    loader = hx.Loader(
        index, recipe=Plain(), batching=hx.FixedBatch(1), job=job, epochs=None, dp_rank=0, dp_size=1
    )
    with loader:
        batches = iter(loader)
        next(batches)
        daemon.process.terminate()
        daemon.end()
        assert not daemon.socket.exists()
        with pytest.raises(DaemonUnreachable, match=f"no helixd at {daemon.socket}"):
            sum(1 for _ in batches)  # those that have come already
    eventually("nothing of the job is left", lambda: not of_job(job), 2.0)


def test_a_reload_says_what_it_changed_and_what_needs_a_restart(daemon: Daemon) -> None:
    daemon.file.write_text('socket = "/elsewhere/s.sock"\nlog_level = "info"\n[quota]\njobs = 3\n')
    daemon.process.send_signal(signal.SIGHUP)
    eventually("it has the quota", lambda: daemon.ctl("config")["quota.jobs"]["value"] == 3, 10)
    assert daemon.ctl("config")["socket"] == {"value": str(daemon.socket), "origin": f"{daemon.file}: socket"}
    daemon.process.terminate()
    assert "settings; changed: quota.jobs; a restart is needed for: socket\n" in daemon.end()
