"""Ranks that live through all runs, a daemon for each policy, and one run of a system."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench.ablate.barrier import Meeting
from bench.ablate.recipe import LevelClip
from bench.ablate.report import Run
from bench.ablate.requests import Serve, Serving, Train, Trained
from bench.ablate.systems import System
from bench.results import BenchFailed
from bench.side import Side


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What all systems train."""

    index: Path
    recipe: LevelClip
    ranks: int
    batch: int
    steps: int
    seed: int
    per_token_s: float
    cores: tuple[int, ...]


class Node:
    """The processes. Use it in `with`: all are ended there."""

    def __init__(self, job: Job, systems: Sequence[System], scratch: Path) -> None:
        self._job = job
        self._scratch = scratch
        self._stack = ExitStack()
        self._number = 0
        try:
            self._ranks = [self._stack.enter_context(Side("bench.ablate.rank")) for _ in range(job.ranks)]
            self._sockets = {s.name: self._daemon(s) for s in systems if s.policy is not None}
        except BaseException:
            self._stack.close()
            raise

    def _daemon(self, system: System) -> str:
        assert system.policy is not None, "it has a daemon"
        socket = str(self._scratch / f"{system.name}.sock")
        side = self._stack.enter_context(Side("bench.ablate.daemon"))
        side.ask(Serve(socket=socket, policy=system.policy, cores=self._job.cores), Serving)
        return socket

    def run(self, system: System) -> Run:
        """Train once from a system. Raises BenchFailed where a rank fails."""
        job = self._job
        self._number += 1
        place = self._scratch / f"meet{self._number}"
        name = f"bench-{os.getpid()}-{secrets.token_hex(4)}"
        with Meeting(place, job.ranks):
            for number, rank in enumerate(self._ranks):
                rank.tell(
                    Train(
                        index=str(job.index),
                        recipe=msgspec.structs.replace(job.recipe, level=system.policy is not None),
                        rank=number,
                        ranks=job.ranks,
                        batch=job.batch,
                        regroup=system.regroup,
                        steps=job.steps,
                        seed=job.seed,
                        per_token_s=job.per_token_s,
                        cores=job.cores,
                        barrier=str(place),
                        job=name,
                        socket=self._sockets.get(system.name),
                    )
                )
            trained = [rank.answer(Trained) for rank in self._ranks]
        if any(len(t.steps) != job.steps for t in trained):
            raise BenchFailed(f"{system.title}: a rank did not train {job.steps} steps")
        return Run(system=system.name, steps=tuple(zip(*(t.steps for t in trained))))

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
