"""The cores that a job started here would decode on."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from libhelix.cores import as_ranges
from libhelix.ctl.checks import cgroup
from libhelix.ctl.checks.cgroup import CpuLimit
from libhelix.ctl.checks.finding import Finding, ok, warning

_ONLINE = Path("/sys/devices/system/cpu/online")
_CORES_PER_RANK_TO_RESERVE = 4
"""As helixd has it: with so many cores per rank, one of them stays free by default."""


@dataclass(frozen=True)
class Cores:
    """`affinity`: of this process; `ranks`: of this node, as far as the launcher says; `allowed`, `reserve`:
    HELIX_CORES and HELIX_RESERVE."""

    online: frozenset[int]
    affinity: frozenset[int]
    cpuset: frozenset[int] | None = None
    limit: CpuLimit | None = None
    ranks: int = 1
    allowed: frozenset[int] | None = None
    reserve: int | None = None


def read(environ: Mapping[str, str] = os.environ) -> Cores:
    """What there is. A variable that is no list of cores, or no number, is told of elsewhere."""
    affinity = frozenset(os.sched_getaffinity(0))
    try:
        online = cgroup.cores_in(_ONLINE.read_text())
    except (OSError, ValueError):
        online = affinity
    try:
        allowed = cgroup.cores_in(environ.get("HELIX_CORES", "")) or None
    except ValueError:
        allowed = None
    reserve = environ.get("HELIX_RESERVE", "")
    return Cores(
        online=online,
        affinity=affinity,
        cpuset=cgroup.cpuset(),
        limit=cgroup.cpu_limit(),
        ranks=ranks_of_this_node(environ),
        allowed=allowed,
        reserve=int(reserve) if reserve.isdigit() else None,
    )


def ranks_of_this_node(environ: Mapping[str, str]) -> int:
    """As torchrun or Open MPI says; else one."""
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        if environ.get(name, "").isdigit():
            return max(1, int(environ[name]))
    return 1


def judge(cores: Cores) -> list[Finding]:
    """Where this process may run, what its CPU limit pays for, and who decodes."""
    return [_affinity(cores), _limit(cores), _decoding(cores)]


def _affinity(cores: Cores) -> Finding:
    may = cores.affinity
    found = f"this process may run on {_numbered(may)} of {len(cores.online)} online"
    wider = cores.online if cores.cpuset is None else cores.online & cores.cpuset
    if cores.cpuset is not None and cores.cpuset != cores.online:
        found += f"; the cgroup's cpuset is {as_ranges(cores.cpuset)}"
    if len(may) == 1 and len(wider) > 1:
        return warning(
            "cores",
            f"{found}: it is bound to one, on which it trains and decodes, beside {len(wider) - 1} others",
            "bind ranks to more cores: srun --cpus-per-task=N or --cpu-bind=none, mpirun --bind-to none, no "
            "taskset",
        )
    if len(may) == 1:
        return warning("cores", f"{found}: decoding takes turns with training", "give this node more cores")
    return ok("cores", found)


def _limit(cores: Cores) -> Finding:
    if cores.limit is None:
        return ok("CPU limit", "no cgroup limits CPU time")
    limit, n = cores.limit, len(cores.affinity)
    found = f"{limit.cores:g} cores' worth of CPU time ({limit.file}), {n} may be used"
    if limit.cores < min(n, 2 * cores.ranks):
        return warning(
            "CPU limit",
            f"{found}: {cores.ranks} rank{'s' if cores.ranks > 1 else ''} here and decoding share that, and "
            "are stopped when it is used up",
            "raise the container's CPU limit (docker --cpus, Kubernetes limits.cpu)",
        )
    return ok("CPU limit", found)


def _decoding(cores: Cores) -> Finding:
    decode, reserved, outside = share(cores)
    found = (
        f"about {decode} would decode, {reserved} be kept free for launching kernels, with {cores.ranks} "
        f"rank{'s' if cores.ranks > 1 else ''} on these cores"
    )
    if outside:
        assert cores.allowed is not None
        return warning(
            "decoding",
            f"HELIX_CORES={as_ranges(cores.allowed)} has none of the cores {as_ranges(cores.affinity)} of "
            f"this process, and would not be heeded: {found}",
            "name cores on which the ranks may run, or unset HELIX_CORES",
        )
    return ok("decoding", found)


def share(cores: Cores) -> tuple[int, int, bool]:
    """How many cores decode and how many are kept free, were all ranks of this node bound like this process;
    and whether HELIX_CORES has none of them. As helixd does it, which never imports what trainers import."""
    here = cores.affinity
    decoding = here if cores.allowed is None else here & cores.allowed
    outside = not decoding
    decoding = decoding or here
    paid = len(here)
    if cores.limit is not None:
        paid = min(paid, max(1, math.ceil(cores.limit.cores)))
    each = cores.reserve
    if each is None:
        each = int(paid >= _CORES_PER_RANK_TO_RESERVE * cores.ranks)
    reserved = min(each * cores.ranks, paid - 1)
    beside = min(reserved, len(here - decoding))  # cores that do not decode anyway are kept free first
    reserved = beside + min(reserved - beside, len(decoding) - 1)
    return min(len(decoding) - (reserved - beside), paid - reserved), reserved, outside


def _numbered(cores: frozenset[int]) -> str:
    return f"{len(cores)} core{'s' if len(cores) > 1 else ''} ({as_ranges(cores)})"
