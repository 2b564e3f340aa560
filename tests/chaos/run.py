"""The node: a standing daemon with two jobs, of two users where we are root, a third job with a private
daemon, two ranks each; faults for so many minutes, and the verdict."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from libhelix.client import SYSTEM_SOCKET, embedded_address
from libhelix.index.build import build
from tests.chaos.another import As, another, ourselves
from tests.chaos.faults import Faults, Rank
from tests.chaos.oracle import Verdict, expected, incarnations, judge
from tests.clips import make_clip
from tests.system.processes import ROOT, eventually, of_job, open_descriptors

RANKS = 2
PACE_S = 0.03
QUIET_S = 30.0
"""Within this, after the last fault, every rank is given more."""
START_S = 120.0
"""Six trainers that all import torch at once, on machines that others use, too."""
MOST_PAUSE_S = 30.0
"""No batch comes later than this after the one before, whatever happens."""


class Trainer:
    """A rank, and the processes that it has been."""

    def __init__(self, index: Path, folder: Path, job: str, rank: int, address: str, who: As) -> None:
        self.job, self.rank = job, rank
        self.log = folder / f"{job}-{rank}.log"
        told = {"index": str(index), "rank": rank, "ranks": RANKS, "job": job, "folder": str(folder)}
        told["pace_s"] = PACE_S
        self._command = [*who.python, "-m", "tests.chaos.trainer", json.dumps(told)]
        own = {"HELIX_SOCKET": address, "HELIX_CACHE": str(folder / "cache"), "HELIX_RESERVE": "0"}
        self._env = {**os.environ, **own, **who.environ}
        self._errors = (folder / f"{job}-{rank}.err").open("w")
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        out = subprocess.DEVNULL
        return subprocess.Popen(self._command, env=self._env, stdout=out, stderr=self._errors, cwd="/")

    @property
    def pid(self) -> int:
        """Of the process that it is now."""
        return self._process.pid

    def restart(self) -> None:
        """Kill it, and start it from what it has saved."""
        self.kill()
        self._process = self._start()

    def kill(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(10)

    def close(self) -> None:
        """End it for good."""
        self.kill()
        self._errors.close()

    def lines(self) -> int:
        """Batches that it was given in all its lives, and lives."""
        return self.log.read_bytes().count(b"\n") if self.log.exists() else 0

    def ended(self) -> str:
        """What it said when it ended by itself; nothing while it runs."""
        if self._process.poll() is None:
            return ""
        return Path(self._errors.name).read_text()[-2000:]


class Running:
    """The node that faults are done to."""

    def __init__(self, folder: Path) -> None:
        (media := folder / "media").mkdir()
        for i in range(24):
            make_clip(media / f"{i:02d}.mp4", 12 + 7 * (i % 5), gop=6)
        self.index = folder / "i.arrow"
        build([media], self.index, jobs=1)
        folder.chmod(0o755)
        self.address = str(folder / "helixd.sock")
        self.log = (folder / "helixd.log").open("w")
        self._daemon = self._start_daemon()
        ours = ourselves()
        other = another(folder) or ours
        self.users = len({ours.uid, other.uid})
        self.jobs = [f"chaos-{os.getpid()}-{name}" for name in "abc"]
        self.standing, self.private = self.jobs[:2], self.jobs[2]
        self.private_address = embedded_address(self.private)
        self.trainers = [
            trainer
            for job, who, address in zip(
                self.jobs, (ours, other, ours), (self.address, self.address, ""), strict=True
            )
            for trainer in self._trainers(folder, job, who, address)
        ]
        self.ranks: list[Rank] = list(self.trainers)
        self._seen: dict[str, list[int]] = {}

    def _trainers(self, folder: Path, job: str, who: As, address: str) -> list[Trainer]:
        """The ranks of a job, in a folder of its user's own."""
        own = folder / job
        own.mkdir()
        os.chown(own, who.uid, -1)
        return [Trainer(self.index, own, job, rank, address, who) for rank in range(RANKS)]

    def _start_daemon(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "helixd", "run", "--socket", self.address, "--reserve", "0"]
        daemon = subprocess.Popen(command, cwd=ROOT, stderr=self.log)
        eventually("helixd listens", lambda: Path(self.address).is_socket())
        return daemon

    @property
    def daemon_pid(self) -> int:
        """Of the daemon that runs now."""
        return self._daemon.pid

    def restart_daemon(self) -> None:
        """Kill it, and start it as systemd would."""
        self._daemon.kill()
        self._daemon.wait(10)
        time.sleep(0.2)
        self._daemon = self._start_daemon()

    def moves(self, job: str) -> bool:
        """Whether its ranks were given something since this was last so."""
        now = [t.lines() for t in self.trainers if t.job == job]
        before = self._seen.get(job, [0] * len(now))
        if not all(a > b + 1 for a, b in zip(now, before)):
            return False
        self._seen[job] = now
        return True

    def more_for_all(self, limit_s: float = QUIET_S) -> bool:
        """Whether every rank is given more now that nothing is done to it."""
        counts = [t.lines() for t in self.trainers]
        try:
            eventually("more", lambda: all(t.lines() > n + 3 for t, n in zip(self.trainers, counts)), limit_s)
        except AssertionError:
            return False
        return True

    def close(self) -> None:
        """End all of it."""
        for trainer in self.trainers:
            trainer.close()
        self._daemon.send_signal(signal.SIGTERM)
        self._daemon.wait(10)
        self.log.close()

    def left(self) -> list[str]:
        """What should not be there any more."""
        try:
            eventually("it is gone", lambda: not any(of_job(job) for job in self.jobs), 5.0)
        except AssertionError:
            return [f"processes {[pid for job in self.jobs for pid in of_job(job)]}"]
        named = [name for name in os.listdir("/dev/shm") if name.startswith("helix-")]
        return [f"/dev/shm/{name}" for name in named] + [self.address] * Path(self.address).exists()


