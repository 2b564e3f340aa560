"""How the daemons of a job's nodes find each other: trainers tell of theirs in the job's own rendezvous.

Every trainer has its daemon listen, and enters it in the store of torch.distributed, or in the agent's where
torchrun started it. Public keys and addresses are entered; secret ones stay on the node, with its trainers,
so that a daemon that is started anew has those that the others know. With HELIX_PEERS=off, without such a
store, or where a daemon cannot listen, every node plans for itself: the same batches, all described on
every node.

With HELIX_HELPERS=N rank 0 also enters what nodes without ranks need to come and decode (`libhelix.helping`):
N places, each with keys, and every loader as it attaches.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from libhelix._version import __version__
from libhelix.client import Client
from libhelix.errors import Conflict, DaemonUnreachable, UsageError
from libhelix.wire import messages as m
from libhelix.wire.keys import new_keys
from libhelix.wire.settings import Settings, differences

_POLL_S = 0.02
_ANY_PORT = 9
_ELSEWHERE = "192.0.2.1"
"""An address that nobody has: the way to it is that to everywhere."""
_AGAIN_S = 0.5
_met: dict[str, m.Met] = {}
"""By job: the keys by which other nodes know this one, and its port."""
_count: dict[str, int] = {}
"""Meetings of this process by the loader's name: all ranks make their loaders in the same order."""
HELPERS = "HELIX_HELPERS"
ATTEMPT = "helix/attempt"
"""Which attempt of the job expects helpers."""
_expected: dict[str, list[m.Keys]] = {}
"""The keys of helpers, by the attempt of the job; rank 0 makes them."""
_ENTERED = ("settings", "helpers", "leader", "there", "nodes", "all", "off", "known", "left")
"""What a meeting enters once, beside its nodes and their ranks."""
_LOCAL_SIZES = (("WORLD_SIZE", "LOCAL_WORLD_SIZE"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"))


def meeting_of(
    name: str,
    rank: int,
    settings: Settings,
    timeout_s: float,
    *,
    warn: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
) -> Meeting | None:
    """The meeting of a loader's ranks; None where they are on one node, or every node has to plan for itself.

    Raises UsageError where placement by load needs what cannot be.
    """
    needed, processes = settings.placement == "dynamic", settings.dp_size * settings.replicas
    several = processes > 1 and (several_nodes(environ) or (needed and not _sizes(environ)))
    if not several and not helpers_of(environ):
        return None
    why = ""
    world = environ.get("WORLD_SIZE") or environ.get("OMPI_COMM_WORLD_SIZE") or environ.get("SLURM_NTASKS")
    if environ.get("HELIX_PEERS") == "off":
        why = "HELIX_PEERS=off"
    elif world is not None and world != str(processes):
        # Pipeline stages that all say one dp_rank, or groups of their own: who is to meet whom?
        why = f"the loader has {processes} processes, the job {world}"
    if why and needed:
        raise UsageError(f'placement="dynamic" cannot be: {why}; use placement="static"')
    if why and helpers_of(environ):
        warn(f"no node can help this loader: {why}")
    return None if why else Meeting(name, rank, settings, timeout_s, warn, environ)


def helpers_of(environ: Mapping[str, str]) -> int:
    """How many nodes without ranks may come and decode. Raises UsageError."""
    text = environ.get(HELPERS, "0")
    if not text.isdecimal() or int(text) > m.MAX_HELPERS:
        raise UsageError(f"{HELPERS}={text!r} is no number of nodes from 0 to {m.MAX_HELPERS}")
    return int(text)


def several_nodes(environ: Mapping[str, str]) -> bool:
    """Whether a launcher started processes on more than one node, as far as it says so."""
    if (sizes := _sizes(environ)) is not None:
        return sizes[0] > sizes[1]
    return environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_NNODES", "1")) != "1"


def _sizes(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Processes of the job, and of this node."""
    for all_name, here_name in _LOCAL_SIZES:
        everywhere, here = environ.get(all_name, ""), environ.get(here_name, "")
        if everywhere.isdigit() and here.isdigit():
            return int(everywhere), int(here)
    return None


class Wanted(msgspec.Struct, frozen=True):
    """A loader that nodes without ranks may help: of which version, who leads, and how rank 0 attached."""

    version: str
    leader: m.Peer
    attach: m.Attach


class Expected(msgspec.Struct, frozen=True):
    """That an attempt of a job expects helpers, with which keys."""

    job: str
    keys: list[m.Keys]


class Meeting:
    """Of the daemons of one loader's ranks."""

    def __init__(
        self,
        name: str,
        rank: int,
        settings: Settings,
        timeout_s: float,
        warn: Callable[[str], None],
        environ: Mapping[str, str],
    ) -> None:
        self._name = name
        self._rank = rank
        self._settings = settings
        self._timeout_s = timeout_s
        self._warn = warn
        self._environ = environ
        self._number = number = _count[name] = _count.get(name, 0) + 1
        # What an earlier attempt of the job left in the store is of daemons that are gone.
        self._attempt = f"helix/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self._here = f"{self._attempt}/{name}/{number}"
        self._helpers = helpers_of(environ)
        self._entered = False
        self._host = ""
        self._peers: list[m.Peers] | None = None
        self._client: Client | None = None

    def introduce(self, client: Client, attach: m.Attach, deadline: float) -> None:
        """Tell a daemon of the others, once they are known, which waits for all ranks. `attach`: how this one
        is about to attach.

        Raises DaemonUnreachable, Conflict where a rank has other settings, and UsageError where placement by
        load needs what cannot be.
        """
        if self._client is client or self._peers == []:
            return
        self._host = self._host or own_host(self._environ)
        # Other nodes know this one by its keys, whichever loader it met them for: a daemon that is started
        # anew gets the same.
        known = _met.get(client.job)
        meet = m.Meet(self._host, known.keys if known else None, known.port if known else 0)
        met = client.meet(meet, max(0.0, deadline - time.monotonic()))
        while known and isinstance(met, m.Unmet) and time.monotonic() < deadline:
            # Another process may have its port, for a moment. Who has not met anybody yet needs no old one.
            if self._peers is None:
                meet, known = m.Meet(self._host, known.keys), None
            else:
                time.sleep(_AGAIN_S)
            met = client.meet(meet, max(0.0, deadline - time.monotonic()), anew=True)
        if isinstance(met, m.Met):
            if known and met.keys.public != known.keys.public:
                raise DaemonUnreachable(
                    f"loader {self._name!r}: helixd has other keys than those by which other nodes know it; "
                    "start the job again"
                )
            _met[client.job] = met
        if self._peers is None:
            self._come_together(client, attach, meet, met, deadline)
        elif isinstance(met, m.Met):
            self._tell(client, self._peers)
        else:
            raise DaemonUnreachable(
                f"the daemon that was started anew is not heard by other nodes: {met.text}"
            )
        self._client = client

    @staticmethod
    def _tell(client: Client, peers: list[m.Peers]) -> None:
        for one in peers:
            client.send(one)

    def _come_together(
        self, client: Client, attach: m.Attach, meet: m.Meet, met: m.Met | m.Unmet, deadline: float
    ) -> None:
        store = self._store()
        if store is None:
            self._alone("torch.distributed is not initialised, and torchrun has not started this")
            return
        try:
            peers = self._enter(store, met, deadline)
            if not peers:
                self._leave(store)
                return
            # The leader is told first: whom it does not know yet, it does not let in, and that one tries
            # again only after a while.
            if self._rank == 0:
                self._tell(client, peers)
                client.meet(meet, max(0.0, deadline - time.monotonic()), anew=True)  # answered after those
                store.set(f"{self._here}/known", "1")
                if self._helpers:
                    self._expect(store, client.job, Wanted(__version__, peers[0].leader, attach))
            else:
                self._wait(store, "known", deadline)
                self._tell(client, peers)
            self._peers = peers
            self._leave(store)
        except RuntimeError as e:  # as the store's client raises them
            raise DaemonUnreachable(
                f"loader {self._name!r}: the job's rendezvous does not answer ({e}); see what rank 0 says"
            ) from e

    def _alone(self, why: str) -> list[m.Peers]:
        """Every node plans for itself."""
        if self._settings.placement == "dynamic":
            raise UsageError(
                f'placement="dynamic" needs daemons that know each other: {why}; or use placement="static"'
            )
        helped = ", and none can help" if self._helpers else ""
        self._warn(f"nodes plan each for themselves{helped}: {why}")
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
        return dist.TCPStore(env["MASTER_ADDR"], int(env["MASTER_PORT"]), is_master=False)

    def _enter(self, store: Any, met: m.Met | m.Unmet, deadline: float) -> list[m.Peers]:
        """What a daemon is to be told; nothing where there is one node, or each plans for itself."""
        here, processes = self._here, self._settings.dp_size * self._settings.replicas
        ours = f"{here}/of/{met.keys.public}" if isinstance(met, m.Met) else ""
        if not self._entered:
            self._entered = True
            self._write(store, met, ours)
            if store.add(f"{here}/there", 1) == processes:
                store.set(f"{here}/all", str(store.add(f"{here}/nodes", 0)))
        self._wait(store, "all", deadline)
        self._compare(store.get(f"{here}/settings"))
        if store.check([f"{here}/off"]):
            return self._alone(store.get(f"{here}/off").decode())
        nodes = int(store.get(f"{here}/all"))
        helpers = tuple(store.get(f"{here}/helpers").decode().split())
        if (nodes == 1 and not helpers) or isinstance(met, m.Unmet):
            self._peers = []
            return []
        keys = [f"{ours}/{i + 1}" for i in range(store.add(ours, 0))]
        ranks = tuple(sorted({int(text) for text in store.multi_get(keys)}))
        leader = _peer(store.get(f"{here}/leader"))
        if leader.key != met.keys.public:
            return [m.Peers(self._name, leader, ranks, meeting=self._number)]
        found = [_peer(text) for text in store.multi_get([f"{here}/node/{i}" for i in range(nodes)])]
        return told_leader(self._name, leader, ranks, found, helpers, self._number)

    def _leave(self, store: Any) -> None:
        """The last to leave takes out of the store what was entered: it lives as long as the job."""
        here = self._here
        with contextlib.suppress(RuntimeError):  # of stores that cannot; nobody has met in vain for that
            if store.add(f"{here}/left", 1) < self._settings.dp_size * self._settings.replicas:
                return
            keys = [f"{here}/{name}" for name in _ENTERED]
            for node in (f"{here}/node/{i}" for i in range(int(store.get(f"{here}/all")))):
                if store.check([node]):  # where one did not listen, fewer are entered
                    ours = f"{here}/of/{_peer(store.get(node)).key}"
                    keys += [node, ours, *(f"{ours}/{i + 1}" for i in range(store.add(ours, 0)))]
            for key in keys:
                store.delete_key(key)

    def _expect(self, store: Any, job: str, wanted: Wanted) -> None:
        """Enter a loader for helpers, in the store itself: they know no prefix of a process group."""
        store = bare(store)
        here = f"{self._attempt}/helping"
        number = store.add(f"{here}/loaders", 1)
        store.set(f"{here}/loader/{number}", msgspec.json.encode(wanted))
        if number == 1:
            keys = _keys_of_helpers(self._attempt, self._helpers)
            store.set(f"{here}/expected", msgspec.json.encode(Expected(job, keys)))
            store.set(ATTEMPT, self._attempt)
        if getattr(store, "host", None) is None:
            self._warn(f"{HELPERS}: nodes without ranks reach no rendezvous of {type(store).__name__}")

    def _write(self, store: Any, met: m.Met | m.Unmet, ours: str) -> None:
        here = self._here
        if self._rank == 0:
            store.set(f"{here}/settings", msgspec.json.encode((__version__, self._settings)))
            helpers = _keys_of_helpers(self._attempt, self._helpers)
            store.set(f"{here}/helpers", " ".join(keys.public for keys in helpers))
        if isinstance(met, m.Unmet):
            store.set(f"{here}/off", f"{socket.gethostname()}: {met.text}")
            store.add(f"{here}/nodes", 2)  # in any case more than one
            return
        mine = f"{met.keys.public} {address_of(self._host, met.port)}"
        number = store.add(ours, 1)
        store.set(f"{ours}/{number}", str(self._rank))
        if number == 1:  # the first of this node
            store.set(f"{here}/node/{store.add(f'{here}/nodes', 1) - 1}", mine)
        if self._rank == 0:
            store.set(f"{here}/leader", mine)

    def _compare(self, text: bytes) -> None:
        """Raises Conflict where rank 0 has another version, or other settings."""
        version, theirs = msgspec.json.decode(text, type=tuple[str, Settings])
        if version != __version__:
            raise Conflict(
                f"rank {self._rank} runs datahelix {__version__}, rank 0 runs {version}; install one version"
            )
        if different := differences(theirs, self._settings):
            raise Conflict(
                f"loader {self._name!r}: rank {self._rank} has other settings than rank 0: "
                f"{'; '.join(different)}"
            )

    def _wait(self, store: Any, what: str, deadline: float) -> None:
        while not store.check([f"{self._here}/{what}"]):
            if time.monotonic() >= deadline:
                there = store.add(f"{self._here}/there", 0)
                raise DaemonUnreachable(
                    f"loader {self._name!r}: {there} of {self._settings.dp_size * self._settings.replicas} "
                    f"ranks have come to meet within {self._timeout_s:.0f} s; every rank has to make this "
                    "loader and iterate over it"
                )
            time.sleep(_POLL_S)


def told_leader(
    name: str,
    leader: m.Peer,
    ranks: tuple[int, ...],
    nodes: list[m.Peer],
    helpers: tuple[str, ...] = (),
    meeting: int = 0,
) -> list[m.Peers]:
    """What the leader's daemon is told of a loader's nodes, in as many messages as that takes."""
    size = m.MAX_PEERS_PER_MESSAGE
    parts = [tuple(nodes[a : a + size]) for a in range(0, len(nodes), size)]
    return [m.Peers(name, leader, ranks, part, part is parts[-1], helpers, meeting) for part in parts]


def bare(store: Any) -> Any:
    """The store below all prefixes."""
    while (below := getattr(store, "underlying_store", None)) is not None:
        store = below
    return store


def _keys_of_helpers(attempt: str, count: int) -> list[m.Keys]:
    if attempt not in _expected and count:
        _expected[attempt] = [new_keys() for _ in range(count)]
    return _expected.get(attempt, [])


def own_host(environ: Mapping[str, str]) -> str:
    """The address of this node towards the job's first. Raises UsageError where there is no way to that."""
    said = environ.get("HELIX_PEER_HOST")
    if said in ("0.0.0.0", "::", "*"):
        raise UsageError(f"HELIX_PEER_HOST={said!r} is no address to be reached at; name one of this node's")
    if said:
        return said
    towards = environ.get("MASTER_ADDR") or environ.get("SLURM_LAUNCH_NODE_IPADDR") or _ELSEWHERE
    try:
        host = _host_towards(towards)
        if is_loopback(host) and towards != "localhost" and not is_loopback(towards):
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


def is_loopback(address: str) -> bool:
    """Whether it is an address of this very machine, 127.0.0.1 and the like; names are not."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def address_of(host: str, port: int) -> str:
    """As peers dial it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _peer(text: bytes) -> m.Peer:
    key, _, address = text.decode().partition(" ")
    return m.Peer(key, address)
