"""Rank processes that live through many runs, and one run of a system."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench.ablate.barrier import Meeting
from bench.node.case import Case, Train, Trained, Variant
from bench.node.system import System
from bench.node.watch import Memory, Taken, Watch
from bench.processes import NODE_MARK
from bench.results import BenchFailed
from bench.side import Side

_START_S = 240.0
"""Time for a system to start, workers' imports included."""
_SLOWEST = 12.0
"""Times the ideal duration that the slowest system may take."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a system, as it was measured. ranks[r] are the steps of a rank; `daemon` is the CPU time of
    helixd alone."""

    system: str
    variant: str
    decode_processes: int
    ranks: tuple[Trained, ...]
    taken: tuple[Taken, ...]
    peak: Memory
    daemon: tuple[Taken, ...] = ()


class Ranks:
    """Rank processes, those of one interpreter at a time. Use it in `with`: all are ended there."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._mark = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._python = ""
        self._sides: list[Side] = []
        self._stack = ExitStack()

    def run(self, case: Case, system: System, variant: Variant, *, checksums: bool = False) -> Run:
        """Train a case once. Raises BenchFailed, with what the system said."""
        scratch = Path(tempfile.mkdtemp(prefix="helix-node-"))
        try:
            self._have(system.python())
            return self._run(case, system, variant, scratch, checksums)
        except BaseException:
            self.end()
            raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _run(self, case: Case, system: System, variant: Variant, scratch: Path, checksums: bool) -> Run:
        meet = scratch / "meet"
        limit_s = _START_S + _SLOWEST * _ideal_s(case)
        with (
            system.node(case, variant, scratch, self._mark) as facts,
            Meeting(meet, case.ranks),
            Watch(self._mark, int(facts["daemon"]) if "daemon" in facts else None) as watch,
        ):
            for number, side in enumerate(self._sides):
                told = Train(
                    system=system.name,
                    case=case,
                    variant=variant,
                    rank=number,
                    facts=facts,
                    barrier=str(meet),
                    checksums=checksums,
                )
                side.tell(told)
            trained = tuple(side.answer(Trained, limit_s) for side in self._sides)
        _check(system, case, trained)
        return Run(
            system=system.name,
            variant=variant.name,
            decode_processes=system.decode_processes(case, variant),
            ranks=trained,
            taken=tuple(watch.taken),
            peak=watch.peak,
            daemon=tuple(watch.daemon),
        )

    def _have(self, python: str) -> None:
        """The ranks of an interpreter; those of another are ended."""
        if self._sides and self._python == python:
            return
        self.end()
        self._python = python
        for _ in range(self._count):
            side = Side("bench.node.rank", {NODE_MARK: self._mark}, python=python)
            self._sides.append(self._stack.enter_context(side))

    def end(self) -> None:
        """End all; the next run starts them again."""
        self._sides = []
        self._stack.close()
        self._stack = ExitStack()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _ideal_s(case: Case) -> float:
    from bench.node.case import read_rows

    tokens = read_rows(case.rows).tokens
    mean_s = sum(case.window.seconds([t]) for t in tokens) / len(tokens)
    return mean_s * case.batch * case.micro_batches * case.all_steps


def _check(system: System, case: Case, trained: tuple[Trained, ...]) -> None:
    errors = [t.error for t in trained if t.error]
    # The others only say that a rank is gone.
    telling = [e for e in errors if not e.startswith(("ConnectionError", "BrokenPipeError"))] or errors
    if telling:
        raise BenchFailed(f"{system.title}: {telling[0]}")
    wanted = case.all_steps * case.micro_batches
    if any(len(t.steps) != wanted for t in trained):
        raise BenchFailed(f"{system.title}: a rank did not train {wanted} batches")
