"""Batches on an accelerator: copied on a side stream ahead of the trainer, while leases outlive the copies.

torch does not know that it reads foreign memory, so events are recorded here: an extent is released only once
the event after its copy is done. That is looked at whenever a batch is asked for, and waited for only where
more copies run than `device_prefetch` allows, and at close.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from libhelix.batch import Batch, Taken
from libhelix.errors import UsageError
from libhelix.wire.settings import Position, Settings, Start

Tier = Literal["registered", "staged", "plain"]
Transform = Callable[[torch.Tensor], torch.Tensor]


class Event(Protocol):
    """A point in a stream."""

    def query(self) -> bool:
        """Whether the stream has passed it."""

    def synchronize(self) -> None:
        """Wait until it has."""


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
        probe = torch.frombuffer(memory, dtype=torch.uint8)
        address, runtime = probe.data_ptr(), _host_registry(self._device.type)
        if runtime is None:
            return None
        register, unregister = runtime
        try:
            if int(register(address, len(memory), 0)) != 0:
                return None
        except (RuntimeError, TypeError, ValueError):
            return None

        def undo() -> None:
            with contextlib.suppress(RuntimeError):
                unregister(probe.data_ptr())  # which keeps the memory mapped until then

        # Both ends: the ring is mapped twice in a row, and a batch may lie over its end.
        if probe[:1].is_pinned() and probe[-1:].is_pinned():
            return undo
        undo()
        return None

    def event(self) -> Event:
        """An event recorded on the side stream."""
        event = torch.Event(device=self._device)
        event.record(self._stream)
        return event

    def wait(self, event: Event) -> None:
        """The current stream waits, the host does not."""
        torch.accelerator.current_stream(self._device).wait_event(event)  # type: ignore[arg-type]

    def keep(self, tensor: torch.Tensor) -> None:
        """torch's allocator does not give the memory away before the current stream is through."""
        tensor.record_stream(torch.accelerator.current_stream(self._device))


def _host_registry(kind: str) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """The driver's calls that register and unregister host memory, where a kind of device has them."""
    names = {"cuda": ("cudart", "cudaHost"), "npu": ("npurt", "npuHost")}
    if kind not in names:
        return None
    library, prefix = names[kind]
    try:
        runtime = getattr(getattr(torch, kind), library)()
        return getattr(runtime, f"{prefix}Register"), getattr(runtime, f"{prefix}Unregister")
    except (AttributeError, RuntimeError):  # an older torch_npu, or an older driver
        return None


def resolved(device: str | torch.device) -> torch.device | None:
    """The device that is meant; None where "auto" finds none. Raises UsageError for one that is not there."""
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


@dataclass(frozen=True)
class Normalize:
    """uint8 to (x / 255 - mean) / std, by channel, on the device; `layout="THWC"` says that channels come
    last and are moved before height and width, "TCHW" that they are there already. [B, T] may come first."""

    mean: Sequence[float]
    std: Sequence[float]
    dtype: torch.dtype = torch.float32
    layout: Literal["TCHW", "THWC"] = "TCHW"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The normalised tensor."""
        if self.layout == "THWC":
            x = x.movedim(-1, -3)
        # In float32: bfloat16 cannot tell all of 256 values apart.
        scale = _by_channel([1 / (255 * s) for s in self.std], x.device)
        shift = _by_channel([-m / s for m, s in zip(self.mean, self.std)], x.device)
        return torch.addcmul(shift, x.to(torch.float32), scale).to(self.dtype).contiguous()


def _by_channel(values: Sequence[float], device: torch.device) -> torch.Tensor:
    """[C, 1, 1], filled on the device: a copy from the host would wait for the stream."""
    return torch.stack([torch.full((1, 1), value, device=device) for value in values])


class Source(Protocol):
    """Where host batches come from."""

    def start(self, start: Start) -> None:
        """Begin decoding."""

    def seek(self, start: Start) -> None:
        """Go on elsewhere."""

    def go_on_with(self, settings: Settings) -> None:
        """Go on with other settings."""

    def take(self, start: Start) -> Taken:
        """The next batch, waited for."""

    def poll(self, at: Position) -> Taken | None:
        """The batch of a position, if it is there and the ring can spare it."""

    def took(self, at: Position, asked: float) -> None:
        """A batch is handed to the trainer, which asked for it then."""

    def computing(self) -> AbstractContextManager[None]:
        """What happens inside is computing."""

    def close(self) -> None:
        """Leave."""

    def now(self) -> float:
        """The clock of `took`."""

    def memory(self) -> memoryview | None:
        """The ring's memory, once there is one."""


@dataclass(frozen=True)
class _Copy:
    """A batch whose copy to the device is queued; it is there after the event."""

    taken: Taken
    event: Event


