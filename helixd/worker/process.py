"""What a worker process asks of the kernel."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Be killed when the parent dies. For a child forked by a process of one thread."""
    parent = os.getppid()
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent or parent == 1:  # it died before this took effect
        os._exit(1)


def name_process(name: str) -> None:
    """The name that ps and top show; the kernel keeps 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def yield_to_other_sessions() -> None:
    """Let this session give way to trainers, where the kernel shares cores among sessions (autogroup).

    There a worker's own nice value counts only inside the host's session. 5 is a third of a trainer's share:
    little enough that a trainer that wakes runs at once; a busy session elsewhere leaves workers a quarter.
    """
    try:
        with open("/proc/self/autogroup", "w") as file:
            file.write("5")
    except OSError:
        return  # a kernel without such groups: the workers' own nice values count


def keep_to(cores: Iterable[int], pid: int = 0) -> None:
    """Have a process, by default this one, run on these cores only; nothing changes where it may on none."""
    with contextlib.suppress(OSError):  # they left the cpuset, or the process has ended
        os.sched_setaffinity(pid, cores)


def lower_priority(core: int) -> None:
    """Pin to a core, and give way to trainers and helixd there (nice 19)."""
    keep_to({core})
    # Not the trainer's policy: a worker that inherits a real-time one would never give way to anybody.
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(19)
