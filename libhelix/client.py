"""The trainer's connection to helixd: one SEQPACKET socket per process and job, shared by its loaders.

No thread of its own: messages are read when a loader asks. Releases are sent by the finalizers themselves,
without a lock, so that prefetching goes on while the trainer computes.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from libhelix._version import __version__
from libhelix.errors import DaemonUnreachable, ProtocolError, UsageError, from_code
from libhelix.session import Attachment
from libhelix.wire import channel, codec
from libhelix.wire import messages as m

CONNECT_LIMIT_S = 30.0
LOOK_AT_CORES_EVERY_S = 2.0
SEND_LIMIT_S = 10.0
SYSTEM_SOCKET = "/run/helixd/helixd.sock"
_RETRY_S = 0.01
_STDERR = 2
_USAGE = 2
"""The exit code of a helixd whose settings cannot be."""
START_AGAIN_S = 2.0
_clients: dict[tuple[str, str], Client] = {}
_clients_lock = threading.Lock()
_known: set[str] = set()
"""Addresses where a daemon has answered this process."""


class ConnectionLost(Exception):
    """The daemon is gone; loaders attach again, at another one."""


class Client:
    """One connection. `lost` once the daemon is gone: a new Client takes over."""

    def __init__(self, address: str, job: str) -> None:
        self.address = address
        self.job = job
        self.pid = os.getpid()
        self.lost = False
        self._attachments: dict[int, tuple[Attachment, Callable[[int], None]]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._unsent: deque[bytes] = deque()
        self._welcome: m.Welcome | None = None
        self._met: m.Met | m.Unmet | None = None
        self._cores = _own_cores()
        self._look_at_cores = time.monotonic() + LOOK_AT_CORES_EVERY_S
        self._sock = _connect(address, job)
        self._sock.setblocking(False)
        try:
            self._greet()
        except BaseException:
            self._sock.close()
            raise

    def _greet(self) -> None:
        hello = m.Hello(
            protocol=m.PROTOCOL,
            version=__version__,
            role="trainer",
            job=self.job,
            pid=self.pid,
            cores=self._cores,
        )
        self.send(hello)
        if not self.wait(lambda: self._welcome is not None, CONNECT_LIMIT_S):
            raise DaemonUnreachable(f"helixd at {shown(self.address)} does not answer; restart it")

    # ---- loaders -----------------------------------------------------------------------------------

    def new_attachment(self, on_arena: Callable[[int], None]) -> Attachment:
        """A place for a loader. `on_arena(descriptor)` is called when its ring comes."""
        with self._lock:
            attachment = Attachment(next(self._numbers))
            self._attachments[attachment.loader] = (attachment, on_arena)
        return attachment

    def meet(self, meet: m.Meet, limit_s: float, *, anew: bool = False) -> m.Met | m.Unmet:
        """Have the daemon listen for those of other nodes; with which keys, and where, it does. `anew`: ask
        although it is known; the answer comes after all that was said before was heard."""
        if anew or not isinstance(self._met, m.Met):
            self._met = None
            self.send(meet)
            if not self.wait(lambda: self._met is not None, limit_s):
                raise DaemonUnreachable(f"helixd at {shown(self.address)} does not answer; restart it")
        assert self._met is not None
        return self._met

    def detach(self, attachment: Attachment) -> None:
        """The loader is closed. The last one closes the connection, and an embedded daemon ends with it."""
        if self.pid != os.getpid():
            return
        with self._lock:
            if self._attachments.pop(attachment.loader, None) is None:
                return
            if not self.lost:
                with contextlib.suppress(ConnectionLost, DaemonUnreachable):
                    self.send(m.Detach(attachment.loader))
            if not self._attachments:
                self.close()

    def close(self) -> None:
        """Close the socket; the daemon takes back what is left."""
        self.lost = True
        with _clients_lock:
            for key in [k for k, c in _clients.items() if c is self]:
                del _clients[key]
        self._sock.close()

    # ---- sending -----------------------------------------------------------------------------------

    def send(self, message: m.Hello | m.FromTrainer) -> None:
        """Send, waiting up to 10 s for a daemon that is busy. Raises ConnectionLost, DaemonUnreachable."""
        self._send_bytes(codec.encode(message))

    def _send_bytes(self, data: bytes) -> None:
        deadline = time.monotonic() + SEND_LIMIT_S
        while True:
            try:
                channel.send(self._sock, data)
                return
            except BlockingIOError:
                writable = select.poll()
                writable.register(self._sock, select.POLLOUT)
                if not writable.poll(max(0, deadline - time.monotonic()) * 1000):
                    raise DaemonUnreachable(
                        f"helixd at {shown(self.address)} read nothing for {SEND_LIMIT_S:.0f} s"
                    ) from None
            except OSError as e:
                self._lose()
                raise ConnectionLost from e

    def tell_cores(self) -> None:
        """Tell helixd where this process may run, if that has changed; mostly a look at the clock."""
        now = time.monotonic()
        if now < self._look_at_cores:
            return
        self._look_at_cores = now + LOOK_AT_CORES_EVERY_S
        cores = _own_cores()
        if cores != self._cores:
            self._cores = cores
            self.send(m.Cores(cores))

    def release(self, data: bytes) -> None:
        """Send an encoded Release. Finalizers call it, anywhere: no lock, no waiting, no error."""
        if self.lost or self.pid != os.getpid():
            return
        try:
            channel.send(self._sock, data)
        except BlockingIOError:
            self._unsent.append(data)
        except (OSError, ValueError):
            return  # the daemon is gone, or the socket closed meanwhile: nothing is leased there any more

    def _flush(self) -> None:
        while self._unsent:
            data = self._unsent.popleft()
            try:
                channel.send(self._sock, data)
            except BlockingIOError:
                self._unsent.appendleft(data)
                return

    # ---- receiving ---------------------------------------------------------------------------------

    def wait(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Read messages until the condition holds or the time is over; returns whether it holds.

        Raises ConnectionLost when the daemon is gone, and the daemon's error when it refuses us.
        """
        deadline = time.monotonic() + limit_s
        while True:
            with self._lock:
                if self.lost:
                    raise ConnectionLost
                try:
                    self._flush()
                    # One message at a time: what is not needed yet waits in the socket, at no cost.
                    while not until():
                        if not self._receive():
                            break
                    else:
                        return True
                except OSError as e:
                    self._lose()
                    raise ConnectionLost from e
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            # In slices: another thread's loader may read the message that this one waits for.
            waiting = select.poll()  # of its own: threads may wait side by side
            waiting.register(self._sock, select.POLLIN)
            waiting.poll(min(left, 0.2) * 1000)

    def _receive(self) -> bool:
        try:
            received = channel.receive(self._sock)
        except BlockingIOError:
            return False
        if received is None:
            self._lose()
            raise ConnectionLost
        data, descriptors = received
        try:
            self._dispatch(codec.to_trainer(data), descriptors)
        finally:
            channel.close_all(descriptors)
        return True

    def _dispatch(self, message: m.ToTrainer, descriptors: list[int]) -> None:
        match message:
            case m.Welcome():
                self._welcome = message
            case m.Refused(code, text):
                self._lose()
                raise from_code(code, text)
            case m.Met() | m.Unmet():
                self._met = message
            case m.StartHost():
                self._start_host()
            case _:
                found = self._attachments.get(message.loader)
                if found is None:
                    return  # of a loader that was closed meanwhile
                attachment, on_arena = found
                release = attachment.received(message)
                if release is not None:
                    self.send(release)
                if isinstance(message, m.Attached) and descriptors:
                    on_arena(descriptors.pop())

    def _start_host(self) -> None:
        address = "@" + self.address[1:] if self.address.startswith("\0") else self.address
        try:
            start_detached("helixd.worker", address, self.job)
        except (OSError, subprocess.SubprocessError) as e:
            self.send(m.HostFailed(codec.short(f"the worker host cannot be started: {e}")))

    def _lose(self) -> None:
        # What the daemon said last may be known to this process alone.
        with contextlib.suppress(OSError, ProtocolError):
            while (received := channel.receive(self._sock)) is not None:
                channel.close_all(received[1])
                message = codec.to_trainer(received[0])
                if isinstance(message, m.Dealt) and message.loader in self._attachments:
                    self._attachments[message.loader][0].received(message)
        self.close()


