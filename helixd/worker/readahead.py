"""The next task's bytes are asked for while this one is decoded, where storage is slow.

Where files are in the page cache already, asking costs more than it gives; so it begins once tasks stall.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Sequence

from libhelix.recipe import Item

STALLED_SHARE = 0.05
"""Of their time that tasks have to wait for storage before reading ahead begins."""
MAX_BYTES = 64 << 20
"""Of one item. Of a longer one, only some groups are read as a rule, and where they lie is not known here."""
_QUEUED = 64
_NEW = 0.1


class ReadAhead:
    """Asks the kernel for files, from a thread: on network file systems opening alone takes a round trip."""

    def __init__(self) -> None:
        self._stalled = 0.0
        self._asked: queue.Queue[Item] = queue.Queue(_QUEUED)
        self._thread: threading.Thread | None = None

    def ended(self, wall_us: int, stall_us: int) -> None:
        """A task took so long, and stood still for so long in it."""
        if wall_us > 0:
            self._stalled += _NEW * (min(1.0, stall_us / wall_us) - self._stalled)

    @property
    def pays(self) -> bool:
        """Whether tasks have been waiting for storage."""
        return self._stalled > STALLED_SHARE

    def ask(self, items: Sequence[Item]) -> None:
        """Read these soon. What does not fit the queue is read when it is needed."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="helix-ahead", daemon=True)
            self._thread.start()
        for item in items:
            try:
                self._asked.put_nowait(item)
            except queue.Full:
                return

    def _run(self) -> None:
        while True:
            item = self._asked.get()
            if item.size <= MAX_BYTES:
                advise(item)


def advise(item: Item) -> None:
    """Have the kernel read an item. One that is gone is the task's to report."""
    try:
        fd = os.open(item.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.posix_fadvise(fd, item.offset, item.size, os.POSIX_FADV_WILLNEED)
    except OSError:
        return  # a pipe has taken its place
    finally:
        os.close(fd)
