"""Nodes on one machine: network namespaces with links to a router, which can be made narrow, long and lossy,
or taken down.

Abstract sockets belong to a network namespace, so that each node gets a private helixd of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bench.peers import rough

_LIMIT_S = 20.0
NETWORK = "10.231"


def why_not() -> str | None:
    """Why there can be no nodes here; None where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"there is no {' and no '.join(missing)}; apt install iproute2"
    probe = f"hx{os.getpid()}p"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode:
        return "network namespaces are not allowed here"
    subprocess.run(["ip", "netns", "del", probe], check=False)
    return None


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, timeout=_LIMIT_S)


class Net:
    """`count` nodes, each with a network of its own behind the router."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._mark = f"hx{os.getpid()}"

    def name(self, i: int) -> str:
        """The namespace of a node."""
        return f"{self._mark}-{i}"

    @staticmethod
    def address(i: int) -> str:
        """Where others find a node."""
        return f"{NETWORK}.{i}.2"

    def up(self) -> None:
        """Make router, namespaces and links. The router has a namespace too: nothing of the machine's own
        network is touched."""
        hub = self.name(self.count)
        _ip("netns", "add", hub)
        _ip("netns", "exec", hub, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for i in range(self.count):
            node, end = self.name(i), f"{self._mark}v{i}"[-15:]
            _ip("netns", "add", node)
            _ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", node)
            _ip("link", "set", end, "netns", hub)
            _ip("-n", hub, "link", "set", end, "name", f"v{i}", "up")
            _ip("-n", hub, "addr", "add", f"{NETWORK}.{i}.1/24", "dev", f"v{i}")
            _ip("-n", node, "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
            _ip("-n", node, "link", "set", "eth0", "up")
            _ip("-n", node, "route", "add", "default", "via", f"{NETWORK}.{i}.1")
            _ip("-n", node, "link", "set", "lo", "up")

    def down(self) -> None:
        """Take it all away."""
        for i in range(self.count + 1):
            subprocess.run(["ip", "netns", "del", self.name(i)], capture_output=True, check=False)

    def limit(self, i: int, mbit_s: float | None) -> None:
        """Let no more through a node's link, either way; None: whatever it takes."""
        if mbit_s is None:
            for where, device in self._ends(i):
                qdisc = ["tc", "-n", where, "qdisc", "del", "dev", device, "root"]
                subprocess.run(qdisc, check=False, capture_output=True, timeout=_LIMIT_S)  # there may be none
            return
        how = ["rate", f"{mbit_s}mbit", "burst", "256k", "latency", "100ms"]
        for where, device in self._ends(i):
            qdisc = ["tc", "-n", where, "qdisc", "replace", "dev", device, "root", "tbf", *how]
            subprocess.run(qdisc, check=True, capture_output=True, timeout=_LIMIT_S)

    def _ends(self, i: int) -> tuple[tuple[str, str], tuple[str, str]]:
        return (self.name(i), "eth0"), (self.name(self.count), f"v{i}")

    def cut(self, i: int, *, cut: bool = True) -> None:
        """Take a node's link down, or up again."""
        _ip("-n", self.name(self.count), "link", "set", f"v{i}", "down" if cut else "up")

    @contextmanager
    def rough(self, i: int, *, delay_s: float, loss: float) -> Iterator[None]:
        """Have every packet of a node take so much longer, either way, and lose this share of them."""
        node, hub = self.name(i), self.name(self.count)
        ends = rough.tun(node, "rough"), rough.tun(hub, f"rough{i}")
        try:
            with rough.carrying(ends, delay_s, loss):
                _ip("-n", node, "link", "set", "rough", "up")
                _ip("-n", hub, "link", "set", f"rough{i}", "up")
                _ip("-n", hub, "route", "add", f"{self.address(i)}/32", "dev", f"rough{i}")
                _ip("-n", node, "route", "replace", "default", "dev", "rough", "src", self.address(i))
                yield
        finally:  # the other way went with its device
            _ip("-n", node, "route", "replace", "default", "via", f"{NETWORK}.{i}.1")

    def start(
        self, i: int, command: Sequence[str], env: Mapping[str, str] | None = None, **how: object
    ) -> subprocess.Popen[str]:
        """Start a process on a node."""
        whole = ["ip", "netns", "exec", self.name(i), *command]
        return subprocess.Popen(whole, env={**os.environ, **(env or {})}, text=True, **how)  # type: ignore[call-overload,no-any-return]


@contextmanager
def net(count: int) -> Iterator[Net]:
    """Nodes, and none of them afterwards."""
    made = Net(count)
    try:
        made.up()
        yield made
    finally:
        made.down()