# ---- finding or starting a daemon ----------------------------------------------------------------------


def client_for(job: str, address: str) -> Client:
    """This process's connection for a job. Raises DaemonUnreachable."""
    with _clients_lock:
        client = _clients.get((address, job))
    if client is not None and not client.lost and client.pid == os.getpid():
        return client
    client = Client(address, job)
    with _clients_lock:
        _clients[address, job] = client
    return client


def service_socket() -> str | None:
    """The path of a standing daemon: $HELIX_SOCKET, or the system's where it exists. None: embedded."""
    explicit = os.environ.get("HELIX_SOCKET")
    if explicit:
        return explicit
    return SYSTEM_SOCKET if os.path.exists(SYSTEM_SOCKET) else None


def without_standing() -> str:
    """What to do so that no standing daemon is looked for: a cure, as part of a sentence."""
    return "unset HELIX_SOCKET" if os.environ.get("HELIX_SOCKET") else f"remove {SYSTEM_SOCKET}"


def embedded_address(job: str) -> str:
    """The abstract address of a job's private daemon on this node."""
    name = f"helix/{os.geteuid()}/{job}"
    if len(name.encode()) > 100:  # the kernel takes 107 bytes
        name = f"helix/{os.geteuid()}/{hashlib.blake2b(job.encode(), digest_size=16).hexdigest()}"
    return "\0" + name


