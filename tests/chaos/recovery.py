"""How long it takes until what was killed is back: `python -m tests.chaos.recovery --times 9`."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from libhelix.ctl.daemons import ask
from libhelix.errors import HelixError
from libhelix.index.build import build
from tests.clips import make_clip
from tests.system.processes import ROOT, Trainer, eventually, of_job

LIMIT_S = 30.0
RESTART_S = 0.2
"""After which systemd starts helixd anew (RestartSec of the unit)."""
RING = 3
"""Batches that may be ready, or held, when a daemon is killed: the one after these is the next daemon's."""


class Standing:
    """`helixd run`, which can be killed and is started again as by systemd."""

    def __init__(self, socket: Path) -> None:
        self.address = str(socket)
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "helixd", "run", "--socket", self.address, "--reserve", "0"]
        return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)

    def restart(self) -> None:
        """Kill it, and start it after a while."""
        self._process.kill()
        self._process.wait(10)
        time.sleep(RESTART_S)
        self._process = self._start()

    def end(self) -> None:
        """Stop it."""
        self._process.terminate()
        self._process.wait(10)


def _job(address: str, job: str) -> dict[str, Any]:
    """What a daemon says of a job; nothing while it does not answer."""
    with suppress(HelixError):
        for found in ask(address)["jobs"]:
            if found["job"] == job:
                return dict(found)
    return {}


def _done(address: str, job: str) -> dict[int, int]:
    """By core, what its worker has done since it began."""
    return {w["core"]: w["done"] for w in _job(address, job).get("workers", [])}


def _until(what: str, true: Callable[[], bool]) -> float:
    """Seconds until it is so."""
    began = time.monotonic()
    eventually(what, true, LIMIT_S)
    return time.monotonic() - began


class Node:
    """A daemon and a data set."""

    def __init__(self, folder: Path, daemon: Standing) -> None:
        (media := folder / "media").mkdir()
        for i in range(24):
            make_clip(media / f"{i:02d}.mp4", 12 + 7 * (i % 5), gop=6)
        self.index, self.daemon = folder / "i.arrow", daemon
        self.name = f"recovery-{os.getpid()}"
        build([media], self.index, jobs=1)

    @contextmanager
    def job(self, *, ranks: int = 1, private: bool = False, **options: Any) -> Iterator[list[Trainer]]:
        """Its ranks, each of which has its first batch."""
        env = {"HELIX_SOCKET": "" if private else self.daemon.address, "HELIX_RESERVE": "0"}
        options = {"epochs": None, "samples": 1, "dp_size": ranks, "env": env, **options}
        trainers = [Trainer(self.index, self.name, dp_rank=r, **options) for r in range(ranks)]
        try:
            for trainer in trainers:
                trainer.event("batch")
            yield trainers
        finally:
            for trainer in trainers:
                with suppress(ValueError):  # closed: it was killed as the fault
                    trainer.kill()
            eventually("nothing is left of the job", lambda: not of_job(self.name), LIMIT_S)

    def worker(self, times: int) -> list[float]:
        """A worker is killed; until the one after it, on its core, has done a task."""
        with self._decoding():
            return [self._back(of_job(self.name, "w")[0]) for _ in range(times)]

    def host(self, times: int) -> list[float]:
        """The worker host is killed, and all workers with it; until all have done a task."""
        with self._decoding():
            return [self._back(of_job(self.name, "host")[0]) for _ in range(times)]

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        """A job that takes what there is, so that all its workers have something to do."""
        with self.job() as (trainer,):
            # Read all the time: who prints to a full pipe stands still.
            reading = threading.Thread(target=lambda: deque(trainer.process.stdout or (), maxlen=0))
            reading.start()
            try:
                yield
            finally:
                trainer.process.kill()
                reading.join()

    def _back(self, pid: int) -> float:
        eventually("all decode", lambda: min(_done(*self._at).values(), default=0) > 0, LIMIT_S)
        killed = {pid} if pid in (before := set(of_job(self.name, "w"))) else before
        cores = {core for one in killed for core in os.sched_getaffinity(one)}
        os.kill(pid, signal.SIGKILL)

        def back() -> bool:
            workers = set(of_job(self.name, "w"))
            if workers & killed or len(workers) < len(before):
                return False  # what is said of them may be of those before
            done = _done(*self._at)
            return all(done.get(core, 0) > 0 for core in cores)

        return _until("they decode again", back)

    def leases(self, times: int) -> list[float]:
        """One of two trainers is killed, holding a batch; until its ring is given back."""
        return [self._leases() for _ in range(times)]

    def _leases(self) -> float:
        with self.job(ranks=2, step_by_step=True) as (_, victim):
            assert self._leased(1) > 0
            victim.process.send_signal(signal.SIGKILL)
            return _until("its leases are back", lambda: self._leased(1) == 0)

    def _leased(self, rank: int) -> int:
        loaders = _job(*self._at).get("loaders", [])
        return sum(c["ring_bytes"]["leased"] for s in loaders for c in s["consumers"] if c["rank"] == rank)

    def standing(self, times: int) -> list[float]:
        """The standing daemon is killed; until the first batch that the next one made is taken."""
        with self.job(step_by_step=True) as (trainer,):
            return [self._next_made(trainer, self.daemon.restart) for _ in range(times)]

    def private(self, times: int) -> list[float]:
        """The same of a private daemon, which the trainer starts anew."""

        def kill() -> None:
            os.kill(of_job(self.name, "helixd")[0], signal.SIGKILL)

        with self.job(private=True, step_by_step=True) as (trainer,):
            return [self._next_made(trainer, kill) for _ in range(times)]

    @staticmethod
    def _next_made(trainer: Trainer, kill: Callable[[], None]) -> float:
        began = time.monotonic()
        kill()
        for _ in range(RING + 1):
            trainer.go()
            trainer.event("batch")
        return time.monotonic() - began

    @property
    def _at(self) -> tuple[str, str]:
        return self.daemon.address, self.name


WHAT = {
    "worker": Node.worker,
    "worker host, all workers": Node.host,
    "leases of a trainer": Node.leases,
    "standing daemon, next batch": Node.standing,
    "private daemon, next batch": Node.private,
}


@click.command(epilog="Example:  python -m tests.chaos.recovery --times 9")
@click.option("--times", default=9, show_default=True, type=click.IntRange(1))
@click.option("--json", "as_json", is_flag=True, help="Print seconds of every time as JSON.")
def main(times: int, as_json: bool) -> None:
    """Kill things on an idle node, and say in seconds how long it takes until they are back."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="helix-recovery-") as at:
        daemon = Standing(Path(at, "helixd.sock"))
        try:
            eventually("helixd listens", Path(daemon.address).is_socket)
            node = Node(Path(at), daemon)
            for name, measure in WHAT.items():
                found[name] = seconds = measure(node, times)
                middle, most = statistics.median(seconds), max(seconds)
                click.echo(f"{name:<28} {middle:6.3f} s, at most {most:6.3f} s", err=as_json)
        finally:
            daemon.end()
    if as_json:
        click.echo(json.dumps(found))


if __name__ == "__main__":
    main()
