"""Starts the ranks, listens to them, and ends them: whatever happens, none is left."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from bench.demo.records import Finished, Message, StepRecord, TrainSettings
from bench.results import BenchFailed
from bench.side import own_environment

START_S = 180.0
"""Longest silence before the first step; ranks import torch on few cores."""

PROGRESS_S = 60.0
"""Longest silence after that."""

STOP_S = 5.0
"""Time to end after SIGTERM."""

_LOG_TAIL = 12


class Rank:
    """The process of one rank. Its stdin stays open as long as we live; it ends when that closes."""

    def __init__(
        self, rank: int, size: int, port: int, settings: Path, log: Path, environment: Mapping[str, str]
    ) -> None:
        self.rank = rank
        self.log = log
        environment = (
            os.environ
            | own_environment()
            | dict(environment)
            | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
        )
        with log.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.demo.train", str(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                env=environment,
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        assert self.process.stdout is not None, "stdout is a pipe"
        self.out_fd = self.process.stdout.fileno()
        os.set_blocking(self.out_fd, False)
        self._decoder = msgspec.json.Decoder[Message](Message)
        self._rest = b""

    def read(self) -> list[Message] | None:
        """The messages that are there; None at the end of the stream."""
        chunk = os.read(self.out_fd, 1 << 20)
        if not chunk:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [self._decoder.decode(line) for line in lines if line]

    def log_tail(self) -> str:
        """The last lines that the rank wrote to stderr."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL:])

    def signal(self, number: int) -> None:
        """Signal the rank and what it started in its session."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        """Wait for the end, which must have been asked for, and close the pipes."""
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def run_ranks(
    settings: TrainSettings,
    size: int,
    out: Path,
    on_step: Callable[[StepRecord], None],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> list[Message]:
    """Run the job on `size` ranks and return all that they reported. Raises BenchFailed where one fails.

    `out` receives settings.json and rank<N>.log. `environment` is added to that of the ranks.
    """
    path = out / "settings.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(settings), indent=1))
    port = _free_port()
    ranks: list[Rank] = []
    try:
        for rank in range(size):  # one by one: those that did start are ended if the next does not
            ranks.append(Rank(rank, size, port, path, out / f"rank{rank}.log", environment))  # noqa: PERF401
        return _listen(ranks, on_step)
    finally:
        _end(ranks)


def _listen(ranks: Sequence[Rank], on_step: Callable[[StepRecord], None]) -> list[Message]:
    messages: list[Message] = []
    allowed_s = START_S
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            selector.register(rank.out_fd, selectors.EVENT_READ, rank)
        heard_s = time.monotonic()
        while selector.get_map():
            ready = selector.select(timeout=max(0.0, heard_s + allowed_s - time.monotonic()))
            if not ready:
                raise BenchFailed(_silent(ranks, messages, allowed_s))
            heard_s = time.monotonic()
            for key, _ in ready:
                rank = key.data
                news = rank.read()
                if news is None:
                    selector.unregister(key.fd)
                    _check_end(rank, messages)
                    continue
                messages.extend(news)
                for message in news:
                    if isinstance(message, StepRecord):
                        allowed_s = PROGRESS_S
                        on_step(message)
    return messages


def _check_end(rank: Rank, messages: Sequence[Message]) -> None:
    """A rank has closed its stdout: fine if it had finished."""
    code = rank.process.wait()
    finished = any(isinstance(m, Finished) and m.rank == rank.rank for m in messages)
    if code or not finished:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise BenchFailed(f"rank {rank.rank} {how}; the end of {rank.log}:\n{rank.log_tail()}")


def _silent(ranks: Sequence[Rank], messages: Sequence[Message], allowed_s: float) -> str:
    last = {r.rank: -1 for r in ranks}
    for message in messages:
        if isinstance(message, StepRecord):
            last[message.rank] = message.step
    steps = ", ".join(f"rank {r}: {'no step' if s < 0 else f'step {s}'}" for r, s in last.items())
    return f"no rank reported anything for {allowed_s:.0f} s ({steps}); see {ranks[0].log.parent}/rank*.log"


def _end(ranks: Sequence[Rank]) -> None:
    """SIGTERM, then SIGKILL to whoever is still there."""
    for rank in ranks:
        rank.signal(signal.SIGTERM)
    deadline_s = time.monotonic() + STOP_S
    for rank in ranks:
        try:
            rank.process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.signal(signal.SIGKILL)
        rank.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
