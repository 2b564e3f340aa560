"""What systemd is told of the daemon: that it is ready, alive, stopping, and how it stands.

Without systemd (NOTIFY_SOCKET) nothing is told.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

STATUS_EVERY_S = 1.0


class Notify:
    """Speaks to systemd, and never waits for it."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._alive_every_s = _watchdog_s(environ) / 2 if self._address else 0.0
        self._alive_at = self._status_at = 0.0
        self._status = ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def say(self, text: str) -> None:
        """Tell lines such as READY=1. What systemd does not take at once is lost."""
        if not self._address:
            return
        try:
            self._socket.sendto(text.encode(), self._address)
        except OSError:
            return  # it is busy, or gone: there is nobody to tell

    def alive(self, now: float, status: Callable[[], str]) -> None:
        """The loop has come round. The status is told when it changes, at most once a second."""
        if not self._address:
            return
        if self._alive_every_s and now >= self._alive_at:
            self._alive_at = now + self._alive_every_s
            self.say("WATCHDOG=1")
        if now >= self._status_at:
            self._status_at, before, self._status = now + STATUS_EVERY_S, self._status, status()
            if self._status != before:
                self.say(f"STATUS={self._status}")

    def deadline(self) -> float | None:
        """When `alive` has to be called again, or None."""
        return self._alive_at if self._alive_every_s else None

    def close(self) -> None:
        """Nothing is told any more."""
        self._socket.close()


def _watchdog_s(environ: Mapping[str, str]) -> float:
    ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    microseconds = environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if ours and microseconds.isdigit() else 0.0
