"""Single faults that are none of a process's death: what stops, what goes on, what is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import libhelix as hx
from libhelix.ctl.daemons import ask
from tests.system.processes import Trainer, eventually, of_job, open_descriptors
from tests.system.recipes import Plain
from tests.system.test_standing_daemon import standing as standing

CYCLES = int(os.environ.get("HELIX_CYCLES", "40"))
"""The more, the surer: 10,000 take some minutes."""


def _rss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def test_a_trainer_that_is_stopped_stops_nobody_of_another_job(index: Path, job: str, standing: Path) -> None:
    env = {"HELIX_SOCKET": str(standing)}
    stopped = Trainer(index, f"{job}-a", epochs=None, step_by_step=True, env=env)
    stopped.event("batch")
    stopped.process.send_signal(signal.SIGSTOP)
    other = Trainer(index, f"{job}-b", epochs=20, env=env)
    events, _ = other.finish()
    assert len([e for e in events if e["event"] == "batch"]) == 20 * 4
    stopped.process.send_signal(signal.SIGCONT)
    stopped.go()
    stopped.event("batch")
    stopped.kill()


def test_attaching_and_leaving_many_times_grows_nothing(
    index: Path, job: str, standing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIX_SOCKET", str(standing))
    pid = ask(str(standing))["pid"]
    before = (0, 0)
    for cycle in range(CYCLES):
        loader = hx.Loader(
            index, recipe=Plain(), batching=hx.FixedBatch(2), job=job, dp_rank=0, dp_size=1, epochs=1
        )
        with loader:
            next(iter(loader))
        if cycle == CYCLES // 2:
            eventually("the job is over", lambda: not ask(str(standing))["jobs"])
            before = (open_descriptors(pid), _rss_kib(pid))
    eventually("the job is over", lambda: not ask(str(standing))["jobs"])
    eventually("its processes are gone", lambda: not of_job(job), 5.0)
    assert open_descriptors(pid) <= before[0]
    assert _rss_kib(pid) < before[1] * 1.05 + 1024
