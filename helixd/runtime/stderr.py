"""stderr may be the pipe of a trainer that nobody reads: a daemon must neither wait for it nor die of it."""

from __future__ import annotations

import os
import select

_STDERR = 2


def say(text: str) -> None:
    """Write a line to stderr, if that does not block; else it is lost, like the reader's interest in it."""
    line = text.encode("utf-8", "backslashreplace")[: select.PIPE_BUF - 1] + b"\n"
    writable = select.poll()
    writable.register(_STDERR, select.POLLOUT)
    try:
        # A pipe that is writable takes PIPE_BUF bytes at once.
        if any(event & select.POLLOUT for _, event in writable.poll(0)):
            os.write(_STDERR, line)
    except OSError:
        return  # its reader is gone
