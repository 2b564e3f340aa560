"""Virtual time: a queue of what happens when."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

START_S = 1000.0
"""Helixd takes a time of 0 for one that it was not told."""


class Clock:
    """Runs what was put in, in order of time, and of entry where times are equal."""

    def __init__(self) -> None:
        self.now = START_S
        self.events = 0
        self._queue: list[tuple[float, int, Callable[[Any], None], Any]] = []

    def after(self, seconds: float, act: Callable[[Any], None], what: Any) -> None:
        """Call `act(what)` then."""
        self.events += 1
        heapq.heappush(self._queue, (self.now + seconds, self.events, act, what))

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Until nothing is to come, or it is so."""
        queue = self._queue
        while queue and not until():
            self.now, _, act, what = heapq.heappop(queue)
            act(what)
