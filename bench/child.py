"""The other half of side.py and demo/launch.py: what a process that a benchmark starts does first."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn, TypeVar

import msgspec

CLEAN_UP_S = 3.0
"""Time for a child to end by itself once its parent is gone."""

Request = TypeVar("Request")


def take_stdout() -> BinaryIO:
    """Our own copy of stdout; file descriptor 1 becomes stderr, so that no library can write between."""
    ours = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return ours


def end_with_parent() -> None:
    """Exit when stdin closes: the parent holds its other end and may be killed at any time."""

    def watch() -> None:
        while os.read(0, 1 << 16):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def stop_with_parent() -> None:
    """The same for a process that cleans up on SIGTERM."""

    def watch() -> None:
        while os.read(0, 1 << 16):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def leave_group() -> NoReturn:
    """Leave torch's process group and end at once, with exit code 0.

    The threads of a gloo group outlive `destroy_process_group` (torch 2.13), and one that drops its last
    tensor while Python is being torn down aborts the process.
    """
    import torch.distributed as dist

    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def serve(request: type[Request], handle: Callable[[Request], Any]) -> None:
    """Answer every line on stdin with a line on stdout: `handle(request)` as JSON. Returns when stdin closes;
    a request that takes too long then ends the process."""
    out = take_stdout()
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), name="parent-watch", daemon=True).start()
    decoder = msgspec.json.Decoder(request)
    while line := requests.get():
        out.write(msgspec.json.encode(handle(decoder.decode(line))) + b"\n")


def _read(requests: queue.SimpleQueue[bytes]) -> None:
    rest = b""
    while chunk := os.read(0, 1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            requests.put(line)
    requests.put(b"")
    time.sleep(CLEAN_UP_S)
    os._exit(1)
