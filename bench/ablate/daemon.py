"""A standing helixd with another policy than users get: `python -m bench.ablate.daemon`, told by side.py."""

from __future__ import annotations

import mmap
import os
import sys
import time
from pathlib import Path

import msgspec

from bench.ablate.requests import Serve, Serving
from bench.child import stop_with_parent, take_stdout
from helixd.core.machine import Machine
from helixd.daemon import listen
from helixd.runtime.loop import Loop
from libhelix._version import __version__


def main() -> None:
    """Until the parent closes stdin, or SIGTERM comes."""
    out = take_stdout()
    serve = msgspec.json.decode(sys.stdin.buffer.readline(), type=Serve)
    listener = listen(Path(serve.socket))
    machine = Machine(
        version=__version__,
        page=mmap.PAGESIZE,
        embedded=False,
        now=time.monotonic(),
        cores=frozenset(serve.cores),
        reserve=0,
        pid=os.getpid(),
        policy=serve.policy,
    )
    out.write(msgspec.json.encode(Serving()) + b"\n")
    stop_with_parent()
    Loop(machine, listener, only_uid=os.geteuid(), log_level="warning").run()


if __name__ == "__main__":
    main()
