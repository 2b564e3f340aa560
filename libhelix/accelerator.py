"""An accelerator as batches need it: copies on a side stream, events, and memory that it reads by itself."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from libhelix.errors import UsageError

_POLL_S = 100e-6
_ACL_HOST_REG_PINNED = 0x10000000  # acl_rt.h; 0, which CUDA takes, is no valid flag there


class Event(Protocol):
    """A point in a stream."""

    def query(self) -> bool:
        """Whether the stream has passed it."""


class Accelerator(Protocol):
    """What is needed of a device; tests have one of their own, whose copies are late."""

    def side(self) -> AbstractContextManager[Any]:
        """Inside, work is queued on the side stream."""

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        """Queue a copy to the device. It may still read `host` when this returns."""

    def stage(self, host: torch.Tensor) -> torch.Tensor | None:
        """A pinned copy, finished now; None where memory cannot be pinned."""

    def register(self, memory: memoryview) -> Callable[[], None] | None:
        """Let the device read this memory by itself. What undoes it; None where that is not possible."""

    def event(self) -> Event:
        """An event after everything that the side stream was given."""

    def finish(self, event: Event, limit_s: float) -> bool:
        """Wait here until the event is passed, or for so long; returns whether it is."""

    def mark(self) -> Event | None:
        """An event that has a time, after everything that the current stream was given; None where there are
        none."""

    def elapsed_s(self, begin: Event, end: Event) -> float:
        """The time between two marks, both of which are passed."""

    def wait(self, event: Event) -> None:
        """Work queued on the current stream from here on comes after the event."""

    def keep(self, tensor: torch.Tensor) -> None:
        """The current stream uses a tensor that the side stream allocated."""


class TorchAccelerator:
    """A device of torch, through what all of them have in common (torch 2.7 or newer)."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.Stream(device=device)

    def side(self) -> AbstractContextManager[Any]:
        """Inside, the side stream is the current one."""
        return self._stream

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        """Queue a copy; of pageable memory it is torch that waits."""
        return host.to(self._device, non_blocking=True)

    def stage(self, host: torch.Tensor) -> torch.Tensor | None:
        """A copy in memory of torch's own pinned pool, which reuses it by itself."""
        try:
            staged = torch.empty(host.shape, dtype=host.dtype, pin_memory=True)
        except RuntimeError:
            return None
        return staged.copy_(host)

    def register(self, memory: memoryview) -> Callable[[], None] | None:
        """Register memory with the driver, and believe it only where torch then sees it as pinned."""
        probe, driver = torch.frombuffer(memory, dtype=torch.uint8), _host_registry(self._device.type)
        if driver is None:
            return None
        register, unregister, flags = driver
        try:
            with self._stream:  # on its device
                if int(register(probe.data_ptr(), len(memory), flags)) != 0:
                    self._clear_error()
                    return None
        except (RuntimeError, TypeError, ValueError):
            return None

        def undo() -> None:
            with contextlib.suppress(RuntimeError):
                if unregister(probe.data_ptr()):  # which keeps the memory mapped until then
                    self._clear_error()

        # Both ends: the ring is mapped twice in a row, and a batch may lie over its end.
        if probe[:1].is_pinned() and probe[-1:].is_pinned():
            return undo
        undo()
        return None

    def _clear_error(self) -> None:
        """CUDA keeps its last error, and torch takes it for one of the next kernel: be that this one."""
        if self._device.type == "cuda":
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=self._device)

    def event(self) -> Event:
        """An event recorded on the side stream."""
        event = torch.Event(device=self._device)
        event.record(self._stream)
        return event

    def finish(self, event: Event, limit_s: float) -> bool:
        """Looks again and again: torch's own wait has no limit."""
        deadline = time.monotonic() + limit_s
        while not event.query():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def mark(self) -> Event | None:
        """A timing event on the current stream."""
        try:
            event = torch.Event(device=self._device, enable_timing=True)
            event.record(torch.accelerator.current_stream(self._device))
        except (RuntimeError, NotImplementedError):  # a kind of device that has none
            return None
        return event

    def elapsed_s(self, begin: Event, end: Event) -> float:
        """By the device's clock."""
        assert isinstance(begin, torch.Event)
        assert isinstance(end, torch.Event)
        return begin.elapsed_time(end) * 1e-3

    def wait(self, event: Event) -> None:
        """The current stream waits, the host does not."""
        torch.accelerator.current_stream(self._device).wait_event(event)  # type: ignore[arg-type]

    def keep(self, tensor: torch.Tensor) -> None:
        """torch's allocator does not give the memory away before the current stream is through."""
        tensor.record_stream(torch.accelerator.current_stream(self._device))


def _host_registry(kind: str) -> tuple[Callable[..., Any], Callable[..., Any], int] | None:
    """The driver's calls that register and unregister host memory, and the flags for memory that is only
    copied from, where a kind of device has them."""
    names = {"cuda": ("cudart", "cudaHost", 0), "npu": ("npurt", "npuHost", _ACL_HOST_REG_PINNED)}
    if kind not in names:
        return None
    library, prefix, flags = names[kind]
    try:
        runtime = getattr(getattr(torch, kind), library)()
        return getattr(runtime, f"{prefix}Register"), getattr(runtime, f"{prefix}Unregister"), flags
    except (AttributeError, RuntimeError):  # an older torch_npu, or an older driver
        return None


def resolved(device: str | torch.device) -> torch.device | None:
    """The device that is meant; None for the CPU, and where "auto" finds none. Raises UsageError for one that
    is not there."""
    if str(device) == "cpu":
        return None
    if not hasattr(torch, "accelerator"):
        if device == "auto":
            return None
        raise UsageError(f"device={str(device)!r} needs torch 2.7 or newer, this is {torch.__version__}")
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device == "auto":
        wanted = found
    else:
        try:
            wanted = torch.device(device)
        except RuntimeError as e:
            raise UsageError(f"device={str(device)!r} is none of torch's: {str(e).splitlines()[0]}") from e
    if wanted is None:
        return None
    if found is None or wanted.type != found.type:
        there = f"the accelerator here is {found.type}" if found else "torch sees no accelerator here"
        raise UsageError(f'device={str(device)!r}: {there}; use device="auto", or None for host tensors')
    index = torch.accelerator.current_device_index() if wanted.index is None else wanted.index
    return torch.device(wanted.type, index)
