"""Which data-parallel rank this process is, and of which job: from arguments, torch.distributed, launchers.

Explicit arguments, then a device mesh, then torch.distributed, torchrun, MPI or PMI, Slurm. What contradicts
is refused: a wrong guess would train on the wrong samples in silence.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from libhelix.errors import UsageError

LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI", "PMI_RANK", "PMI_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS"),
)
_DATA_PARALLEL = (
    *("dp", "dp_replicate", "dp_shard", "data", "data_parallel", "batch"),
    *("fsdp", "hsdp", "ddp", "replicate", "shard"),
)
_SHARING = (
    *("tp", "pp", "cp", "sp", "tensor", "pipeline", "context", "sequence", "seq", "model", "ulysses", "ring"),
    *("tensor_parallel", "pipeline_parallel", "context_parallel", "sequence_parallel", "model_parallel"),
)


class Place(NamedTuple):
    """Data-parallel rank `rank` of `size`, of which this process is one of `replicas`."""

    rank: int
    size: int
    replica: int
    replicas: int


class World(NamedTuple):
    """A process's number among all of the job, and who counted."""

    rank: int
    size: int
    origin: str


def resolve(
    dp_rank: int | None,
    dp_size: int | None,
    replica: int,
    replicas: int,
    mesh: Any = None,
    environ: Mapping[str, str] = os.environ,
) -> Place:
    """This process's place. Raises UsageError for half a place, one out of range, and contradictions."""
    if (dp_rank is None) != (dp_size is None):
        raise UsageError("dp_rank and dp_size belong together; give both or neither")
    if replicas < 1 or not 0 <= replica < replicas:
        raise UsageError(f"replica {replica} is not in [0, {replicas}), the processes of a rank")
    world = _world(environ)
    if dp_rank is not None and dp_size is not None:
        place, origin = Place(dp_rank, dp_size, replica, replicas), "dp_rank= and dp_size="
        if mesh is not None:
            raise UsageError("mesh= says the rank; leave out dp_rank= and dp_size=, or mesh=")
        if dp_size < 1:
            raise UsageError(f"dp_size={dp_size}: dp_size must be >= 1")
        if not 0 <= dp_rank < dp_size:
            raise UsageError(f"dp_rank {dp_rank} is not in [0, {dp_size}), the ranks of dp_size")
    elif mesh is not None:
        if replicas > 1:
            raise UsageError("mesh= says the replica; leave out replica= and replicas=, or mesh=")
        place, origin = _of_mesh(mesh), "mesh="
    elif world is None:
        place, origin = Place(0, 1, replica, replicas), "default"
    elif replicas > 1:
        raise UsageError(
            f"replicas={replicas}: {world.origin} counts {world.size} processes, not data-parallel ranks; "
            "give dp_rank= and dp_size=, or mesh="
        )
    else:
        place, origin = Place(world.rank, world.size, 0, 1), world.origin
    if mesh is not None and world is not None and place.size * place.replicas < world.size:
        raise UsageError(
            f"mesh= has {place.size * place.replicas} of the {world.size} processes that {world.origin} "
            "counts; give the whole mesh, so that those which share batches are known, or dp_rank=, "
            "dp_size=, replica= and replicas="
        )
    if world is not None and place.size * place.replicas > world.size:
        raise UsageError(
            f"{origin}: {place.size} ranks of {place.replicas} replicas, but {world.origin} counts "
            f"{world.size} processes"
        )
    return place


def check_still(place: Place) -> str | None:
    """Whether a place that was found, not said, is still right when the first batch is asked for: what is
    amiss, as a warning. Raises UsageError where torch.distributed has come to count otherwise since."""
    world = _distributed()
    if world is not None and (world.rank, world.size) != (place.rank, place.size):
        raise UsageError(
            f"this loader was made for rank {place.rank} of {place.size}, before torch.distributed was "
            f"initialised, which says rank {world.rank} of {world.size}; make it afterwards (in Lightning: "
            "in train_dataloader() or a DataModule), start the ranks with torchrun, or give dp_rank= and "
            "dp_size="
        )
    launched, torch = _launched(os.environ), sys.modules.get("torch")
    alone = world is None and torch is not None and torch.distributed.is_available()
    if alone and launched is not None and launched.origin == "torchrun" and launched.size > 1:
        return (
            f"torchrun has started {launched.size} processes, and torch.distributed is not initialised: do "
            "they train one model? On CPUs, Hugging Face's Trainer wants use_cpu=True, Accelerate cpu=True, "
            "Lightning devices="
        )
    return None