def shown(address: str) -> str:
    """An address for people."""
    return "@" + address[1:] if address.startswith("\0") else address


def _connect(address: str, job: str) -> socket.socket:
    embedded = address.startswith("\0")
    # A standing daemon that was there is perhaps being restarted; one that never was is a mistake.
    patient = embedded or address in _known
    deadline = time.monotonic() + (CONNECT_LIMIT_S if patient else 0.0)
    started = -math.inf
    trouble = ""
    while True:
        sock = channel.new_socket()
        try:
            sock.connect(address)
        except OSError as e:
            sock.close()
            now = time.monotonic()
            if now >= deadline:
                raise _unreachable(address, job, e, trouble) from e
            # Once more from time to time: the one before may have left with the job's last trainer.
            if embedded and now - started > START_AGAIN_S:
                started = now
                try:
                    start_detached("helixd", "embedded", address[1:])
                except (OSError, subprocess.SubprocessError) as failed:
                    if isinstance(failed, subprocess.CalledProcessError) and failed.returncode == _USAGE:
                        raise UsageError(
                            "helixd does not start with these settings, and says why on stderr; correct the "
                            "HELIX_ variable that it names"
                        ) from failed
                    trouble = f" (starting it: {failed})"
            time.sleep(_RETRY_S)
            continue
        _check_owner(sock, address, embedded)
        _known.add(address)
        return sock


def _own_cores() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))


def _unreachable(address: str, job: str, error: OSError, trouble: str) -> DaemonUnreachable:
    if address.startswith("\0"):
        return DaemonUnreachable(
            f"the private helixd of job {job!r} did not start within {CONNECT_LIMIT_S:.0f} s{trouble}; "
            "helixctl doctor says what is in the way"
        )
    return DaemonUnreachable(
        f"no helixd at {address} ({error.strerror or error}); start it with helixd run --socket {address}, "
        f"or {without_standing()} to use a private one"
    )


def _check_owner(sock: socket.socket, address: str, embedded: bool) -> None:
    _, uid = channel.peer(sock)
    if embedded and uid != os.geteuid():
        sock.close()
        raise DaemonUnreachable(
            f"{shown(address)} belongs to user {uid}, not to this one; choose another job= name"
        )


def start_detached(module: str, *args: str) -> None:
    """Start `python -m module args` as a process of its own. Returns once it has been started.

    Raises OSError or SubprocessError where it cannot be.
    """
    subprocess.run(
        [sys.executable, "-m", module, *args],
        env=process_environment(),
        stdin=subprocess.DEVNULL,
        # Who waits for the end of a trainer's output must not wait for the job's other ranks.
        stdout=_STDERR,
        check=True,
        timeout=CONNECT_LIMIT_S,
    )


def process_environment(*, bare: bool = True) -> dict[str, str]:
    """This process's environment for one that imports the same libhelix; `bare`: one thread and no device."""
    env = dict(os.environ)
    here = str(Path(__file__).resolve().parent.parent)
    env["PYTHONPATH"] = os.pathsep.join(p for p in (here, env.get("PYTHONPATH")) if p)
    if not bare:
        return env
    # One thread per process, and no accelerator: those are the trainer's.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        env[name] = "1"
    env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    for name in ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        env[name] = ""
    return env


def _forget_in_child() -> None:
    # A forked child must not keep the connection of its parent open, nor speak on it.
    for client in list(_clients.values()):
        client.lost = True
        client._sock.close()
    _clients.clear()


os.register_at_fork(after_in_child=_forget_in_child)
