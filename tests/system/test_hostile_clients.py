"""Processes that mean harm, on the socket of a real daemon, while a job of another user goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from libhelix.ctl.daemons import ask
from tests.system.hostile import KINDS
from tests.system.processes import ROOT, Trainer, eventually, of_job, open_descriptors
from tests.system.test_standing_daemon import standing as standing

ATTACK_S = 2.0
AS_WORKERS = ["nice", "-n", "19"]
"""Cores are anybody's: it is the daemon that is looked at."""
STRANGER = 65534 if os.geteuid() == 0 else os.geteuid()
MOST_WAIT_S = 1.0
"""Of the job for a batch, on machines that others use, too."""
MOST_GROWN_KIB = 96 << 10
"""What waits for one user's processes, 64 MiB, and what it takes to keep it."""


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def _attacker(socket: Path, kind: str, seed: int) -> subprocess.Popen[str]:
    told = (str(socket), kind, str(seed), str(STRANGER))
    attacker = subprocess.Popen(
        [*AS_WORKERS, sys.executable, "-m", "tests.system.hostile", *told],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert attacker.stdout is not None
    said = attacker.stdout.readline()
    if said != "attacks\n":
        raise AssertionError(attacker.communicate(timeout=10)[1])
    return attacker


def _ended(attacker: subprocess.Popen[str]) -> int:
    """How often it has attacked."""
    out, err = attacker.communicate(timeout=30)
    assert attacker.returncode == 0, err
    return int(out)


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_cut_off_and_the_job_of_another_notices_nothing(
    kind: str, index: Path, job: str, standing: Path
) -> None:
    trainer = Trainer(index, job, epochs=None, step_by_step=True, env={"HELIX_SOCKET": str(standing)})
    trainer.event("batch")
    state = ask(str(standing))
    pid, host = state["pid"], of_job(job, "host")
    workers = sorted(of_job(job, "w"))
    descriptors, peak = open_descriptors(pid), _status(pid, "VmHWM")
    attacker = _attacker(standing, kind, seed=1)
    longest_s = _batches(trainer, ATTACK_S)
    grown_kib = _status(pid, "VmHWM") - peak
    if os.geteuid() != STRANGER:  # else these connections are the attacker's user's, too
        assert ask(str(standing))["pid"] == pid, "who comes now is served"
    assert _ended(attacker) > 0
    assert grown_kib < MOST_GROWN_KIB
    assert longest_s < MOST_WAIT_S
    assert _batches(trainer, 0.3) < MOST_WAIT_S
    assert (of_job(job, "host"), sorted(of_job(job, "w"))) == (host, workers), "nothing of it died"
    eventually("the daemon has no more open than before", lambda: open_descriptors(pid) <= descriptors, 15)
    assert ask(str(standing))["pid"] == pid
    trainer.kill()


def _batches(trainer: Trainer, for_s: float) -> float:
    """Take batches for so long; the longest wait for one."""
    longest_s, until = 0.0, time.monotonic() + for_s
    while time.monotonic() < until:
        began = time.monotonic()
        trainer.go()
        trainer.event("batch")
        longest_s = max(longest_s, time.monotonic() - began)
    return longest_s
