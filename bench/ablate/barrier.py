"""Where the ranks wait for one another at the end of a step, as gradients make them."""

from __future__ import annotations

import socket
import threading
from pathlib import Path


class Meeting:
    """The place: a socket at a path, and a thread that lets `size` ranks go on when all have come."""

    def __init__(self, path: Path, size: int) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(size)
        self._ranks: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, args=(size,), name="meeting", daemon=True)
        self._thread.start()

    def _serve(self, size: int) -> None:
        try:
            for _ in range(size):
                self._ranks.append(self._listener.accept()[0])
            while all(rank.recv(1) for rank in self._ranks):
                for rank in self._ranks:
                    rank.send(b"x")
        except OSError:
            pass  # closed, or a rank is gone
        for rank in self._ranks:
            rank.close()

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._listener, *self._ranks):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # gone already
        self._thread.join(1.0)
        self._listener.close()


class Place:
    """A rank's place at the meeting."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)

    def wait(self) -> None:
        """Until all ranks are here. Raises ConnectionError where one is gone."""
        self._socket.send(b"x")
        if not self._socket.recv(1):
            raise ConnectionError("another rank has ended")

    def close(self) -> None:
        """Leave; the others cannot meet any more."""
        self._socket.close()
