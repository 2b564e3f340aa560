"""How much of the machine this process's cgroup leaves it: the cores of its cpuset, and a limit of CPU time.

Both may change while it runs; nobody is told, so one has to look.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_OWN_CGROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
_MOST_CORES = 4096
"""More than a message may name; the kernel cuts a mask to what there is."""


def spread_out() -> tuple[int, ...]:
    """Let this process run wherever its cpuset lets it, whatever affinity it inherited; those cores."""
    with contextlib.suppress(OSError):  # forbidden here: what we have is all that we know
        os.sched_setaffinity(0, range(_MOST_CORES))
    return tuple(sorted(os.sched_getaffinity(0)))


def cpu_limit_millis(own: Path = _OWN_CGROUPS, mount: Path = _MOUNT) -> int | None:
    """The smallest CPU limit of this process's cgroups, up to the root; thousandths of a core, or None."""
    return min((limit for folder in _cpu_cgroups(own, mount) for limit in _limits(folder)), default=None)


def _limits(folder: Path) -> Iterator[int]:
    for read in (_limit_v2, _limit_v1):
        try:
            quota, period = read(folder)
        except (OSError, ValueError):  # no limit, or a cgroup of the other version
            continue
        if quota > 0 and period > 0:
            yield max(1, quota * 1000 // period)


def _limit_v2(folder: Path) -> tuple[int, int]:
    quota, period = (folder / "cpu.max").read_text().split()
    return int(quota), int(period)  # "max" is no number


def _limit_v1(folder: Path) -> tuple[int, int]:
    quota = int((folder / "cpu.cfs_quota_us").read_text())  # -1: none
    return quota, int((folder / "cpu.cfs_period_us").read_text())


def _cpu_cgroups(own: Path, mount: Path) -> Iterator[Path]:
    """The folders of this process's cgroups that may limit its CPU time, with all above them."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots: tuple[Path, ...] = (mount, mount / "unified")
        elif "cpu" in controllers.split(","):
            roots = (mount / controllers, mount / "cpu")
        else:
            continue
        for root in roots:
            # Inside a container the path may be the host's; then the mount point itself is our cgroup.
            folder = root / path.lstrip("/")
            yield from (f for f in (folder, *folder.parents) if f == root or root in f.parents)
