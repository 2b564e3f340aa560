"""A standing helixd for a run: another policy than users get, and as many cores as are emulated.

`python -m bench.node.daemon`, told by side.py.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import socket
import sys
import time
from pathlib import Path

import msgspec

from bench.child import stop_with_parent, take_stdout
from helixd.core import actions as a
from helixd.core import batch, dispatch, pool, readiness
from helixd.core.machine import Machine
from helixd.core.policy import Policy
from helixd.daemon import listen
from helixd.runtime.loop import Loop
from libhelix._version import __version__
from libhelix.wire import messages as m


class Serve(msgspec.Struct, frozen=True, kw_only=True):
    """Be a standing helixd at a path. `emulated` cores, 0 for none, stand on the real `cores`; then decoding
    takes `dilation` times what it would."""

    socket: str
    policy: Policy
    cores: tuple[int, ...]
    emulated: int
    dilation: float = 1.0


class Serving(msgspec.Struct, frozen=True):
    """The socket is there. `pid`: of helixd."""

    pid: int


def stretch(dilation: float) -> None:
    """Stretch what helixd knows of the times that decoding takes, such as to open a file, as that is."""
    for name in ("MIN_PART_US", "CHEAP_CUT_US", "EVEN_US", "GROUP_US", "OPENING_US"):
        setattr(batch, name, round(getattr(batch, name) * dilation))
    dispatch.SOON_US = round(dispatch.SOON_US * dilation)
    readiness.MIN_MISS_S *= dilation
    pool.TASK_LIMIT_S *= dilation
    pool.PIECE_LIMIT_S *= dilation


class EmulatedLoop(Loop):
    """A loop on a machine of more cores: trainers and hosts say that they may run on all of these, and
    workers are pinned to the real ones in turn."""

    def __init__(self, machine: Machine, listener: socket.socket, told: Serve) -> None:
        super().__init__(machine, listener, only_uid=os.geteuid(), log_level="warning")
        self._all = tuple(range(told.emulated))
        self._real = told.cores

    def _handle(self, event: a.Event, now: float) -> list[a.Action]:
        match event:
            case a.Opened(hello=hello):
                hello = msgspec.structs.replace(hello, cores=self._all, limit_millis=None)
                event = dataclasses.replace(event, hello=hello)
            case a.Received(message=m.Cores()):
                event = dataclasses.replace(event, message=m.Cores(self._all))
        return super()._handle(event, now)

    def _send(self, action: a.Send) -> None:
        if isinstance(action.message, m.Fork):
            core = self._real[action.message.core % len(self._real)]
            action = dataclasses.replace(action, message=msgspec.structs.replace(action.message, core=core))
        super()._send(action)


def main() -> None:
    """Until the parent closes stdin, or SIGTERM comes."""
    out = take_stdout()
    told = msgspec.json.decode(sys.stdin.buffer.readline(), type=Serve)
    listener = listen(Path(told.socket))
    machine = Machine(
        version=__version__,
        page=mmap.PAGESIZE,
        embedded=False,
        now=time.monotonic(),
        cores=frozenset(range(told.emulated) if told.emulated else told.cores),
        reserve=0,
        pid=os.getpid(),
        policy=told.policy,
    )
    out.write(msgspec.json.encode(Serving(os.getpid())) + b"\n")
    stop_with_parent()
    if told.emulated:
        stretch(told.dilation)
        EmulatedLoop(machine, listener, told).run()
    else:
        Loop(machine, listener, only_uid=os.geteuid(), log_level="warning").run()


if __name__ == "__main__":
    main()
