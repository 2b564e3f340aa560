"""Which daemons run on this node, and what they say when asked."""

from __future__ import annotations

import json
import os
import select
import time
from pathlib import Path
from typing import Any

import click

from libhelix._version import __version__
from libhelix.client import service_socket, shown, without_standing
from libhelix.ctl.output import say
from libhelix.errors import DaemonUnreachable, HelixError, ProtocolError, from_code
from libhelix.wire import channel, codec
from libhelix.wire import messages as m

ANSWER_LIMIT_S = 5.0
STATUS = m.StatusAsk()
socket_option = click.option(
    "--socket", "path", help="Socket of a standing daemon.  [default: HELIX_SOCKET, or the system's]"
)


def ask_all(path: str | None, question: m.StatusAsk = STATUS) -> list[dict[str, Any]]:
    """What the daemon at `path` says; by default the standing one and the private ones of this user's jobs.

    Each answer has its daemon's "address". Where some answer, those that refuse, such as one of another
    version, are named on stderr. Raises DaemonUnreachable, or what was refused, where none answers.
    """
    standing = path or service_socket()
    addresses = [standing] if standing else []
    if path is None:
        addresses += private_addresses()
    if not addresses:
        raise DaemonUnreachable(
            "no helixd runs here: no private one of this user, no standing one; start a training job, or "
            "helixd run"
        )
    otherwise = "leave out --socket" if path else without_standing()
    found: list[dict[str, Any]] = []
    missing: list[HelixError] = []
    refused: list[HelixError] = []
    for address in addresses:
        try:
            found.append({"address": shown(address), **ask(address, otherwise, question)})
        except DaemonUnreachable as e:
            missing.append(e)  # a private one may have ended since it was listed
        except HelixError as e:
            refused.append(e)
    if not found:
        raise (refused or missing)[0]
    for error in refused:
        say(f"left out: {error}", err=True)
    return found


def private_addresses() -> list[str]:
    """The abstract addresses of this user's private daemons (root: of everybody's)."""
    prefix = "@helix/" if os.geteuid() == 0 else f"@helix/{os.geteuid()}/"
    found = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        name = line.split(maxsplit=7)[7:]
        if name and name[0].startswith(prefix):
            found.add("\0" + name[0][1:])
    return sorted(found)


def ask(address: str, otherwise: str = "ask another", question: m.FromCtl = STATUS) -> dict[str, Any]:
    """A daemon's own account. Raises DaemonUnreachable, and the daemon's error where it refuses.

    `otherwise` is what the user can do where a standing daemon is not there, beside starting it.
    """
    deadline = time.monotonic() + ANSWER_LIMIT_S
    with channel.new_socket() as sock:
        try:
            sock.connect(address)
            cores = tuple(sorted(os.sched_getaffinity(0)))
            hello = m.Hello(m.PROTOCOL, __version__, "ctl", "", os.getpid(), cores)
            channel.send(sock, codec.encode(hello))
            channel.send(sock, codec.encode(question))
            text = _read_answer(sock, address, deadline)
        except OSError as e:
            cure = f"start it with helixd run --socket {address}, or {otherwise}"
            if address.startswith("\0"):
                cure = "it has just ended"
            raise DaemonUnreachable(f"no helixd at {shown(address)} ({e.strerror or e}); {cure}") from e
    answer: dict[str, Any] = json.loads(text)
    about = question.about if isinstance(question, m.StatusAsk) else "status"
    if answer.get("about") != about:
        raise ProtocolError(
            f"helixd {answer.get('version')} at {shown(address)} cannot answer that; install one version of "
            "datahelix for both"
        )
    return answer


def _read_answer(sock: Any, address: str, deadline: float) -> str:
    text = ""
    readable = select.poll()
    readable.register(sock, select.POLLIN)
    while readable.poll(max(0.0, deadline - time.monotonic()) * 1000):
        received = channel.receive(sock)
        if received is None:
            raise DaemonUnreachable(f"helixd at {shown(address)} has just ended")
        match codec.to_ctl(received[0]):
            case m.Status(part, last):
                text += part
                if last:
                    return text
            case m.Refused(code, why):
                raise from_code(code, why)
            case m.Welcome():
                pass
    raise DaemonUnreachable(f"helixd at {shown(address)} did not answer within {ANSWER_LIMIT_S:.0f} s")
