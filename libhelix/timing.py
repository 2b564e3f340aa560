"""What a trainer's loop takes: how long it waits for input, and how long it is busy with each batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from libhelix.wire.messages import Measured, Taking
from libhelix.wire.settings import Position


class WindowClock:
    """The times of one loader's batches."""

    def __init__(self) -> None:
        self._returned: float | None = None
        self._computed: float | None = None
        self._inside = False

    def taking(self, at: Position, asked: float, measured: Measured | None = None) -> Taking:
        """`next()`, which was called at `asked` on the monotonic clock, is about to return a batch.
        `measured` is passed on."""
        now = time.monotonic()
        busy, computing = 0.0, self._computed is not None
        if self._computed is not None:
            busy = self._computed
        elif self._returned is not None:
            busy = asked - self._returned
        self._returned, self._computed = now, None
        return Taking(at, int((now - asked) * 1e6), int(now * 1e6), int(busy * 1e6), computing, measured)

    def restarted(self) -> None:
        """The next batch does not follow the last: what the trainer does between them is not its window."""
        self._returned, self._computed = None, None

    @contextmanager
    def computing(self) -> Iterator[None]:
        """What happens inside is computing of the batch that was returned last; several add up."""
        if self._inside:  # counted by the outer one
            yield
            return
        began, self._inside = time.monotonic(), True
        try:
            yield
        finally:
            self._inside = False
            self._computed = (self._computed or 0.0) + time.monotonic() - began
