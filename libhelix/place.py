"""Which data-parallel rank this process is, and of which job: from arguments, torch.distributed, launchers.

Explicit argument, then torch.distributed, then torchrun, MPI or PMI, Slurm. Two that disagree are an error:
a wrong guess would train on the wrong samples in silence.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from libhelix.errors import UsageError

_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI", "PMI_RANK", "PMI_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS"),
)


class Place(NamedTuple):
    """A data-parallel rank of `size`, and who said so."""

    rank: int
    size: int
    origin: str


def resolve(
    dp_rank: int | None, dp_size: int | None, replicas: int, environ: Mapping[str, str] = os.environ
) -> Place:
    """This process's place. Raises UsageError for half a place, one out of range, and contradictions."""
    if (dp_rank is None) != (dp_size is None):
        raise UsageError("dp_rank and dp_size belong together; give both or neither")
    if dp_rank is not None and dp_size is not None:
        if not 0 <= dp_rank < dp_size:
            raise UsageError(f"dp_rank {dp_rank} is not in [0, {dp_size}), the ranks of dp_size")
        return Place(dp_rank, dp_size, "argument")
    known = [place for place in (_distributed(), *_launched(environ)) if place is not None]
    if not known:
        return Place(0, 1, "default")
    first = known[0]
    # A launcher inside another (torchrun under Slurm) counts other things; only the innermost is asked.
    for other in known[1:2]:
        if first.origin == "torch.distributed" and other[:2] != first[:2] and other.origin == "torchrun":
            raise UsageError(
                f"torch.distributed says rank {first.rank} of {first.size}, {other.origin} says rank "
                f"{other.rank} of {other.size}; give dp_rank= and dp_size="
            )
    if replicas > 1:
        raise UsageError(
            f"replicas={replicas}: {first.origin} counts {first.size} processes, not data-parallel ranks; "
            "give dp_rank= and dp_size="
        )
    return first


def _distributed() -> Place | None:
    torch = sys.modules.get("torch")  # never imported for this: who uses it has imported it
    if torch is None:
        return None
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized()):
        return None
    return Place(dist.get_rank(), dist.get_world_size(), "torch.distributed")


def _launched(environ: Mapping[str, str]) -> list[Place]:
    found = []
    for origin, rank_name, size_name in _LAUNCHERS:
        rank, size = environ.get(rank_name), environ.get(size_name)
        if rank is None or size is None:
            continue
        try:
            place = Place(int(rank), int(size), origin)
        except ValueError:
            raise UsageError(f"{rank_name}={rank!r}, {size_name}={size!r}: not numbers") from None
        if not 0 <= place.rank < place.size:
            raise UsageError(f"{rank_name}={rank} is not a rank of {size_name}={size}")
        found.append(place)
    return found


def job_name(explicit: str | None, size: int, environ: Mapping[str, str] = os.environ) -> str:
    """The job that this process and its peers share. Raises UsageError where nothing names it."""
    named = explicit or environ.get("HELIX_JOB")
    if named:
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
