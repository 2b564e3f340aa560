"""HTTP for monitoring, inside the daemon's loop: /metrics, /healthz, /readyz.

In the loop and not in a thread: the core has no locks, and that /healthz is answered then says that the loop
turns. No socket blocks; who is slow, talks much or comes in crowds is cut off and costs nobody else anything.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

from helixd.errors import ConfigError
from helixd.runtime.exposition import CONTENT_TYPE, Exposition

MOST_CONNECTIONS = 16
MOST_REQUEST_BYTES = 4096
LIMIT_S = 5.0
"""From a connection's beginning to its end."""
FRESH_S = 0.25
"""Who asks more often gets the same text: its making is not free."""
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Unavailable"}


def listen(where: str) -> socket.socket:
    """A listening socket at "HOST:PORT", ":PORT" (of localhost) or a path. Raises ConfigError."""
    try:
        if "/" in where:
            return _listen_at(where)
        host, colon, port = where.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f"--metrics {where}: write HOST:PORT, such as localhost:9464, or a path")
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]") or "localhost", int(port), type=socket.SOCK_STREAM
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(MOST_CONNECTIONS)
        except OSError:
            sock.close()
            raise
    except OSError as e:
        raise ConfigError(f"--metrics {where}: {e.strerror or e}; choose another address") from e
    sock.setblocking(False)
    return sock


def _listen_at(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            sock.bind(path)
        except OSError as e:
            if e.errno != errno.EADDRINUSE or not stat.S_ISSOCK(os.lstat(path).st_mode) or _answers(path):
                raise
            Path(path).unlink()  # a dead daemon left it
            sock.bind(path)
        sock.listen(MOST_CONNECTIONS)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.2)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True


class Scrape:
    """The endpoint. The loop gives it its selector, and calls `expire` when `deadline` has come."""

    def __init__(
        self,
        listener: socket.socket,
        exposition: Exposition,
        selector: selectors.BaseSelector,
        ready: Callable[[], bool],
    ) -> None:
        self._listener = listener
        self._exposition = exposition
        self._selector = selector
        self._ready = ready
        self._clients: dict[socket.socket, _Client] = {}
        self._text = b""
        self._made: float | None = None
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def deadline(self) -> float | None:
        """When the oldest connection has had its time."""
        return min((c.since + LIMIT_S for c in self._clients.values()), default=None)

    def expire(self, now: float) -> None:
        """Cut off who has had its time."""
        for client in list(self._clients.values()):
            if now >= client.since + LIMIT_S:
                self._drop(client)

    def close(self) -> None:
        """End all; a path is removed, if it is still ours."""
        for client in list(self._clients.values()):
            self._drop(client)
        self._selector.unregister(self._listener)
        path = self._listener.getsockname() if self._listener.family == socket.AF_UNIX else None
        self._listener.close()
        if path:
            Path(path).unlink(missing_ok=True)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # gone again, or no descriptors: the next scrape comes
        if len(self._clients) >= MOST_CONNECTIONS:
            sock.close()
            return
        sock.setblocking(False)
        client = _Client(sock, time.monotonic())
        self._clients[sock] = client
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._turn(client))

    def _turn(self, client: _Client) -> None:
        if client.sock not in self._clients:
            return
        try:
            over = self._write(client) if client.answering else self._read(client)
        except BlockingIOError:
            return
        except OSError:
            over = True
        if over:
            self._drop(client)

    def _read(self, client: _Client) -> bool:
        part = client.sock.recv(MOST_REQUEST_BYTES + 1 - len(client.request))
        if not part:
            return True
        client.request += part
        if b"\r\n\r\n" not in client.request and b"\n\n" not in client.request:
            if len(client.request) <= MOST_REQUEST_BYTES:
                return False
            client.answer = _answer(400, b"the request is too long\n")
        else:
            client.answer = self._answered(client.request)
        client.answering = True
        self._selector.modify(client.sock, selectors.EVENT_WRITE, lambda: self._turn(client))
        return self._write(client)

    @staticmethod
    def _write(client: _Client) -> bool:
        sent = client.sock.send(client.answer)
        client.answer = client.answer[sent:]
        if client.answer:
            return False
        client.sock.shutdown(socket.SHUT_WR)
        return True

    def _answered(self, request: bytes) -> bytes:
        words = request.split(b"\n", 1)[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _answer(400, b"not HTTP\n")
        if words[0] not in (b"GET", b"HEAD"):
            return _answer(405, b"only GET\n")
        code, body, kind = self._found(words[1].split(b"?", 1)[0])
        return _answer(code, body, kind, head=words[0] == b"HEAD")

    def _found(self, path: bytes) -> tuple[int, bytes, str]:
        if path == b"/metrics":
            now = time.monotonic()
            if self._made is None or now >= self._made + FRESH_S:
                self._text, self._made = self._exposition.text(), now
            return 200, self._text, CONTENT_TYPE
        if path == b"/healthz":
            return 200, b"ok\n", "text/plain"
        if path == b"/readyz":
            return (200, b"ok\n", "text/plain") if self._ready() else (503, b"stopping\n", "text/plain")
        return 404, b"/metrics, /healthz, /readyz\n", "text/plain"

    def _drop(self, client: _Client) -> None:
        del self._clients[client.sock]
        self._selector.unregister(client.sock)
        client.sock.close()


class _Client:
    def __init__(self, sock: socket.socket, since: float) -> None:
        self.sock = sock
        self.since = since
        self.request = b""
        self.answer = b""
        self.answering = False


def _answer(code: int, body: bytes, kind: str = "text/plain", *, head: bool = False) -> bytes:
    lines = (
        f"HTTP/1.1 {code} {_REASONS[code]}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + (b"" if head else body)
