"""A node without ranks that decodes for those of a job: what `helixd run --helper` does.

It finds the job in its rendezvous, takes one of the places that HELIX_HELPERS made there, and has its daemon
decode what nodes that are late ask for. It goes when the rendezvous does: with the job.

    helix/<attempt>/helping/expected            the job, and the keys of all places
                           /place/<i>/owner     who has a place
                           /place/<i>/beats     counts on while it is alive
                           /loaders, /loader/<n>  what rank 0's loaders are, as they come
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec

from libhelix._version import __version__
from libhelix.client import Client, ConnectionLost, client_for, embedded_address, service_socket
from libhelix.errors import Conflict, DaemonUnreachable, HelixError, UsageError
from libhelix.learned import keep_scales, kept_scales
from libhelix.meeting import ATTEMPT, HELPERS, Expected, Wanted, address_of, own_host
from libhelix.session import Attachment
from libhelix.wire import messages as m
from libhelix.wire.peer import CLOSED

LOOK_EVERY_S = 1.0
SILENT_S = 5.0
"""A place whose beats stand still for so long is free."""
STORE_LIMIT_S = 30.0
GONE_S = 10.0
"""A rendezvous that is not there for so long is gone."""


@dataclass(eq=False)
class Place:
    """One of the places of an attempt of a job, and what it has been told of so far."""

    here: str
    number: int
    owner: str
    job: str
    keys: m.Keys
    port: int = 0
    address: str = ""
    """Of its daemon, once there is one; the next has the same port."""
    loaders: int = 0
    """Those that were looked at."""
    wanted: dict[str, Wanted] = field(default_factory=dict)
    """The newest of each name."""
    attached: dict[str, Attachment] = field(default_factory=dict)
    client: Client | None = None


class Helper:
    """`store`: the job's rendezvous, at a host. `say` is told what happens."""

    def __init__(
        self, store: Any, host: str, say: Callable[[str], None], environ: Mapping[str, str] = os.environ
    ) -> None:
        self.store = store
        self._environ = {**environ, "MASTER_ADDR": host}
        self._say = say
        self._place: Place | None = None

    def expected(self) -> bool:
        """Whether a job there expects helpers."""
        return bool(self.store.check([ATTEMPT]))

    def look(self) -> None:
        """Once a second: be alive, see what has come, hear what the daemon says.

        Raises RuntimeError when the rendezvous is gone, DaemonUnreachable where no daemon starts, and
        Conflict where all places are taken.
        """
        here = f"{self.store.get(ATTEMPT).decode()}/helping"
        place = self._place
        if place is not None and (place.here != here or self._lost(place)):
            self.leave()
        place = self._place = self._place or self._claimed(here)
        self.store.add(f"{place.here}/place/{place.number}/beats", 1)
        for number in range(place.loaders + 1, self.store.add(f"{here}/loaders", 0) + 1):
            place.loaders = number
            self._wants(place, msgspec.json.decode(self.store.get(f"{here}/loader/{number}"), type=Wanted))
        try:
            self._attach(place)
            assert place.client is not None
            place.client.tell_cores()
            place.client.wait(lambda: False, LOOK_EVERY_S)
        except ConnectionLost:
            self._say("helixd went away; another one takes over")
            place.client = None
        self._hear(place)

    def leave(self) -> None:
        """Leave the daemon; a private one ends."""
        place, self._place = self._place, None
        if place is not None and place.client is not None:
            place.client.close()

    # ---- the place ---------------------------------------------------------------------------------

    def _lost(self, place: Place) -> bool:
        """Whether another has taken it, because this process stood still for long."""
        return self._owner(place.here, place.number) != place.owner

    def _owner(self, here: str, number: int) -> str:
        where = f"{here}/place/{number}/owner"
        owner: bytes = self.store.get(where) if self.store.check([where]) else b""
        return owner.decode()

    def _claimed(self, here: str) -> Place:
        expected = msgspec.json.decode(self.store.get(f"{here}/expected"), type=Expected)
        mine = f"{socket.gethostname()}/{os.getpid()}/{time.time_ns()}"
        places = range(len(expected.keys))
        owners = [self._owner(here, i) for i in places]
        free = [i for i in places if not owners[i]]
        if not free:
            beats = [self.store.add(f"{here}/place/{i}/beats", 0) for i in places]
            time.sleep(SILENT_S)
            free = [i for i in places if self.store.add(f"{here}/place/{i}/beats", 0) == beats[i]]
        for i in free:
            where = f"{here}/place/{i}/owner"
            if self.store.compare_set(where, owners[i], mine).decode() == mine:
                self._say(f"helps job {expected.job!r}, as helper {i + 1} of {len(places)}")
                return Place(here, i, mine, expected.job, expected.keys[i])
        raise Conflict(
            f"job {expected.job!r} has its {len(places)} helpers; start its trainers with a larger {HELPERS}"
        )

    # ---- its loaders -------------------------------------------------------------------------------

    def _wants(self, place: Place, wanted: Wanted) -> None:
        name = wanted.attach.name
        if wanted.version != __version__:
            self._say(
                f"loader {name!r} is not helped: this is datahelix {__version__}, rank 0 runs "
                f"{wanted.version}; install one version"
            )
            return
        self._detach(place, name)
        place.wanted[name] = wanted

    def _attach(self, place: Place) -> None:
        """Have the daemon help all loaders that it does not help yet."""
        client = place.client
        if client is None or client.lost:
            client = place.client = self._client(place)
        for name, wanted in place.wanted.items():
            if name in place.attached:
                continue
            attachment = place.attached[name] = client.new_attachment(os.close)
            of = wanted.attach
            client.send(
                m.Help(
                    loader=attachment.loader,
                    name=name,
                    settings=of.settings,
                    indexes=of.indexes,
                    sys_path=of.sys_path,
                    leader=wanted.leader,
                    address=place.address,
                    scales=kept_scales(),
                )
            )

    def _client(self, place: Place) -> Client:
        """A daemon that listens for those of other nodes, at the port of the one before."""
        place.attached.clear()
        mark = zlib.crc32(place.keys.public.encode())  # other jobs may have that name
        name = f"{place.job[:200]}-helper-{place.number}-{mark:08x}"
        client = client_for(name, service_socket() or embedded_address(name))
        host = own_host(self._environ)
        met = client.meet(m.Meet(host, place.keys, place.port), STORE_LIMIT_S)
        if isinstance(met, m.Unmet):
            raise UsageError(met.text)
        place.port, place.address = met.port, address_of(host, met.port)
        return client

    def _hear(self, place: Place) -> None:
        for name, attachment in list(place.attached.items()):
            if attachment.learned is not None:
                keep_scales(attachment.learned)
                attachment.learned = None
            if (failure := attachment.failure) is not None:
                self._say(f"loader {name!r} is not helped any more: {failure.text}")
                self._detach(place, name)
                if failure.code != CLOSED:  # else it may be opened again, and takes no memory until then
                    place.wanted.pop(name)

    @staticmethod
    def _detach(place: Place, name: str) -> None:
        attachment = place.attached.pop(name, None)
        if attachment is None or place.client is None or place.client.lost:
            return
        try:
            place.client.send(m.Detach(attachment.loader))
        except ConnectionLost:
            place.client = None


