"""What a loader tells and hears from its daemon, seen from inside the trainer's process."""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

from libhelix.client import Client
from libhelix.wire import messages as m


class Watch:
    """While it is open: how often loaders had to ask, and when they were connected.

    A loader asks only if the batch was not there when next() was called: a next() without an ask got a batch
    that was ready. Nothing else tells them apart from outside.
    """

    def __init__(self) -> None:
        self.asks = 0
        self.connected_at_s = 0.0

    def __enter__(self) -> Watch:
        send, init = Client.send, Client.__init__

        def counting(client: Client, message: Any) -> None:
            self.asks += isinstance(message, m.Ask)
            send(client, message)

        def timed(client: Client, *arguments: Any) -> None:
            init(client, *arguments)
            self.connected_at_s = time.perf_counter()

        self._patches = mock.patch.multiple(Client, send=counting, __init__=timed)
        self._patches.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.stop()