class Result(NamedTuple):
    """Faults by kind, a verdict for each rank, what is wrong beside, and of how many users jobs were."""

    faults: Mapping[str, int]
    verdicts: Sequence[Verdict]
    wrong: list[str]
    users: int


def run(minutes: float, seed: int) -> Result:
    """Faults for so long, drawn from a seed, and what came of them."""
    if os.path.exists(SYSTEM_SOCKET):
        raise SystemExit(f"{SYSTEM_SOCKET} is there: the job with a private daemon would use it; stop helixd")
    folder = Path(tempfile.mkdtemp(prefix="helix-chaos-"))
    wrong: list[str] = []
    node = Running(folder)
    try:
        faults = Faults(node, seed)
        if not node.more_for_all(START_S):
            wrong.append("nothing comes even before the first fault")
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end and not wrong:
            faults.strike()
            time.sleep(0.05)
            wrong += [f"{t.job} {t.rank} ended: {said}" for t in node.trainers if (said := t.ended())]
        if not wrong and not node.more_for_all():
            wrong.append(f"a rank is given nothing within {QUIET_S:.0f} s of the last fault")
        if open_descriptors(node.daemon_pid) > 100:
            wrong.append(f"helixd has {open_descriptors(node.daemon_pid)} descriptors open")
    finally:
        node.close()
    wrong += [f"is left: {what}" for what in node.left()]
    verdicts = [judge(incarnations(t.log), expected(str(node.index), t.rank, RANKS)) for t in node.trainers]
    for trainer, verdict in zip(node.trainers, verdicts):
        wrong += [f"{trainer.job} rank {trainer.rank}: {text}" for text in verdict.wrong[:5]]
        if verdict.longest_s > MOST_PAUSE_S:
            wrong.append(f"{trainer.job} rank {trainer.rank} waited {verdict.longest_s:.0f} s for a batch")
    killed = sum(n for name, n in faults.done.items() if name.endswith("killed"))
    masked = sum(v.masked for v in verdicts)
    if masked > killed * RANKS:
        wrong.append(f"{masked} samples are masked, and {killed} processes were killed")
    if not wrong:
        shutil.rmtree(folder)
    return Result(faults.done, verdicts, [*wrong, f"logs are in {folder}"] if wrong else [], node.users)
