"""Ray: one pool of processes decodes for all ranks of the node; batches come through its object store."""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import subprocess
import sys
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.node import plans
from bench.node.case import Case, Facts, Variant
from bench.node.recipe import loaded
from bench.node.system import Fed, System
from bench.node.systems.dataloader import joined
from bench.processes import MARK, NODE_MARK, end_marked
from bench.results import BenchFailed
from bench.samples import Visit
from libhelix.recipe import Pack, Ragged
from libhelix.wire.settings import RecipeSpec

_START_LIMIT_S = 60.0
_ROOT = Path(__file__).resolve().parents[3]
_LEAST_STORE = 256 << 20
_AUTH = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
"""Of the clusters that this process starts, whatever the user has set up. Ranks see several clusters, and
Ray reads a token once in a process."""
_WAYS = ("tasks of batches", "tasks of samples", "actors, a batch each")


class Ray(System):
    """As many processes as cores. Tasks wait in Ray's own queue for the node, so that no core idles while any
    rank has work; actors get batches in turn, as `ActorPool` gives them. Whole batches or single samples are
    decoded at once; what is best is kept. A rank has as many batches in work as its look-ahead allows."""

    name = "ray"
    title = "Ray"

    def missing(self) -> str | None:
        """Ray is a large package, which nobody gets with this one."""
        return None if importlib.util.find_spec("ray") else "it is not installed: pip install ray"

    def variants(self, case: Case) -> list[Variant]:
        """Tasks and actors, batches and samples."""
        del case
        return [Variant(way, {"way": way}) for way in _WAYS]

    def decode_processes(self, case: Case, variant: Variant) -> int:
        """One a core."""
        del variant
        return case.decoders

    @contextmanager
    def node(self, case: Case, variant: Variant, scratch: Path, mark: str) -> Iterator[Facts]:
        """A cluster of this machine alone."""
        del variant
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        store = max(_LEAST_STORE, 2 * case.ranks * case.lookahead_bytes)
        own = f"ray-{os.getpid()}-{secrets.token_hex(4)}"
        env = {
            **os.environ,
            NODE_MARK: mark,
            MARK: own,
            "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_DISABLE_IMPORT_WARNING": "1",
            **_AUTH,
        }
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--disable-usage-stats"]
        command += ["--node-ip-address=127.0.0.1", f"--port={port}", f"--num-cpus={case.decoders}"]
        command += ["--include-dashboard=false", f"--object-store-memory={store}"]
        # Paths of its sockets below it must be short.
        try:
            began = subprocess.run(
                [*command, f"--temp-dir={scratch}"],
                env=env,
                capture_output=True,
                text=True,
                timeout=_START_LIMIT_S,
                check=False,
            )
            if began.returncode:
                raise BenchFailed(f"ray does not start: {began.stdout[-500:]} {began.stderr[-1000:]}")
            yield {"address": f"127.0.0.1:{port}", **_AUTH}
        finally:
            end_marked(own)  # `ray stop` would end the clusters of others, too

    @contextmanager
    def batches(self, case: Case, variant: Variant, rank: int, facts: Facts) -> Iterator[Iterator[Fed]]:
        """Batches in the order of a distributed sampler."""
        with connected(facts):
            yield self._fed(case, str(variant.options["way"]), rank)

    def _fed(self, case: Case, way: str, rank: int) -> Iterator[Fed]:
        import ray

        decode = _submit(case, way, rank)
        of_samples = way == "tasks of samples"
        order = plans.slices(case, rank)
        work: deque[tuple[plans.Batch, list[Any]]] = deque()

        def submit() -> None:
            visits = next(order)
            parts = [(visit,) for visit in visits] if of_samples else [visits]
            work.append((visits, [decode(part) for part in parts]))

        for _ in range(case.lookahead - 1):
            submit()
        while True:
            visits, refs = work.popleft()
            found = [_tensors(batch) for batch in ray.get(refs)]
            submit()  # the rank has given back the one before
            tensors = joined(found) if of_samples else found[0]
            yield Fed(tensors, visits[0].epoch, tuple(v.sample for v in visits))


@contextmanager
def connected(facts: Facts) -> Iterator[None]:
    """This rank is a driver of the cluster."""
    os.environ |= {name: facts[name] for name in _AUTH}
    # What still asks for something afterwards, such as a thread that fetched ahead, must not start a cluster.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    import ray

    ray.init(address=facts["address"], namespace="bench", log_to_driver=False, logging_level="ERROR")
    try:
        yield
    finally:
        ray.shutdown()


def _submit(case: Case, way: str, rank: int) -> Any:
    """A function that has visits decoded somewhere, and gives a reference to the batch."""
    import ray

    told = (case.index, case.recipe, case.seed, case.cores)
    if way != "actors, a batch each":
        task = ray.remote(num_cpus=1)(_decode)
        return lambda visits: task.remote(*told, visits)
    pool = [
        ray.remote(num_cpus=1)(_Decoder)
        .options(name=f"decoder-{i}", get_if_exists=True, lifetime="detached")
        .remote(*told)
        for i in range(case.decoders)
    ]
    turn = iter(range(rank * len(pool) // case.ranks, sys.maxsize))
    return lambda visits: pool[next(turn) % len(pool)].decode.remote(visits)


class _Decoder:
    """The actor."""

    def __init__(self, index: str, recipe: RecipeSpec, seed: int, cores: tuple[int, ...]) -> None:
        self._told = index, recipe, seed, cores

    def decode(self, visits: tuple[Visit, ...]) -> dict[str, Any]:
        """A batch."""
        return _decode(*self._told, visits)


def _decode(
    index: str, recipe: RecipeSpec, seed: int, cores: tuple[int, ...], visits: tuple[Visit, ...]
) -> dict[str, Any]:
    """A batch, as arrays: Ray puts these into shared memory, and nothing else."""
    from bench.torch_loader import collate

    dataset, packed, ragged = _opened(index, recipe, seed, cores)
    batch = collate(packed, ragged, dataset.__getitems__(visits))
    return {
        name: [one.numpy() for one in value] if isinstance(value, list) else value.numpy()
        for name, value in batch.items()
    }


@cache
def _opened(index: str, recipe: RecipeSpec, seed: int, cores: tuple[int, ...]) -> Any:
    """The data set, once in a process."""
    import torch

    from bench.torch_loader import RecipeDataset

    torch.set_num_threads(1)
    os.sched_setaffinity(0, cores)
    dataset = RecipeDataset(Path(index), loaded(recipe), seed)
    fields = dataset.describe(Visit(sample=0, epoch=0)).fields
    packed = frozenset(f.name for f in fields if isinstance(f.layout, Pack))
    ragged = frozenset(f.name for f in fields if isinstance(f.layout, Ragged))
    return dataset, packed, ragged


def _tensors(batch: dict[str, Any]) -> dict[str, Any]:
    """Without a copy: trainers only read."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return {
            name: [_tensor(one) for one in value] if isinstance(value, list) else _tensor(value)
            for name, value in batch.items()
        }


def _tensor(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)
