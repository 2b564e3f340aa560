"""What can be done to the processes of a node. Kinds and targets are drawn from a seed; when they strike is
not, as processes come and go."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from libhelix._version import __version__
from libhelix.wire import channel, codec
from libhelix.wire import messages as m
from tests.system.processes import of_job

T = TypeVar("T")


class Rank(Protocol):
    """A trainer that can be started again."""

    job: str

    @property
    def pid(self) -> int: ...

    def restart(self) -> None:
        """Kill it, and start it from what it has saved."""


class Node(Protocol):
    """What faults are done to."""

    address: str
    private_address: str
    jobs: list[str]
    standing: list[str]
    """Those that the standing daemon serves."""
    private: str
    """The one that has a daemon of its own."""
    ranks: list[Rank]

    @property
    def daemon_pid(self) -> int: ...

    def moves(self, job: str) -> bool:
        """Whether all ranks of a job were given a batch since something of it was killed; then it is noted
        that something is about to be."""

    def restart_daemon(self) -> None:
        """Kill it, and start it as systemd would."""


def _signalled(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


class Faults:
    """`strike` does one; `done` counts them."""

    def __init__(self, node: Node, seed: int) -> None:
        self._node, self._draw = node, random.Random(seed)
        self.done: Counter[str] = Counter()
        self._kinds: list[tuple[int, str, Callable[[], bool]]] = [
            (5, "worker killed", lambda: self._of_job("w", signal.SIGKILL)),
            (2, "worker stopped", lambda: self._of_job("w", signal.SIGSTOP)),
            (1, "worker host killed", lambda: self._of_job("host", signal.SIGKILL)),
            (2, "trainer killed", self._trainer),
            (2, "trainer stopped", self._trainer_stopped),
            (1, "daemon killed", self._daemon),
            (1, "daemon stopped", lambda: self._paused(self._node.daemon_pid)),
            (1, "private daemon killed", self._private_daemon),
            (1, "private daemon stopped", self._private_daemon_stopped),
            (2, "garbage", self._garbage),
            (1, "storm of connections", self._storm),
        ]

    def strike(self) -> None:
        """One fault, if what was drawn can be done now."""
        _, name, do = self._draw.choices(self._kinds, [kind[0] for kind in self._kinds])[0]
        # All at once: whether something can be done now must not change what is drawn next.
        self._which, self._at, self._pause_s = (
            self._draw.random(),
            self._draw.random(),
            self._draw.uniform(0.02, 0.4),
        )
        self._bytes = [self._draw.randbytes(n) for n in (1, 100, 60_000, 100_000)]
        if do():
            self.done[name] += 1

    def _one(self, of: Sequence[T]) -> T:
        return of[int(self._which * len(of))]

    def _of_job(self, kind: str, number: int) -> bool:
        job = self._one(self._node.jobs)
        pids = sorted(of_job(job, kind))
        if not pids or not self._node.moves(job):
            return False
        pid = pids[int(self._at * len(pids))]
        if number == signal.SIGSTOP:
            return self._paused(pid)
        _signalled(pid, number)
        return True

    def _paused(self, pid: int) -> bool:
        _signalled(pid, signal.SIGSTOP)
        time.sleep(self._pause_s)
        _signalled(pid, signal.SIGCONT)
        return True

    def _trainer(self) -> bool:
        rank = self._one(self._node.ranks)
        if not self._node.moves(rank.job):
            return False  # it takes seconds to start: else it would hardly ever run
        rank.restart()
        return True

    def _trainer_stopped(self) -> bool:
        return self._paused(self._one(self._node.ranks).pid)

    def _daemon(self) -> bool:
        moved = [self._node.moves(job) for job in self._node.standing]
        if not all(moved):
            return False
        self._node.restart_daemon()
        return True

    def _private_daemon(self) -> bool:
        """Whichever of its ranks sees it first starts another."""
        pids = of_job(self._node.private, "helixd")
        if not pids or not self._node.moves(self._node.private):
            return False
        _signalled(self._one(pids), signal.SIGKILL)
        return True

    def _private_daemon_stopped(self) -> bool:
        pids = of_job(self._node.private, "helixd")
        return bool(pids) and self._paused(self._one(pids))

    def _connected(self) -> socket.socket | None:
        sock = channel.new_socket()
        try:
            sock.connect(self._one([self._node.address, self._node.private_address]))
        except OSError:
            sock.close()
            return None
        return sock

    def _garbage(self) -> bool:
        sock = self._connected()
        if sock is None:
            return False
        hello = m.Hello(m.PROTOCOL, __version__, "trainer", "garbage", os.getpid(), (0,))
        said = [codec.encode(hello)] if self._at < 0.5 else []
        said += self._bytes
        with sock, suppress(OSError):
            for data in said:
                channel.send(sock, data)
        return True

    def _storm(self) -> bool:
        socks = [self._connected() for _ in range(50)]
        for sock in socks:
            if sock is not None:
                sock.close()
        return True
