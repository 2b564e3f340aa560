"""The worker host: a fork server in the trainer's user, container and cgroup.

It imports what all workers need, then forks them in milliseconds. It has one thread, so that forking is
safe; the ring's memory is taken by a forked child, so that it always listens. It ends with helixd, and its
workers with it. It looks every two seconds which cores it may use, because nobody is told when that changes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

# Loaded here so that forked workers have it: av alone takes longer than forking and a whole clip.
import libhelix.media.image
import libhelix.media.video
import libhelix.recipes.clip
import libhelix.recipes.image  # noqa: F401
from helixd.worker import limits, worker
from helixd.worker.process import (
    die_with_parent,
    keep_to,
    lower_priority,
    name_process,
    yield_to_other_sessions,
)
from libhelix._version import __version__
from libhelix.errors import HelixError, OutOfSharedMemory, ProtocolError
from libhelix.weight import weight_of
from libhelix.wire import channel, codec, segment
from libhelix.wire import messages as m

SHM_FULL = 3
"""Exit code of a reserving child: /dev/shm is full, a memfd may do."""
LOOK_EVERY_S = 2.0


@dataclass
class _Worker:
    number: int
    core: int


@dataclass
class _Reserving:
    arena: int
    output: int  # read end of the pipe for the error's text


class Host:
    """Serves one helixd until it is gone."""

    def __init__(self, sock: socket.socket, job: str, weight: float) -> None:
        self._sock = sock
        self._job = job
        self._workers: dict[int, _Worker] = {}  # by pid
        self._reserving: dict[int, _Reserving] = {}  # pid -> what for
        self._cores = limits.spread_out()
        self._limit_millis = limits.cpu_limit_millis()
        self._weight = weight

    def run(self) -> None:
        """Until helixd closes the connection; then every child is killed."""
        wake, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._send(
            m.Hello(
                protocol=m.PROTOCOL,
                version=__version__,
                role="host",
                job=self._job,
                pid=os.getpid(),
                cores=self._cores,
                limit_millis=self._limit_millis,
            )
        )
        look = time.monotonic() + LOOK_EVERY_S
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(wake, select.POLLIN)
        try:
            while True:
                ready = [fd for fd, _ in poll.poll(max(0.0, look - time.monotonic()) * 1000)]
                if wake in ready:
                    os.read(wake, 4096)
                    self._reap()
                if time.monotonic() >= look:
                    self._look()
                    look = time.monotonic() + LOOK_EVERY_S
                if self._sock.fileno() in ready and not self._receive():
                    return
        finally:
            for pid in (*self._workers, *self._reserving):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in (*self._workers, *self._reserving):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)  # PID 1 of a container may not reap

    def _send(self, message: m.Hello | m.FromHost) -> None:
        channel.send(self._sock, codec.encode(message))

    def _receive(self) -> bool:
        received = channel.receive(self._sock)
        if received is None:
            return False
        data, descriptors = received
        match codec.to_host(data):
            case m.Welcome():
                pass
            case m.Refused(code, text):
                if code != "worker-host":  # that one says: another came first, or the job is over
                    print(f"helix worker host: {text}", file=sys.stderr)
                return False
            case m.Reserve(arena, nbytes, cores):
                self._reserve(arena, nbytes, cores, descriptors.pop())
            case m.Fork(number, core):
                self._fork(number, core, descriptors.pop())
            case m.Kill(number):
                for pid, its in self._workers.items():
                    if its.number == number:
                        os.kill(pid, signal.SIGKILL)
        channel.close_all(descriptors)
        return True

    def _look(self) -> None:
        """Tell what changed; pin workers again that the kernel moved while their core was away."""
        cores, limit_millis = limits.spread_out(), limits.cpu_limit_millis()
        if (cores, limit_millis) != (self._cores, self._limit_millis):
            self._cores, self._limit_millis = cores, limit_millis
            self._send(m.Cores(cores, limit_millis))
        for pid, its in self._workers.items():
            if its.core in cores and _affinity(pid) != {its.core}:
                keep_to({its.core}, pid)

    # ---- children ----------------------------------------------------------------------------------

    def _fork(self, number: int, core: int, fd: int) -> None:
        pid = os.fork()
        if pid:
            os.close(fd)
            self._workers[pid] = _Worker(number, core)
            return
        self._become_child()
        code = 1
        try:
            name_process(f"helix-w{core}")
            lower_priority(core, self._weight)
            with socket.socket(fileno=fd) as sock:
                worker.Worker(sock).run()
            code = 0
        except BaseException:  # noqa: BLE001  # the last frame of a process: whatever it was is reported
            traceback.print_exc()
        finally:
            os._exit(code)

    def _reserve(self, arena: int, nbytes: int, cores: Sequence[int], fd: int) -> None:
        output, report = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid:
            os.close(fd)
            os.close(report)
            self._reserving[pid] = _Reserving(arena, output)
            return
        self._become_child()
        keep_to(cores)  # near its trainer lies the memory that is touched there first
        code = 1
        try:
            segment.reserve(fd, nbytes)
            code = 0
        except OutOfSharedMemory as e:
            os.write(report, codec.short(str(e)).encode())
            code = SHM_FULL if segment.is_shm(fd) and not e.limited else 1
        except BaseException as e:  # noqa: BLE001  # as above
            os.write(report, codec.short(repr(e)).encode())
        finally:
            os._exit(code)

    def _become_child(self) -> None:
        die_with_parent()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._sock.close()
        for reserving in self._reserving.values():
            os.close(reserving.output)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if pid in self._workers:
                self._send(m.Exited(self._workers.pop(pid).number, code))
            elif pid in self._reserving:
                self._reserved(self._reserving.pop(pid), code)

    def _reserved(self, reserving: _Reserving, code: int) -> None:
        with open(reserving.output, "rb") as file:
            text = file.read().decode("utf-8", "replace")
        if code == 0:
            self._send(m.Reserved(reserving.arena))
            return
        if code < 0:
            text = (
                f"the process that took the ring's memory was killed by signal {-code}: this machine or its "
                "memory limit is too small; set a smaller ring=, batch or max_bytes="
            )
        self._send(m.ReserveFailed(reserving.arena, code == SHM_FULL, text))


def _affinity(pid: int) -> set[int]:
    try:
        return os.sched_getaffinity(pid)
    except ProcessLookupError:
        return set()


def main(address: str, job: str) -> int:
    """Connect to the helixd at `address` and serve it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name_process("helix-host")
    weight = weight_of()
    yield_to_other_sessions(weight)
    sock = channel.new_socket()
    try:
        sock.connect(address)
    except OSError:
        return 0  # the daemon is gone, with the job
    gc.collect()
    gc.freeze()  # what all workers share stays shared
    try:
        Host(sock, job, weight).run()
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except (HelixError, ProtocolError) as e:
        print(f"helix worker host: {e}", file=sys.stderr)
        return 1
    return 0
