"""Ctrl-C reaches a whole process group; the parent alone should act on it, and not between two starts."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def shielded_children() -> Iterator[None]:
    """Processes started inside never see SIGINT: they inherit it blocked, and whoever uses this ends them.

    SIGINT and SIGTERM that come meanwhile act on us at the end, so that no child is half started.
    """
    pending: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {n: signal.signal(n, lambda number, _: pending.append(number)) for n in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if pending:
            signal.raise_signal(pending[0])
