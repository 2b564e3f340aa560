"""The links of jobs to other nodes: actions of the core in, what peers say out."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from helixd.core import actions as a
from libhelix.errors import ProtocolError, UsageError
from libhelix.wire import peer as p
from libhelix.wire.keys import new_keys

if TYPE_CHECKING:
    from helixd.runtime.peers import PeerLink


class Links:
    """By number. `tell` takes events, `log` what an operator should know."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        tell: Callable[[a.Event], None],
        log: Callable[[str], None],
        limit_s: float,
    ) -> None:
        self._selector = selector
        self._tell = tell
        self._log = log
        self._limit_s = limit_s
        self._links: dict[int, PeerLink] = {}
        self._reading: dict[int, Iterator[tuple[str, bytes, memoryview]]] = {}

    def open(self, action: a.OpenPeers) -> a.Event:
        """Make a link; what came of it."""
        from helixd.runtime.peers import PeerLink  # only for jobs of several nodes: it brings ZeroMQ

        keys = action.keys or new_keys()
        try:
            link = PeerLink(keys, action.host, action.port)
        except UsageError as e:
            return a.PeersFailed(action.link, str(e))
        self._links[action.link] = link
        for descriptor in link.descriptors():
            self._selector.register(descriptor, selectors.EVENT_READ, lambda: self._read(action.link))
        return a.PeersOpened(action.link, keys, link.port)

    def know(self, action: a.KnowPeers) -> None:
        """Whom to hear and to speak to."""
        link = self._links.get(action.link)
        if link is not None:
            try:
                link.know({peer.key: peer.address for peer in action.peers})
            except UsageError as e:
                self._log(str(e))

    def send(self, action: a.PeerSend, beside: memoryview | None = None) -> int:
        """Say something, if that can be done now; the core says again what is still needed. Bytes sent."""
        link = self._links.get(action.link)
        frames: list[bytes | memoryview] = [p.encode(action.said)]
        frames += [beside] if beside is not None else []
        return sum(map(len, frames)) if link is not None and link.send(action.key, *frames) else 0

    @property
    def unread(self) -> bool:
        """Whether something was left, that nothing will tell of."""
        return bool(self._reading)

    def read(self) -> None:
        """Listen on all links. Their descriptors tell of changes alone, and some of these get lost."""
        for number in list(self._links):
            self._read(number)

    def _read(self, number: int) -> None:
        link, until = self._links.get(number), time.monotonic() + self._limit_s
        if link is None:
            return
        said = self._reading.pop(number, None) or link.receive()
        for key, data, beside in said:
            try:
                self._tell(a.PeerSaid(number, key, p.decode(data), beside))
            except ProtocolError as e:
                self._log(f"a peer is not understood: {e}")
            if number not in self._links:
                return
            if time.monotonic() > until:
                self._reading[number] = said  # goes on in the next turn
                return

    def close(self, number: int) -> None:
        """Close a link."""
        link = self._links.pop(number, None)
        self._reading.pop(number, None)
        if link is not None:
            for descriptor in link.descriptors():
                with suppress(KeyError):
                    self._selector.unregister(descriptor)
            link.close()

    def close_all(self) -> None:
        """Close all."""
        for number in list(self._links):
            self.close(number)
