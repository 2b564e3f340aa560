"""Puts the daemon together: embedded, for one job on an abstract address, or standing alone on a path."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy.ma  # noqa: F401  # np.unique imports it when it is first called, which would be in the loop

from helixd.config import Config, default_socket
from helixd.core.machine import Machine
from helixd.errors import ConfigError
from helixd.runtime.loop import Loop
from helixd.runtime.stderr import say
from libhelix._version import __version__
from libhelix.errors import HelixError
from libhelix.wire import channel
from libhelix.wire.messages import PROTOCOL

BACKLOG = 1024
_FIRST_PASSED = 3
"""The descriptor of the first socket that systemd passes."""
LONGEST_PATH = 107
"""Bytes of a socket's path that the kernel takes."""


def run_embedded(listener: socket.socket, config: Config) -> int:
    """Serve one job on an abstract address until its last trainer leaves."""
    _raise_descriptor_limit()
    Loop(
        _machine(config, embedded=True),
        listener,
        only_uid=os.geteuid(),
        log_level=config.log_level,
        metrics=_metrics_of_embedded(config),
    ).run()
    return 0


def run(config: Config, reload: Callable[[], Config]) -> int:
    """Serve jobs, in turn and at once, on a socket that systemd passed or one below the file system, until a
    signal comes. `reload` reads the settings again."""
    metrics = _listen_for_metrics(config.metrics) if config.metrics else None
    passed = passed_socket()
    listener = passed or listen(Path(config.socket))
    ours = None if passed is not None else os.stat(config.socket).st_ino
    _raise_descriptor_limit()
    where = listener.getsockname()
    load = (lambda: reload().served_at(where)) if passed is not None else reload
    print(f"helixd {__version__} (protocol {PROTOCOL}) serves {where}", file=sys.stderr, flush=True)
    try:
        machine = _machine(config.served_at(where) if passed is not None else config, embedded=False)
        level = config.log_level
        Loop(machine, listener, only_uid=None, log_level=level, reload=load, metrics=metrics).run()
    finally:
        path = Path(config.socket)
        if ours is not None and path.exists() and path.stat().st_ino == ours:  # not a successor's
            path.unlink(missing_ok=True)
    return 0


def _machine(config: Config, *, embedded: bool) -> Machine:
    return Machine(
        version=__version__,
        page=mmap.PAGESIZE,
        embedded=embedded,
        now=time.monotonic(),
        cores=config.cores,
        reserve=config.reserve,
        pid=os.getpid(),
        quota=config.quota,
        shown=config.shown(),
        uid=os.geteuid(),
    )


def passed_socket(environ: Mapping[str, str] = os.environ) -> socket.socket | None:
    """The listening socket that systemd started us for; None where it did not. Raises ConfigError."""
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    if environ.get("LISTEN_FDS") != "1":
        raise ConfigError(f"systemd passes {environ.get('LISTEN_FDS')} sockets; helixd takes one")
    listener = socket.socket(fileno=_FIRST_PASSED)
    if listener.family != socket.AF_UNIX or listener.type != socket.SOCK_SEQPACKET:
        raise ConfigError("the socket that systemd passes is of another kind; use ListenSequentialPacket=")
    listener.set_inheritable(False)
    return listener


def _metrics_of_embedded(config: Config) -> socket.socket | None:
    """Training does not stop for want of monitoring, as where two jobs of a node are given one port."""
    if not config.metrics:
        return None
    try:
        return _listen_for_metrics(config.metrics)
    except ConfigError as e:
        say(f"helixd: warning: no metrics: {e}")
        return None


def _listen_for_metrics(address: str) -> socket.socket:
    from helixd.runtime import scrape  # only where somebody asks: see Loop

    return scrape.listen(address)


def _raise_descriptor_limit() -> None:
    """As far as the kernel lets us: every process of every job is a descriptor or two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def listen(path: Path) -> socket.socket:
    """A listening socket at `path`; one that a dead daemon left is replaced.

    Raises ConfigError for a path where none can be, HelixError where another daemon serves it.
    """
    listener = channel.new_socket()
    try:
        _check_place(path)
        if path.is_socket() and not _answers(path):
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o666)  # who may do what is decided by the peer's credentials
        listener.listen(BACKLOG)
    except OSError as e:
        listener.close()
        if e.errno == errno.EADDRINUSE:
            raise HelixError(f"{path}: another helixd serves it; stop it, or choose another --socket") from e
        raise ConfigError(f"{path}: {e.strerror}; choose another --socket") from e
    except ConfigError:
        listener.close()
        raise
    return listener


def _check_place(path: Path) -> None:
    nbytes = len(os.fsencode(path))
    if nbytes > LONGEST_PATH:
        raise ConfigError(
            f"{path}: has {nbytes} bytes, and a socket's path at most {LONGEST_PATH}; choose a shorter one"
        )
    if str(path) == default_socket():
        path.parent.mkdir(exist_ok=True, mode=0o755)
    if not path.parent.is_dir():
        raise ConfigError(
            f"{path}: there is no directory {path.parent}; create it, or choose another --socket"
        )
    if os.path.lexists(path) and not path.is_socket():
        raise ConfigError(f"{path}: exists and is no socket; remove it, or choose another --socket")


def _answers(path: Path) -> bool:
    with channel.new_socket() as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True  # whose it is we do not know: another program's, perhaps, of another type
        return True
