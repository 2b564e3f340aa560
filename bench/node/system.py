"""What a system under test is. One file in systems/ for each; `MODULES` has them by name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from bench.node.case import Case, Facts, Variant


class Fed(NamedTuple):
    """A batch, valid until the next is asked for.

    tensors   by field, as the recipe names them: compared with those of other systems, sample by sample. A
              stacked field is one tensor, a ragged one a list; a packed one is one tensor, and has its
              bounds, int32 [samples + 1], beside it as "<field>_cu_seqlens"
    epoch     of its first sample
    ids       of its samples, in their order in the tensors; windows are computed from them
    """

    tensors: Any
    epoch: int
    ids: tuple[int, ...]


class System:
    """A way to feed ranks. Objects hold nothing: the parent and every rank process make their own.

    Decoding is always the case's recipe (`load_recipe(case.recipe)`): describe, then fill of a whole sample
    or of parts. A system opens no accelerator, decodes on no more than `case.decoders` cores at once, and
    keeps no more than `case.lookahead` batches a rank, that which the rank holds included. (A DataLoader may
    have one more, where its workers would else not all work.)
    """

    name = ""
    title = ""
    """For reports."""

    def missing(self) -> str | None:
        """Why it cannot run here, with the cure; None if it can. Starts nothing, imports nothing big."""
        return None

    def python(self) -> str:
        """The interpreter of its rank processes; `bench`, `libhelix` and torch can be imported in it."""
        return sys.executable

    def variants(self, case: Case) -> list[Variant]:
        """The settings that an expert would try for this case, at least one."""
        raise NotImplementedError

    def decode_processes(self, case: Case, variant: Variant) -> int:
        """How many processes (or threads) decode at once on the node."""
        raise NotImplementedError

    def node(self, case: Case, variant: Variant, scratch: Path, mark: str) -> AbstractContextManager[Facts]:
        """Runs in the parent around a run: starts what ranks share (daemon, actors, cluster), and ends it.

        Yields what ranks are told. `scratch` is an empty folder of this run, removed after it. `mark`: put
        bench.processes.NODE_MARK=mark into the environment of what is started: CPU time and memory of a run
        are those of all processes that carry it; what is left of them is killed in the end. A fact
        "daemon", a pid, has that process's CPU time noted apart.
        """
        del case, variant, scratch, mark
        return nullcontext({})

    def batches(
        self, case: Case, variant: Variant, rank: int, facts: Facts
    ) -> AbstractContextManager[Iterator[Fed]]:
        """Runs in the process of a rank: its batches, micro-batch after micro-batch, without end.

        What it starts in the process ends with the context; the process then trains the next run.
        """
        raise NotImplementedError


MODULES = {
    "datahelix": "bench.node.systems.datahelix:Helix",
    "datahelix-no-split": "bench.node.systems.datahelix:NoSplit",
    "datahelix-no-deadlines": "bench.node.systems.datahelix:NoDeadlines",
    "datahelix-no-regroup": "bench.node.systems.datahelix:NoRegroup",
    "datahelix-oracle": "bench.node.systems.datahelix:Oracle",
    "dataloader": "bench.node.systems.dataloader:RankLocal",
    "alltoall": "bench.node.systems.alltoall:AllToAll",
    "minato": "bench.node.systems.minato:Minato",
    "spdl": "bench.node.systems.spdl:Spdl",
    "energon": "bench.node.systems.energon:Energon",
    "ray": "bench.node.systems.ray:Ray",
    "ray-data": "bench.node.systems.ray_data:RayData",
    "dataloader-samples": "bench.node.systems.dataloader:PerSample",
    "dataloader-lengths": "bench.node.systems.dataloader:LengthGrouped",
    "dataloader-windows": "bench.node.systems.dataloader:Windowed",
}
"""Name -> module:class. A module is imported when its system is used: some need packages that others lack."""


def system(name: str) -> System:
    """The system of a name. Raises KeyError for none of `MODULES`."""
    module, _, qualname = MODULES[name].partition(":")
    found = getattr(importlib.import_module(module), qualname)()
    assert isinstance(found, System), f"{MODULES[name]} is a System"
    return found
