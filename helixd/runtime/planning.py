"""Long plans are made in a thread, so that the loop goes on: windows of many ranks take up to seconds.

A thread, not a process: a window of half a million rows would take longer to send than to plan. The loop
waits for it no longer than SWITCH_S, but for single numpy calls over the whole window.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import traceback
from collections import deque

from helixd.core.actions import Plan, Planned
from libhelix.errors import HelixError, ProtocolError
from libhelix.plan.opening import Opening
from libhelix.plan.planner import Planner, Window

SWITCH_S = 0.0005
"""For how long at most a plan keeps the loop waiting."""


def plan(planner: Planner, opening: Opening) -> Window | HelixError:
    """The window, or why there is none."""
    try:
        return planner.plan(opening)
    except HelixError as e:
        return e
    except Exception as e:  # noqa: BLE001  # a mistake of ours ends this loader, and no other
        traceback.print_exc()
        return ProtocolError(
            f"helixd made a mistake in planning ({type(e).__name__}: {e}); its log says where"
        )


class Planning:
    """The thread, which starts with the first long plan. Its `fileno` is readable when answers are there."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Plan | None] = queue.SimpleQueue()
        self._answers: deque[Planned] = deque()
        self._ready, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread: threading.Thread | None = None

    def fileno(self) -> int:
        """For selectors."""
        return self._ready

    def ask(self, action: Plan) -> None:
        """Plan a window."""
        if self._thread is None:
            sys.setswitchinterval(SWITCH_S)
            # Not waited for at the end: what it still plans nobody wants then.
            self._thread = threading.Thread(target=self._run, name="helix-plan", daemon=True)
            self._thread.start()
        self._asked.put(action)

    def answers(self) -> list[Planned]:
        """Windows that were planned since the last call."""
        try:
            os.read(self._ready, 4096)
        except BlockingIOError:
            pass
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def _run(self) -> None:
        try:
            while (action := self._asked.get()) is not None:
                self._answers.append(Planned(action.ticket, plan(action.planner, action.opening)))
                with contextlib.suppress(BlockingIOError):  # so many wait that the loop is about to read
                    os.write(self._wake, b"x")
        except BrokenPipeError:
            return  # closed meanwhile
        finally:
            os.close(self._wake)

    def close(self) -> None:
        """Stop once the plan in work is made."""
        os.close(self._ready)
        self._asked.put(None)
        if self._thread is None:
            os.close(self._wake)
