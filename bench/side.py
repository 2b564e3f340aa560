"""One side of a benchmark, in processes of its own: `python -m MODULE`, told what to do line by line.

Lines are JSON: we write a request, the side answers with one line. All that it starts carries its mark
(processes.py), so that its CPU time can be read and none of it outlives us.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import bench
from bench.interrupts import shielded_children
from bench.processes import MARK, CpuMeter, Marked, end_marked, remove_torch_segments
from bench.results import BenchFailed

ANSWER_S = 240.0
"""Longest time for an answer, first imports included."""

METER_S = 0.5
"""The CPU meter is read so often while an answer is waited for."""

STOP_S = 5.0
_LOG_TAIL = 12
Answer = TypeVar("Answer")


class Side:
    """A running side. Use it in `with`: it is ended there, whatever happens."""

    def __init__(
        self, module: str, environment: Mapping[str, str] | None = None, *, python: str = sys.executable
    ) -> None:
        self.name = module
        self._mark = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in end)
        with shielded_children():
            self._process = subprocess.Popen(
                [python, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=os.environ | own_environment() | dict(environment or {}) | {MARK: self._mark},
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        self.meter = CpuMeter(Marked(self._mark))

    def ask(self, request: msgspec.Struct, answer: type[Answer], limit_s: float = ANSWER_S) -> Answer:
        """Send a request and wait for its answer. Raises BenchFailed where none comes."""
        self.tell(request)
        return self.answer(answer, limit_s)

    def tell(self, request: msgspec.Struct) -> None:
        """Send a request; its answer is read later."""
        assert self._process.stdin is not None, "stdin is a pipe"
        try:
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise BenchFailed(self._how_it_ended()) from None

    def answer(self, answer: type[Answer], limit_s: float = ANSWER_S) -> Answer:
        """The answer to the oldest request that has none yet."""
        assert self._process.stdout is not None, "stdout is a pipe"
        deadline_s = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not selector.select(METER_S):
                self.meter.read_s()
                if time.monotonic() > deadline_s:
                    raise BenchFailed(f"{self.name} did not answer for {limit_s:.0f} s\n{self._tail()}")
        line = self._process.stdout.readline()
        if not line:
            raise BenchFailed(self._how_it_ended())
        found: Answer = msgspec.json.decode(line, type=answer)
        return found

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{self.name} {how}:\n{self._tail()}"

    def log(self) -> str:
        """What the side, and all that it has started, wrote to stderr so far."""
        log = self._log.fileno()
        # Not by seeking: the side's own writes go on at the position that it shares with us.
        return os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")

    def _tail(self) -> str:
        return "\n".join(self.log().splitlines()[-_LOG_TAIL:])

    def end(self) -> None:
        """End the side: politely, then by force; nothing of it is left."""
        process = self._process
        self.meter.read_s()  # sees what was started since it was read last
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None, "both are pipes"
            try:
                pipe.close()
            except BrokenPipeError:
                continue
        try:
            process.wait(STOP_S)  # it ends when its stdin closes, and cleans up
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            end_marked(self._mark)
            remove_torch_segments(self.meter.pids)
            self._log.close()

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()


def own_environment() -> dict[str, str]:
    """Environment in which a child finds this `bench`, and does not start threads for numpy and torch."""
    assert bench.__file__ is not None, "bench is a package with __init__.py"
    root = str(Path(bench.__file__).resolve().parent.parent)
    given = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {"PYTHONPATH": os.pathsep.join([root, *given]), "OMP_NUM_THREADS": "1"}
