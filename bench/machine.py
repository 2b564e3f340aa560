"""What the figures were measured on: a figure without its machine says nothing."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import msgspec

from bench.processes import cores_busy

PACKAGES = ("av", "numpy", "torch", "pyarrow", "msgspec", "pyzmq")


class Machine(msgspec.Struct, frozen=True):
    """`cores` are those this process may use."""

    cpu: str
    cores: int
    cores_online: int
    memory_bytes: int
    kernel: str
    architecture: str


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What a measurement depends on. `cores_busy` is how many cores others kept busy just before it."""

    machine: Machine
    cores_busy: float
    versions: dict[str, str]
    git_revision: str | None


def circumstances() -> Circumstances:
    """Those of now. Takes a second."""
    return Circumstances(
        machine=this_machine(),
        cores_busy=cores_busy(),
        versions=versions(),
        git_revision=git_revision(Path(__file__).parent),
    )


def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        cores_online=os.cpu_count() or 0,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        architecture=platform.machine(),
    )


def _cpu_model() -> str:
    """The name in /proc/cpuinfo; other architectures than x86 have none there."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def versions() -> dict[str, str]:
    """Versions of Python, of ourselves and of what decodes and trains."""
    from libhelix._version import __version__

    found = {"python": platform.python_version(), "datahelix": __version__}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def git_revision(folder: Path) -> str | None:
    """The commit that `folder` is at, with a + where tracked files differ from it; None outside of git."""
    head = _git(folder, "rev-parse", "HEAD")
    if head is None:
        return None
    return head + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None
