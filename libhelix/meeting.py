"""How the daemons of a job's nodes find each other: trainers tell of theirs in the job's own rendezvous.

Every trainer has its daemon listen, and enters it in the store of torch.distributed, or in the agent's where
torchrun started it. Public keys and addresses are entered; secret ones stay on the node, with its trainers,
so that a daemon that is started anew has those that the others know. With HELIX_PEERS=off, without such a
store, or where a daemon cannot listen, every node plans for itself: the same batches, all described on
every node.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from libhelix.client import Client
from libhelix.errors import DaemonUnreachable, UsageError
from libhelix.wire import messages as m

_POLL_S = 0.02
_ANY_PORT = 9
_ELSEWHERE = "192.0.2.1"
"""An address that nobody has: the way to it is that to everywhere."""
_count: dict[str, int] = {}
"""Meetings of this process by the loader's name: all ranks make their loaders in the same order."""
_LOCAL_SIZES = (("WORLD_SIZE", "LOCAL_WORLD_SIZE"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"))


def meeting_of(
    name: str,
    rank: int,
    processes: int,
    timeout_s: float,
    *,
    needed: bool,
    warn: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
) -> Meeting | None:
    """The meeting of a loader that this many processes have; None where they are on one node.

    `needed`: it is an error where it cannot be, which `warn` is told otherwise.
    """
    if processes == 1 or not several_nodes(environ):
        return None
    if environ.get("HELIX_PEERS") == "off":
        if needed:
            raise UsageError('placement="dynamic" and HELIX_PEERS=off exclude each other; leave one out')
        return None
    return Meeting(name, rank, processes, timeout_s, needed, warn, environ)


def several_nodes(environ: Mapping[str, str]) -> bool:
    """Whether the launcher has put processes on more than one node."""
    for all_name, here_name in _LOCAL_SIZES:
        everywhere, here = environ.get(all_name, ""), environ.get(here_name, "")
        if everywhere.isdigit() and here.isdigit():
            return int(everywhere) > int(here)
    return environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_NNODES", "1")) != "1"


class Meeting:
    """Of the daemons of one loader's ranks."""

    def __init__(
        self,
        name: str,
        rank: int,
        processes: int,
        timeout_s: float,
        needed: bool,
        warn: Callable[[str], None],
        environ: Mapping[str, str],
    ) -> None:
        self._name = name
        self._rank = rank
        self._processes = processes
        self._timeout_s = timeout_s
        self._needed = needed
        self._warn = warn
        self._environ = environ
        self._number = _count[name] = _count.get(name, 0) + 1
        self._met: m.Met | None = None
        self._host = ""
        self._peers: list[m.Peers] | None = None
        self._client: Client | None = None

    def introduce(self, client: Client, deadline: float) -> None:
        """Tell a daemon of the others, once they are known, which waits for all ranks.

        Raises DaemonUnreachable, and UsageError where placement by load needs what cannot be.
        """
        if self._client is client or self._peers == []:
            return
        store = self._store() if self._peers is None else None
        if self._peers is None and store is None:
            self._alone("torch.distributed is not initialised, and torchrun has not started this")
            return
        self._host = self._host or own_host(self._environ)
        keys, port = (self._met.keys, self._met.port) if self._met is not None else (None, 0)
        left_s = max(0.0, deadline - time.monotonic())
        met = client.meet(m.Meet(self._host, keys, port), left_s)
        if self._peers is None:
            self._peers = self._enter(store, met, deadline)
        elif isinstance(met, m.Unmet):
            raise DaemonUnreachable(
                f"the daemon that was started anew is not heard by other nodes: {met.text}"
            )
        if isinstance(met, m.Met):
            self._met = met
        for peers in self._peers:
            client.send(peers)
        self._client = client

    def _alone(self, why: str) -> list[m.Peers]:
        """Every node plans for itself."""
        if self._needed:
            raise UsageError(
                f'placement="dynamic" needs daemons that know each other: {why}; or use placement="static"'
            )
        self._warn(f"nodes plan each for themselves: {why}")
        self._peers = []
        return self._peers

    # ---- the store ---------------------------------------------------------------------------------

    def _store(self) -> Any:
        torch = sys.modules.get("torch")
        dist = torch.distributed if torch is not None else None
        if dist is None or not dist.is_available():
            return None
        if dist.is_initialized():
            return dist.distributed_c10d._get_default_store()
        env = self._environ
        if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            return None
        store = dist.TCPStore(env["MASTER_ADDR"], int(env["MASTER_PORT"]), is_master=False)
        return dist.PrefixStore(f"run-{env.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    def _enter(self, store: Any, met: m.Met | m.Unmet, deadline: float) -> list[m.Peers]:
        here = f"helix/{self._name}/{self._number}"
        if isinstance(met, m.Unmet):
            store.set(f"{here}/off", f"{socket.gethostname()}: {met.text}")
            store.add(f"{here}/nodes", 2)  # in any case more than one
            self._wait_for_all(store, here, deadline)
            return self._alone(met.text)
        mine = f"{met.keys.public} {_address(self._host, met.port)}"
        ours = f"{here}/of/{met.keys.public}"
        number = store.add(ours, 1)
        store.set(f"{ours}/{number}", str(self._rank))
        if number == 1:  # the first of this node
            store.set(f"{here}/node/{store.add(f'{here}/nodes', 1) - 1}", mine)
        if self._rank == 0:
            store.set(f"{here}/leader", mine)
        nodes = self._wait_for_all(store, here, deadline)
        if store.check([f"{here}/off"]):
            return self._alone(store.get(f"{here}/off").decode())
        if nodes == 1:
            return []
        keys = [f"{ours}/{i + 1}" for i in range(store.add(ours, 0))]
        ranks = tuple(sorted({int(text) for text in store.multi_get(keys)}))
        leader = _peer(store.get(f"{here}/leader"))
        if leader.key != met.keys.public:
            return [m.Peers(self._name, leader, ranks)]
        found = [_peer(text) for text in store.multi_get([f"{here}/node/{i}" for i in range(nodes)])]
        size = m.MAX_PEERS_PER_MESSAGE
        parts = [tuple(found[a : a + size]) for a in range(0, nodes, size)]
        return [m.Peers(self._name, leader, ranks, part, last=part is parts[-1]) for part in parts]

    def _wait_for_all(self, store: Any, here: str, deadline: float) -> int:
        """Until all ranks have entered. How many nodes they are on."""
        if store.add(f"{here}/there", 1) == self._processes:
            store.set(f"{here}/all", str(store.add(f"{here}/nodes", 0)))
        while not store.check([f"{here}/all"]):
            if time.monotonic() >= deadline:
                there = store.add(f"{here}/there", 0)
                raise DaemonUnreachable(
                    f"loader {self._name!r}: {there} of {self._processes} ranks have come to meet within "
                    f"{self._timeout_s:.0f} s; every rank has to make this loader and iterate over it"
                )
            time.sleep(_POLL_S)
        return int(store.get(f"{here}/all"))


def own_host(environ: Mapping[str, str]) -> str:
    """The address of this node towards the job's first. Raises UsageError where there is no way to that."""
    said = environ.get("HELIX_PEER_HOST")
    if said:
        return said
    towards = environ.get("MASTER_ADDR") or environ.get("SLURM_LAUNCH_NODE_IPADDR")
    if not towards:
        return socket.gethostname()
    try:
        host = _host_towards(towards)
        if _is_loopback(host) and towards != "localhost" and not _is_loopback(towards):
            # The first node itself, whose name /etc/hosts has at 127.0.1.1: others reach it elsewhere.
            host = _host_towards(_ELSEWHERE)
    except OSError as e:
        raise UsageError(
            f"no way to {towards}, the job's first node ({e}); set HELIX_PEER_HOST to this node's address"
        ) from e
    return host


def _host_towards(where: str) -> str:
    """The address of this node's interface towards another; nothing is sent."""
    family, kind, protocol, _, address = socket.getaddrinfo(where, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        host: str = probe.getsockname()[0]
        return host


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host == "::1"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _peer(text: bytes) -> m.Peer:
    key, _, address = text.decode().partition(" ")
    return m.Peer(key, address)
