"""How long an accelerator takes for each batch, by events that nobody waits for.

The host is through with a step long before the device is, so what it measures says little about computing. A
mark goes into the current stream when a batch is handed out, and one when the next is asked for; the time
between them is known once the device has passed both, mostly a batch or two later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from libhelix.accelerator import Accelerator, Event
from libhelix.wire.messages import Measured
from libhelix.wire.settings import Position

_AHEAD = 64
"""Batches that the host may be ahead of the device; what is older is never known."""
_UNKNOWN = Measured(Position(0, 0, 0), 0)


@dataclass(eq=False)
class _Window:
    """From one batch to the next question, and what of it the trainer said to be computing."""

    at: Position
    begin: Event
    end: Event | None = None
    spans: list[tuple[Event, Event]] = field(default_factory=list)


class DeviceWindows:
    """The windows of one loader's batches on an accelerator. Off where it has no marks."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._on = True
        self._open: _Window | None = None
        self._inside = False
        self._over: deque[_Window] = deque(maxlen=_AHEAD)

    def taken(self, at: Position) -> None:
        """A batch is handed out; what is queued from here on is its work."""
        begin = self._mark()
        self._open = _Window(at, begin) if begin is not None else None

    def asked(self) -> None:
        """The next batch is asked for."""
        window, self._open = self._open, None
        if window is None:
            return
        window.end = self._mark()
        self._over.append(window)

    def restarted(self) -> None:
        """The next batch does not follow the last: what the trainer does between them is not its window."""
        self._open = None

    @contextmanager
    def computing(self) -> Iterator[None]:
        """What is queued inside is computing of the batch that was handed out last; several add up."""
        window = self._open
        if window is None or self._inside:  # counted by the outer one
            yield
            return
        begin, self._inside = self._mark(), True
        try:
            yield
        finally:
            self._inside = False
            end = self._mark()
            if begin is not None and end is not None:
                window.spans.append((begin, end))

    def measured(self) -> Measured | None:
        """The oldest window that the device is through with and that was not told; None where windows are not
        measured at all."""
        if not self._on:
            return None
        if not self._over or not all(mark.query() for mark in _marks(self._over[0])):
            return _UNKNOWN
        window = self._over.popleft()
        assert window.end is not None, "seen above"
        spans = window.spans or [(window.begin, window.end)]
        took_s = sum(self._accelerator.elapsed_s(begin, end) for begin, end in spans)
        return Measured(window.at, max(1, int(took_s * 1e6)), bool(window.spans))

    def _mark(self) -> Event | None:
        mark = self._accelerator.mark() if self._on else None
        self._on = mark is not None
        return mark


def _marks(window: _Window) -> Iterator[Event]:
    """All of a window that is over."""
    assert window.end is not None
    yield from (window.begin, window.end)
    for span in window.spans:
        yield from span
