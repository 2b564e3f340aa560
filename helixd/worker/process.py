"""What a worker process asks of the kernel."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence

from libhelix.weight import nicer_by

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


def yield_to_other_sessions(weight: float = 1.0) -> None:
    """Let this session give way to trainers, where the kernel shares cores among sessions (autogroup).

    There a worker's own nice value counts only inside the host's session. 5 is a third of a trainer's share:
    little enough that a trainer that wakes runs at once; a busy session elsewhere leaves workers a quarter.
    By its weight a job is given more.
    """
    try:
        with open("/proc/self/autogroup", "w") as file:
            file.write(str(5 - nicer_by(weight)))
    except OSError:
        return  # a kernel without such groups: the workers' own nice values count


def keep_to(cores: Iterable[int], pid: int = 0) -> None:
    """Have a process, by default this one, run on these cores only; nothing changes where it may on none."""
    with contextlib.suppress(OSError):  # they left the cpuset, or the process has ended
        os.sched_setaffinity(pid, cores)


def lower_priority(core: int, weight: float = 1.0) -> None:
    """Pin to a core, and give way to trainers and helixd there (nice 19; less by its job's weight)."""
    keep_to({core})
    # Not the trainer's policy: a worker that inherits a real-time one would never give way to anybody.
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(19 - nicer_by(weight))


class Clocks:
    """What a stretch of work takes of the calling thread."""

    def __init__(self) -> None:
        self._began, self._ran, self._waited = time.monotonic(), time.thread_time(), _runqueue_s()
        self._lap = self._ran

    def lap_us(self) -> int:
        """CPU time since the last lap."""
        last, self._lap = self._lap, time.thread_time()
        return max(0, int((self._lap - last) * 1e6))

    def wall_us(self) -> int:
        """Time since the beginning."""
        return int((time.monotonic() - self._began) * 1e6)

    def stall_us(self) -> int:
        """Time since the beginning in which the thread neither ran nor waited for its core: for storage, or
        for threads of its own."""
        wall_s = time.monotonic() - self._began
        busy_s = time.thread_time() - self._ran + _runqueue_s() - self._waited
        return max(0, int((wall_s - busy_s) * 1e6))


def _runqueue_s() -> float:
    """For how long this thread was ready to run and others ran; 0 where the kernel does not count it."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read(64).split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return 0.0


@contextlib.contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Run on these cores meanwhile, where there are any."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # one has left the cpuset: fewer do
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)
