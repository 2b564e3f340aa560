"""A link on which every packet takes longer and some are lost: packets go through this process, over two TUN
devices, instead of over the link. For kernels that have no netem, too."""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

_TUN = Path("/dev/net/tun")
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_MOST_BYTES = 1 << 16
_SEED = 0


def why_not() -> str | None:
    """Why no link can be made so; None where it can."""
    return None if _TUN.exists() else f"there is no {_TUN}"


def tun(namespace: str, device: str) -> int:
    """A new device in a network namespace; packets are read from and written to what is returned."""

    def opened() -> int:  # in a thread of its own: only that one enters the namespace
        with open(f"/run/netns/{namespace}", "rb") as at:
            if ctypes.CDLL(None, use_errno=True).setns(at.fileno(), _CLONE_NEWNET):
                code = ctypes.get_errno()
                raise OSError(code, f"cannot enter the network namespace {namespace}: {os.strerror(code)}")
        fd = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
        return fd

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(opened).result()


@contextmanager
def carrying(ends: tuple[int, int], delay_s: float, loss: float) -> Iterator[None]:
    """Carry packets between two devices, each way, until the end; then both are gone."""
    with ExitStack() as closed:
        for end in ends:
            closed.callback(os.close, end)
        done, end = os.pipe()
        closed.callback(os.close, done)
        thread = threading.Thread(target=_carry, args=(ends, delay_s, loss, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            os.close(end)
            thread.join()


def _carry(ends: tuple[int, int], delay_s: float, loss: float, done: int) -> None:
    rng = random.Random(_SEED)
    carried: deque[tuple[float, int, bytes]] = deque()
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    while True:
        waits = max(0.0, carried[0][0] - time.monotonic()) if carried else None
        ready, _, _ = select.select([*ends, done], [], [], waits)
        if done in ready:
            return
        for end in ready:
            packet = os.read(end, _MOST_BYTES)
            if rng.random() >= loss:
                carried.append((time.monotonic() + delay_s, other[end], packet))
        while carried and carried[0][0] <= time.monotonic():
            _, to, packet = carried.popleft()
            os.write(to, packet)