def _world(environ: Mapping[str, str]) -> World | None:
    """The first that counts. A launcher inside another (torchrun under Slurm) counts other things: only the
    innermost is asked."""
    distributed, launched = _distributed(), _launched(environ)
    if distributed is None:
        return launched
    if launched is not None and launched.origin == "torchrun" and launched[:2] != distributed[:2]:
        raise UsageError(
            f"torch.distributed says rank {distributed.rank} of {distributed.size}, torchrun says rank "
            f"{launched.rank} of {launched.size}; give dp_rank= and dp_size=, and start one of them only"
        )
    return distributed


def _distributed() -> World | None:
    torch = sys.modules.get("torch")  # never imported for this: who uses it has imported it
    if torch is None:
        return None
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized()):
        return None
    return World(dist.get_rank(), dist.get_world_size(), "torch.distributed")


def _launched(environ: Mapping[str, str]) -> World | None:
    for origin, rank_name, size_name in LAUNCHERS:
        rank, size = environ.get(rank_name), environ.get(size_name)
        if rank is None or size is None:
            continue
        try:
            world = World(int(rank), int(size), origin)
        except ValueError:
            raise UsageError(f"{rank_name}={rank!r}, {size_name}={size!r}: not numbers") from None
        if not 0 <= world.rank < world.size:
            raise UsageError(f"{rank_name}={rank} is not a rank of {size_name}={size}")
        return world
    return None


def _of_mesh(mesh: Any) -> Place:
    """The place that a torch DeviceMesh gives this process. A lone dimension without a name is data parallel.

    Names that may mean either (ep; dp_shard_cp, which counts ranks of both kinds) are refused.
    """
    shape, at = tuple(mesh.shape), mesh.get_coordinate()
    if at is None:
        raise UsageError("this process is not in mesh=; give dp_rank= and dp_size=")
    names = mesh.mesh_dim_names
    if names is None and len(shape) > 1:
        raise UsageError("mesh= has several dimensions without names; name them, such as ('dp', 'tp')")
    rank, size, replica, replicas = 0, 1, 0, 1
    parallel = False
    for name, n, i in zip(names or ("dp",), shape, at):
        if name in _DATA_PARALLEL:
            rank, size, parallel = rank * n + i, size * n, True
        elif name in _SHARING:
            replica, replicas = replica * n + i, replicas * n
        elif n > 1:
            raise UsageError(
                f"mesh= has a dimension {name!r}, and that does not say whether its ranks share batches (as "
                f"{', '.join(_SHARING[:4])} do) or have their own ({', '.join(_DATA_PARALLEL[:3])}, fsdp); "
                "give a mesh with such names, or dp_rank=, dp_size=, replica= and replicas="
            )
    if not parallel:
        raise UsageError(
            f"mesh= has dimensions {names}, none of them data parallel ({', '.join(_DATA_PARALLEL)})"
        )
    return Place(rank, size, replica, replicas)


def job_name(explicit: str | None, size: int, environ: Mapping[str, str] = os.environ) -> str:
    """The job that this process and its peers share. Raises UsageError where nothing names it."""
    named = explicit or environ.get("HELIX_JOB")
    if named:
        if len(named) > 256:
            raise UsageError(f"the job's name has {len(named)} characters; at most 256 are allowed")
        return named
    run = environ.get("TORCHELASTIC_RUN_ID", "none")
    if run not in ("", "none"):
        return f"torchrun-{run}"
    if environ.get("MASTER_PORT"):
        return f"{environ.get('MASTER_ADDR', 'localhost')}-{environ['MASTER_PORT']}"
    if environ.get("SLURM_JOB_ID"):
        return f"slurm-{environ['SLURM_JOB_ID']}-{environ.get('SLURM_STEP_ID', '0')}"
    if size == 1:
        return f"pid-{os.getpid()}"
    raise UsageError(f"{size} ranks share a job, and no launcher names it; give job= or set HELIX_JOB")
