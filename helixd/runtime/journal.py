"""Where the daemon's log goes: to systemd's journal, with fields that it can be asked for, or to stderr.

Under systemd, where JOURNAL_STREAM names what stderr is, a record is one datagram of the journal's own
protocol: lines KEY=value, and a value that has lines of its own as KEY, its length and its bytes. What the
journal does not take at once is written to stderr, which leads to the journal, too.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping

from helixd.core.actions import About
from helixd.runtime.stderr import say

SOCKET = "/run/systemd/journal/socket"
MOST_BYTES = 32 << 10
"""Of a value: with all of them at their longest, the kernel takes a record as one datagram."""
_PRIORITIES = {"info": 6, "warning": 4, "error": 3}
_STDERR = 2


class Journal:
    """Takes records, and never waits for who reads them."""

    def __init__(self, environ: Mapping[str, str] = os.environ, address: str = SOCKET) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        if environ.get("JOURNAL_STREAM") == _identity(_STDERR):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    def write(self, level: str, text: str, about: About | None = None) -> None:
        """A record of level info, warning or error, and what it is about."""
        if self._socket is not None:
            fields = {
                "MESSAGE": text,
                "PRIORITY": _PRIORITIES[level],
                "SYSLOG_IDENTIFIER": "helixd",
                **dict(_fields(about)),
            }
            try:
                self._socket.sendto(b"".join(_encoded(k, v) for k, v in fields.items()), self._address)
            except OSError:
                pass  # the journal is busy, is being restarted, or is not in this container
            else:
                return
        say(f"helixd: {level}: {text}")

    def close(self) -> None:
        """From now on records go to stderr."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _fields(about: About | None) -> Iterator[tuple[str, str | int]]:
    if about is None:
        return
    named = {
        "USER": about.uid,
        "PID": about.pid,
        "JOB": about.job,
        "LOADER": about.loader,
        "SAMPLE": about.sample,
    }
    yield from ((f"HELIX_{name}", value) for name, value in named.items() if value is not None)
    if about.code is not None:
        yield "CODE_FILE", about.code[0]
        yield "CODE_LINE", about.code[1]


def _encoded(name: str, value: str | int) -> bytes:
    data = str(value).encode("utf-8", "backslashreplace")[:MOST_BYTES]
    if b"\n" in data:
        return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
    return name.encode() + b"=" + data + b"\n"


def _identity(fd: int) -> str | None:
    """What JOURNAL_STREAM would say of a descriptor."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return f"{status.st_dev}:{status.st_ino}"
