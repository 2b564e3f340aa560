"""Memory for rings: where it can be had, and how much is left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from libhelix.ctl.checks import cgroup
from libhelix.ctl.checks.cgroup import MemoryLimit
from libhelix.ctl.checks.finding import Finding, ok, problem, warning
from libhelix.ctl.figures import size
from libhelix.wire.segment import SHM

LITTLE_BYTES = 1 << 30
"""Less is worth a word: rings of 3 batches of 8 clips of 16 frames of 448 x 448 are 230 MB for each rank."""
_NOTHING_BYTES = 128 << 20
"""With less no ring is taken at all: 64 MiB are kept free in any case."""
_FEW_FILES, _NO_FILES = 4096, 256
UNLIMITED = resource.RLIM_INFINITY


@dataclass(frozen=True)
class Memory:
    """`shm_*`: of /dev/shm, None where there is none. `memfd`: why sealed ones cannot be made, or nothing.
    `rings_bytes`: of the jobs of this user that run here."""

    shm_bytes: int | None
    shm_free_bytes: int
    memfd: str
    available_bytes: int
    total_bytes: int
    limit: MemoryLimit | None
    rings_bytes: int
    files: tuple[int, int]


def read(rings_bytes: int) -> Memory:
    """What there is."""
    shm_bytes, free = None, 0
    with contextlib.suppress(OSError):
        stat = os.statvfs(SHM)
        if os.access(SHM, os.W_OK | os.X_OK):
            shm_bytes, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    meminfo = _meminfo()
    return Memory(
        shm_bytes=shm_bytes,
        shm_free_bytes=free,
        memfd=_memfd(),
        available_bytes=meminfo.get("MemAvailable", 0),
        total_bytes=meminfo.get("MemTotal", 0),
        limit=cgroup.memory_limit(),
        rings_bytes=rings_bytes,
        files=resource.getrlimit(resource.RLIMIT_NOFILE),
    )


def _memfd() -> str:
    """Make one as rings are made."""
    try:
        fd = os.memfd_create("helix-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (OSError, AttributeError) as e:
        return getattr(e, "strerror", None) or str(e)
    try:
        os.ftruncate(fd, 1 << 16)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as e:
        return e.strerror or str(e)
    finally:
        os.close(fd)
    return ""


def _meminfo() -> dict[str, int]:
    found = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        with contextlib.suppress(ValueError, IndexError):
            found[name] = int(value.split()[0]) << 10
    return found


def judge(memory: Memory) -> list[Finding]:
    """Where rings can lie, how much may be taken, and descriptors."""
    return [_segments(memory), _room(memory), _descriptors(memory)]


def _segments(memory: Memory) -> Finding:
    name = "shared memory"
    if memory.shm_bytes is None:
        found = f"no {SHM} that can be written to"
    else:
        found = f"{SHM} has {size(memory.shm_bytes)}, {size(memory.shm_free_bytes)} of them free"
    small = memory.shm_free_bytes < LITTLE_BYTES
    if not memory.memfd:
        found += "; sealed memfds can be made"
        return ok(name, f"{found}, and are what larger rings are made of" if small else found)
    found += f"; sealed memfds cannot be made ({memory.memfd}), as a standing daemon needs for other users"
    cure = "allow memfd_create in the container's seccomp profile (docker's own does)"
    if small:
        return problem(name, found, f"{cure}, or enlarge {SHM} (docker --shm-size=8g)")
    return warning(name, found, cure)


def _room(memory: Memory) -> Finding:
    name = "memory"
    room, found = (
        memory.available_bytes,
        f"{size(memory.available_bytes)} of {size(memory.total_bytes)} are left",
    )
    cure = "end what uses it, or set a smaller ring=, batch or max_bytes="
    if memory.limit is not None:
        limit = memory.limit
        left = max(0, limit.limit_bytes - limit.used_bytes)
        found += f"; {limit.file} leaves {size(left)} of {size(limit.limit_bytes)}"
        if left < room:
            room, cure = left, "raise the cgroup's memory limit, or set a smaller ring=, batch or max_bytes="
    if memory.rings_bytes:
        found += f"; rings of your jobs here have {size(memory.rings_bytes)}"
    if room < _NOTHING_BYTES:
        return problem(name, f"{found}: too little for any ring", cure)
    if room < LITTLE_BYTES:
        return warning(name, f"{found}: a rank's ring is 3 of its largest batches by default", cure)
    return ok(name, found)


def _descriptors(memory: Memory) -> Finding:
    soft, hard = memory.files
    found = f"{_count(soft)} descriptors for each process, up to {_count(hard)} for helixd"
    least = min(_unsigned(soft), _unsigned(hard))
    if least < _NO_FILES:
        return problem("descriptors", found, "raise it: ulimit -n 4096, or nofile in limits.conf")
    if _unsigned(hard) < _FEW_FILES:
        return warning(
            "descriptors",
            f"{found}: too few for a node with many ranks and workers",
            "raise the hard limit: nofile in limits.conf, docker --ulimit nofile=65536",
        )
    return ok("descriptors", found)


def _unsigned(limit: int) -> float:
    return float("inf") if limit == UNLIMITED else limit


def _count(limit: int) -> str:
    return "unlimited" if limit == UNLIMITED else f"{limit:,}"