class OnDevice:
    """A source whose batches come as device tensors, the next ones copied while the trainer computes."""

    def __init__(
        self, source: Source, accelerator: Accelerator, prefetch: int, transforms: Mapping[str, Transform]
    ) -> None:
        self._source = source
        self._accelerator = accelerator
        self._prefetch = prefetch
        self._transforms = transforms
        self._ahead: deque[_Copy] = deque()
        self._reading: _Reading = deque()
        self._registered: weakref.ref[memoryview] | None = None
        self._undo: list[Callable[[], None]] = []
        # A loader that is forgotten without close: the device may still read what would be unmapped.
        weakref.finalize(self, _leave, self._reading, self._undo).atexit = False
        self.tier: Tier | None = None
        """How bytes reach the device, once the first batch went."""

    # ---- what a loader asks ------------------------------------------------------------------------

    def start(self, start: Start) -> None:
        """Begin decoding."""
        self._source.start(start)

    def seek(self, start: Start) -> None:
        """Another batch comes next; what was copied ahead is dropped, once its copy is done."""
        self._ahead.clear()
        self._source.seek(start)

    def go_on_with(self, settings: Settings) -> None:
        """Other settings: what was copied ahead is dropped."""
        self._ahead.clear()
        self._source.go_on_with(settings)

    def next(self, start: Start) -> Taken:
        """The batch of a position on the device: the current stream waits for its copy, the host does not."""
        asked = self._source.now()
        _let_go(self._reading)
        if not self._ahead:
            # It will be waited for anyway: extents that are still held would make it a private copy.
            _let_go(self._reading, at_most=0)
            self._ahead.append(self._begin(self._source.take(start)))
        # Looked ahead before anything is handed out: an error here costs no batch.
        while len(self._ahead) <= self._prefetch:
            taken = self._source.poll(self._ahead[-1].taken.following)
            if taken is None:
                break
            self._ahead.append(self._begin(taken))
        copy = self._ahead.popleft()
        self._accelerator.wait(copy.event)
        for tensor in _each(copy.taken.batch):
            self._accelerator.keep(tensor)
        self._source.took(start.at, asked)
        return copy.taken

    def computing(self) -> AbstractContextManager[None]:
        """What happens inside is computing the batch that was taken last."""
        return self._source.computing()

    def close(self) -> None:
        """Wait for the copies in flight, then leave: no extent returns while the device reads it."""
        self._ahead.clear()
        _leave(self._reading, self._undo)
        self._source.close()

    # ---- copies ------------------------------------------------------------------------------------

    def _begin(self, taken: Taken) -> _Copy:
        _let_go(self._reading, at_most=self._prefetch)
        unknown = sorted(self._transforms.keys() - taken.batch.keys())
        if unknown:
            raise UsageError(f"to_device={unknown}: the recipe has the fields {sorted(taken.batch)}")
        self._look_at_memory()
        holds: list[torch.Tensor] = []
        host, moved = taken.batch, Batch(taken.batch)
        with self._accelerator.side():
            for name, value in host.items():
                on_device = self._up(value, holds)
                transform = self._transforms.get(name)
                if transform is not None:
                    many = isinstance(on_device, list)
                    on_device = [transform(v) for v in on_device] if many else transform(on_device)
                moved[name] = on_device
        event = self._accelerator.event()
        self._reading.append((event, holds))
        # The host batch goes: its tensors live in `holds` alone, and with them the lease.
        return _Copy(taken._replace(batch=moved), event)

    def _up(self, value: Any, holds: list[torch.Tensor]) -> Any:
        """Queue the copies of a field; what they read is added to `holds`."""
        if isinstance(value, list):
            return [self._up(v, holds) for v in value]
        if not isinstance(value, torch.Tensor):
            return value
        if self.tier == "staged":
            staged = self._accelerator.stage(value)
            if staged is None:
                self.tier = "plain"
            else:
                value = staged
        holds.append(value)
        return self._accelerator.upload(value)

    def _look_at_memory(self) -> None:
        """Find out how batches are copied; asked of the driver once for every ring."""
        memory = self._source.memory()
        known = self._registered() if self._registered is not None else None
        if self.tier is None or (memory is not None and known is not memory):
            _leave(self._reading, self._undo)  # the ring before
            undo = self._accelerator.register(memory) if memory is not None else None
            self._undo += [undo] if undo is not None else []
            self._registered = weakref.ref(memory) if memory is not None else None
            self.tier = "registered" if undo is not None else "staged"


_Reading = deque[tuple[Event, list[torch.Tensor]]]


def _let_go(reading: _Reading, at_most: int | None = None) -> None:
    """Release the extents whose copies are done; wait for the oldest where more than `at_most` run."""
    while reading:
        event, holds = reading[0]
        if not event.query():
            if at_most is None or len(reading) <= at_most:
                return
            event.synchronize()
        holds.clear()
        reading.popleft()


def _leave(reading: _Reading, undo: list[Callable[[], None]]) -> None:
    """Wait for all copies, then take back what was registered."""
    _let_go(reading, at_most=0)
    while undo:
        undo.pop()()


def _each(batch: Batch) -> list[torch.Tensor]:
    found = []
    for value in batch.values():
        found += [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, torch.Tensor)]
    return found
