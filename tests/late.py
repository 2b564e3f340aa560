"""An accelerator that copies when somebody waits for it, from raw addresses, as a DMA engine does."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class Passed:
    """An event of the late accelerator."""

    def __init__(self) -> None:
        self.done = False
        self.passed_s = 0.0

    def query(self) -> bool:
        return self.done


class Late:
    """Nothing is copied before `step`, or before an event is waited for. It keeps no host tensor alive."""

    def __init__(self, *, registers: bool = True, pins: bool = True, marks: bool = False) -> None:
        self.queue: deque[Callable[[], None]] = deque()
        self.registers, self.pins, self.marks = registers, pins, marks
        self.hangs = False
        self.copying = 0
        self.clock_s = 0.0
        self.staged = self.registered = self.unregistered = self.kept = 0

    def step(self) -> None:
        self.queue.popleft()()

    def side(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        device = torch.zeros(host.shape, dtype=host.dtype)
        if not host.is_contiguous():  # torch makes a copy that is contiguous, and waits for it to be read
            device.copy_(host)
            return device
        source, nbytes = host.data_ptr(), host.nbytes

        def copy() -> None:
            ctypes.memmove(device.data_ptr(), source, nbytes)
            self.copying -= 1

        if nbytes:
            self.copying += 1
            self.queue.append(copy)
        return device

    def stage(self, host: torch.Tensor) -> torch.Tensor | None:
        if not self.pins:
            return None
        self.staged += 1
        return host.clone()

    def register(self, memory: memoryview) -> Callable[[], None] | None:
        if not self.registers:
            return None
        self.registered += 1

        def undo() -> None:
            assert not self.copying, "memory is unregistered while the device reads it"
            self.unregistered += 1

        return undo

    def event(self) -> Passed:
        event = Passed()

        def passed() -> None:
            event.done, event.passed_s = True, self.clock_s

        self.queue.append(passed)
        return event

    def finish(self, event: Any, limit_s: float) -> bool:
        while not event.done and not self.hangs:
            self.step()
        return bool(event.done)

    def compute(self, seconds: float) -> None:
        """Queue work that takes so long by the device's clock."""

        def work() -> None:
            self.clock_s += seconds

        self.queue.append(work)

    def mark(self) -> Passed | None:
        return self.event() if self.marks else None

    def elapsed_s(self, begin: Any, end: Any) -> float:
        assert begin.done
        assert end.done
        return float(end.passed_s - begin.passed_s)

    def wait(self, event: Any) -> None:
        self.finish(event, 0)

    def keep(self, tensor: torch.Tensor) -> None:
        self.kept += 1