def help_job(address: str, wait_s: float, say: Callable[[str], None]) -> None:
    """Help the job whose rendezvous is at "host:port", until that is gone.

    Raises UsageError, DaemonUnreachable and Conflict.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal():
        raise UsageError(f"{address!r} is no address of a rendezvous; write it like host:29500")
    deadline = time.monotonic() + wait_s
    helper = Helper(_store_at(host, int(port), wait_s), host, say)
    try:
        while True:
            with contextlib.suppress(RuntimeError):  # as the store's client raises them
                _wait_until_expected(helper, address, deadline, wait_s)
                while True:
                    helper.look()
            # The link to it may have been down for a while.
            deadline, wait_s = time.monotonic() + GONE_S, GONE_S
            try:
                helper.store = _store_at(host, int(port), GONE_S)
            except DaemonUnreachable:
                say(f"the job's rendezvous at {address} is gone, and the job with it")
                return
    finally:
        helper.leave()


def _wait_until_expected(helper: Helper, address: str, deadline: float, wait_s: float) -> None:
    while not helper.expected():
        if time.monotonic() >= deadline:
            raise DaemonUnreachable(
                f"no job at {address} has expected helpers within {wait_s:.0f} s; start its trainers "
                f"with {HELPERS}=1, or as many nodes as will help"
            )
        time.sleep(min(LOOK_EVERY_S, max(0.0, deadline - time.monotonic())))


def _store_at(host: str, port: int, wait_s: float) -> Any:
    try:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # its stubs leave it out
    except ImportError as e:
        raise UsageError(f"a helper finds its job by torch.distributed, which is not there ({e})") from e
    deadline, limit = time.monotonic() + wait_s, timedelta(seconds=STORE_LIMIT_S)
    while True:
        try:
            socket.create_connection((host, port), LOOK_EVERY_S).close()  # TCPStore would try for long
            return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=limit)
        except (OSError, RuntimeError) as e:
            if time.monotonic() >= deadline:
                raise DaemonUnreachable(
                    f"nothing answers at {host}:{port} within {wait_s:.0f} s; is that MASTER_ADDR and "
                    "MASTER_PORT of the job?"
                ) from e
            time.sleep(LOOK_EVERY_S)


def _main() -> int:
    """`python -m libhelix.helping HOST:PORT SECONDS`: as `helixd run --helper` starts it."""
    address, wait_s = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # at once, also while a rendezvous does not answer
    try:
        help_job(address, float(wait_s), lambda text: print(f"helixd: {text}", file=sys.stderr, flush=True))
    except HelixError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2 if isinstance(e, UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
