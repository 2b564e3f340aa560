"""What the cgroups of this process, and those above them, leave it: cores, CPU time, memory.

Of versions 1 and 2. The limit in force is the tightest on the way up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_OWN = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
_NO_LIMIT_BYTES = 1 << 60
"""Version 1 says "none" by a number of about this size."""


class MemoryLimit(NamedTuple):
    """`used_bytes` without file pages that the kernel gives back by itself."""

    limit_bytes: int
    used_bytes: int
    file: str


class CpuLimit(NamedTuple):
    """CPU time in cores."""

    cores: float
    file: str


def memory_limit(own: Path = _OWN, mount: Path = _MOUNT) -> MemoryLimit | None:
    """The limit that leaves least; None where there is none."""
    found = []
    for folder in _folders("memory", own, mount):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            with contextlib.suppress(OSError, ValueError):  # "max" is no number
                limit = int((folder / limit_name).read_text())
                used = int((folder / used_name).read_text()) - _inactive_bytes(folder)
                if limit < _NO_LIMIT_BYTES:
                    found.append(MemoryLimit(limit, max(0, used), str(folder / limit_name)))
    return min(found, key=lambda m: m.limit_bytes - m.used_bytes, default=None)


def cpu_limit(own: Path = _OWN, mount: Path = _MOUNT) -> CpuLimit | None:
    """The smallest limit of CPU time; None where there is none."""
    found = []
    for folder in _folders("cpu", own, mount):
        with contextlib.suppress(OSError, ValueError):
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            found.append(CpuLimit(quota / period, str(folder / "cpu.max")))
        with contextlib.suppress(OSError, ValueError):
            quota = int((folder / "cpu.cfs_quota_us").read_text())
            period = int((folder / "cpu.cfs_period_us").read_text())
            if quota > 0:
                found.append(CpuLimit(quota / period, str(folder / "cpu.cfs_quota_us")))
    return min(found, default=None)


def cpuset(own: Path = _OWN, mount: Path = _MOUNT) -> frozenset[int] | None:
    """The cores of the cpuset; None where no cgroup says."""
    for folder in _folders("cpuset", own, mount):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            with contextlib.suppress(OSError, ValueError):
                if found := cores_in((folder / name).read_text()):
                    return found
    return None


def cores_in(text: str) -> frozenset[int]:
    """Cores as in "0-3,8". Raises ValueError."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        cores.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(cores)


def _inactive_bytes(folder: Path) -> int:
    for line in (folder / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _folders(controller: str, own: Path, mount: Path) -> Iterator[Path]:
    """The folders of this process's cgroups with that controller, each followed by all above it."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots: tuple[Path, ...] = (mount, mount / "unified")
        elif controller in controllers.split(","):
            roots = (mount / controllers, mount / controller)
        else:
            continue
        for root in dict.fromkeys(roots):
            # Inside a container the path may be the host's; then the mount point itself is our cgroup.
            folder = root / path.lstrip("/")
            yield from (f for f in (folder, *folder.parents) if f == root or root in f.parents)
