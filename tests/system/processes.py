"""Looking at processes from outside, and running trainers as processes of their own."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0


def eventually(what: str, true: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Wait, bounded, until it is so."""
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.01)


def of_job(job: str, kind: str = "") -> list[int]:
    """Pids of a job's daemon, host and workers; `kind` is "helixd", "host" or "w" (its workers)."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            name = (entry / "comm").read_text().strip()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if job.encode() not in command or state == "Z" or b"helixd" not in command:
            continue
        is_worker, is_host = name.startswith("helix-w"), name == "helix-host"
        if {"": True, "w": is_worker, "host": is_host, "helixd": not (is_worker or is_host)}[kind]:
            found.append(int(entry.name))
    return found


def expect_nothing_left(job: str, limit_s: float = 2.0) -> None:
    """No process, socket or shared memory of the job is left after two seconds."""
    gc.collect()
    eventually(f"processes of {job} are gone", lambda: not of_job(job), limit_s)
    assert job not in Path("/proc/net/unix").read_text()
    # Others on this machine may be making a segment at this very moment; theirs have no name for long.
    eventually("no segment has a name", lambda: not _named_segments(), limit_s)


def _named_segments() -> list[str]:
    return [n for n in os.listdir("/dev/shm") if n.startswith("helix-")]


def open_descriptors(pid: int) -> int:
    """How many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def maps(pid: int) -> str:
    """What a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text()


class Trainer:
    """A trainer process (tests.system.trainer); it prints one JSON line per event."""

    def __init__(self, index: Path, job: str, **options: Any) -> None:
        env = {**os.environ, "HELIX_JOB": job, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
        command = [*options.pop("under", []), sys.executable, "-m", "tests.system.trainer"]
        self.process = subprocess.Popen(
            [*command, json.dumps({"index": str(index), **options})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            cwd="/",
        )

    def event(self, kind: str) -> dict[str, Any]:
        """The next event of a kind. Fails with the trainer's stderr where it ends before."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            event: dict[str, Any] = json.loads(line)
            if event["event"] == kind:
                return event
        _, stderr = self.process.communicate(timeout=LIMIT_S)
        raise AssertionError(f"the trainer ended with {self.process.returncode} before {kind!r}: {stderr}")

    def step(self) -> str | None:
        """Take one batch and let it go on; its stderr, where it ended instead."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if json.loads(line)["event"] == "batch":
                self.go()
                return None
        _, stderr = self.process.communicate(timeout=LIMIT_S)
        return stderr

    def go(self) -> None:
        """Let it take the next batch, where it was told to wait for that."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self, code: int = 0) -> tuple[list[dict[str, Any]], str]:
        """Its remaining events and its stderr, once it ended with this code."""
        stdout, stderr = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == code, stderr
        return [json.loads(line) for line in stdout.splitlines()], stderr

    def kill(self) -> None:
        """SIGKILL. Its output is not read to the end: a daemon that serves other ranks may share it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=LIMIT_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
