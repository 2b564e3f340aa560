"""Batches on an accelerator: copied on a side stream ahead of the trainer, while leases outlive the copies.

torch does not know that it reads foreign memory, so events are recorded here: an extent is released only once
the event after its copy is done. That is looked at whenever a batch is asked for, and waited for only where
more copies run than `device_prefetch` allows, and at close, for a limited time: an extent that the device
never passed is never released.
"""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from libhelix.accelerator import Accelerator, Event
from libhelix.batch import Batch, Taken
from libhelix.errors import Stalled, UsageError
from libhelix.windows import DeviceWindows
from libhelix.wire.messages import Measured, Tier
from libhelix.wire.settings import Position, Settings, Start

Transform = Callable[[torch.Tensor], Any]
LEAVE_S = 10.0
"""How long close waits for copies; they take milliseconds, or the device hangs."""


@dataclass(frozen=True)
class Normalize:
    """uint8 to (x / 255 - mean) / std, by channel, on the device; `layout="THWC"` says that channels come
    last and are moved before height and width, "TCHW" that they are there already. [B, T] may come first.
    Raises UsageError for tensors whose channels are not as many as the means."""

    mean: Sequence[float]
    std: Sequence[float]
    dtype: torch.dtype = torch.float32
    layout: Literal["TCHW", "THWC"] = "TCHW"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The normalised tensor."""
        axis = -1 if self.layout == "THWC" else -3
        if x.ndim < 3 or not x.shape[axis] == len(self.mean) == len(self.std):
            raise UsageError(
                f"Normalize: {len(self.mean)} means, {len(self.std)} deviations, and a tensor {[*x.shape]} "
                f"whose axis {axis} is to hold channels (layout={self.layout!r}); for patches of pixels "
                "take Affine(*recipe.scale_and_shift())"
            )
        if self.layout == "THWC":
            x = x.movedim(-1, -3)
        scale = _by_channel([1 / (255 * s) for s in self.std], x.device)
        shift = _by_channel([-m / s for m, s in zip(self.mean, self.std)], x.device)
        return _scaled(x, scale, shift, self.dtype)


@dataclass(frozen=True)
class Affine:
    """x * scale + shift over the last axis, on the device, such as the patches of a recipe's pixels:
    `Affine(*recipe.scale_and_shift())`. `scale` and `shift` have as many values as that axis, or one."""

    scale: Sequence[float]
    shift: Sequence[float]
    dtype: torch.dtype = torch.float32
    _on: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The scaled tensor. Raises UsageError where its last axis is another."""
        if x.ndim < 1 or not {len(self.scale), len(self.shift)} <= {1, x.shape[-1]}:
            raise UsageError(
                f"Affine: {len(self.scale)} scales and {len(self.shift)} shifts, and a tensor {[*x.shape]}"
            )
        if x.device not in self._on:  # once: a copy from the host waits for the stream
            both = (torch.as_tensor(v, dtype=torch.float32).to(x.device) for v in (self.scale, self.shift))
            scale, shift = both
            self._on[x.device] = scale, shift
        return _scaled(x, *self._on[x.device], self.dtype)


def _scaled(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """In float32: bfloat16 cannot tell all of 256 values apart. One buffer, in its final order."""
    whole = torch.empty(x.shape, dtype=torch.float32, device=x.device).copy_(x)
    return whole.mul_(scale).add_(shift).to(dtype)


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

    def tell(self, at: Position) -> None:
        """Say what is to be said before a batch that was polled is handed to the trainer."""

    def took(
        self, at: Position, asked: float, measured: Measured | None = None, tier: Tier | None = None
    ) -> None:
        """A batch is handed to the trainer, which asked for it then; what is known now of an earlier one, and
        how it got to the device."""

    def computing(self) -> AbstractContextManager[None]:
        """What happens inside is computing."""

    def close(self) -> None:
        """Leave."""

    def now(self) -> float:
        """The clock of `took`."""

    def memory(self) -> memoryview | None:
        """The ring's memory, once there is one."""


@dataclass(eq=False)
class _Flight:
    """What the device may still read, and the event after which it has; None until that is recorded."""

    holds: list[torch.Tensor] = field(default_factory=list)
    event: Event | None = None


@dataclass(frozen=True)
class _Copy:
    """A batch whose copy to the device is queued; it is there after the event."""

    taken: Taken
    event: Event


class OnDevice:
    """A source whose batches come as device tensors, the next ones copied while the trainer computes."""

    def __init__(
        self,
        source: Source,
        accelerator: Accelerator,
        prefetch: int,
        transforms: Mapping[str, Transform],
        timeout_s: float = 300.0,
    ) -> None:
        self._source = source
        self._accelerator = accelerator
        self._prefetch = prefetch
        self._transforms = transforms
        self._timeout_s = timeout_s
        self._windows = DeviceWindows(accelerator)
        self._due: Taken | None = None
        """A batch whose copy was tried and failed: it comes next, and is tried again."""
        self._ahead: deque[_Copy] = deque()
        self._reading: deque[_Flight] = deque()
        self._registered: weakref.ref[memoryview] | None = None
        self._undo: list[Callable[[], None]] = []
        # A loader that is forgotten without close: the device may still read what would be unmapped.
        self._pid = os.getpid()
        leaving = weakref.finalize(self, _leave, self._pid, accelerator, self._reading, self._undo)
        leaving.atexit = False
        self.tier: Tier | None = None
        """How bytes reach the device, once the first batch went."""

    # ---- what a loader asks ------------------------------------------------------------------------

    def start(self, start: Start) -> None:
        """Begin decoding."""
        self._source.start(start)

    def seek(self, start: Start) -> None:
        """Another batch comes next; what was copied ahead is dropped, once its copy is done."""
        self._drop_ahead()
        self._source.seek(start)

    def go_on_with(self, settings: Settings) -> None:
        """Other settings: what was copied ahead is dropped."""
        self._drop_ahead()
        self._source.go_on_with(settings)

    def next(self, start: Start) -> Taken:
        """The batch of a position on the device: the current stream waits for its copy, the host does not.

        An error costs no batch: the next call tries the same one again.
        """
        asked = self._source.now()
        self._windows.asked()
        self._let_go()
        if self._ahead:
            self._source.tell(start.at)
        else:
            # It will be waited for anyway: extents that are still held would make it a private copy.
            self._let_go(at_most=0)
            self._copy(self._due or self._source.take(start))
        self._look_ahead()
        copy = self._ahead[0]
        self._accelerator.wait(copy.event)
        for tensor in _each(copy.taken.batch):
            self._accelerator.keep(tensor)
        measured = self._windows.measured()
        self._ahead.popleft()
        self._source.took(start.at, asked, measured, self.tier)
        self._windows.taken(start.at)
        return copy.taken

    @contextmanager
    def computing(self) -> Iterator[None]:
        """What happens inside is computing the batch that was taken last."""
        with self._source.computing(), self._windows.computing():
            yield

    def close(self) -> None:
        """Wait for the copies in flight, then leave: no extent returns while the device reads it."""
        self._drop_ahead()
        try:
            _leave(self._pid, self._accelerator, self._reading, self._undo)
        finally:
            self._source.close()

    def _drop_ahead(self) -> None:
        self._ahead.clear()
        self._due = None
        self._windows.restarted()

    # ---- copies ------------------------------------------------------------------------------------

    def _look_ahead(self) -> None:
        """Copy what is decoded, as far as wanted. What fails waits for its turn, and fails there."""
        while len(self._ahead) <= self._prefetch:
            taken = self._due or self._source.poll(self._ahead[-1].taken.following)
            if taken is None:
                return
            try:
                self._copy(taken)
            except Exception:  # noqa: BLE001  # such as no device memory: it may be there in time
                return

    def _copy(self, taken: Taken) -> None:
        self._due = taken
        self._ahead.append(self._begin(taken))
        self._due = None

    def _begin(self, taken: Taken) -> _Copy:
        self._let_go(at_most=self._prefetch)
        unknown = sorted(self._transforms.keys() - taken.batch.keys())
        if unknown:
            raise UsageError(f"to_device={unknown}: the recipe has the fields {sorted(taken.batch)}")
        self._look_at_memory()
        flight = _Flight()
        # Before anything is queued: an error on the way must not free what the device is told to read.
        self._reading.append(flight)
        moved = Batch(taken.batch)
        with self._accelerator.side():
            for name, value in taken.batch.items():
                on_device = self._up(value, flight.holds)
                transform = self._transforms.get(name)
                if transform is not None:
                    many = isinstance(on_device, list)
                    on_device = [transform(v) for v in on_device] if many else transform(on_device)
                moved[name] = on_device
        flight.event = event = self._accelerator.event()
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
            self._let_go(at_most=0)  # of the ring before
            _take_back(self._undo)
            undo = self._accelerator.register(memory) if memory is not None else None
            self._undo += [undo] if undo is not None else []
            self._registered = weakref.ref(memory) if memory is not None else None
            self.tier = "registered" if undo is not None else "staged"

    def _let_go(self, at_most: int | None = None) -> None:
        """Release the extents whose copies are done; wait for the oldest where more than `at_most` run."""
        while self._reading:
            flight = self._reading[0]
            flight.event = flight.event or self._accelerator.event()
            if not flight.event.query():
                if at_most is None or len(self._reading) <= at_most:
                    return
                if not self._accelerator.finish(flight.event, self._timeout_s):
                    raise Stalled(
                        f"the device has not finished a copy within {self._timeout_s:.0f} s: does a kernel "
                        "hang, or a collective that another rank left?"
                    )
            flight.holds.clear()
            self._reading.popleft()


_KEPT: list[Any] = []
"""What a device that hangs or is lost may still read."""


def _leave(
    pid: int, accelerator: Accelerator, reading: deque[_Flight], undo: list[Callable[[], None]]
) -> None:
    """Wait for all copies, then take back what was registered. Never raises for the device's sake: memory
    that it may still read is kept for ever."""
    if os.getpid() != pid:
        return  # a forked child: the device is its parent's
    deadline = time.monotonic() + LEAVE_S
    try:
        while reading:
            flight = reading[0]
            flight.event = flight.event or accelerator.event()
            if not accelerator.finish(flight.event, max(0.0, deadline - time.monotonic())):
                raise RuntimeError(f"copies are not done within {LEAVE_S:.0f} s")
            reading.popleft().holds.clear()
        _take_back(undo)
    except RuntimeError as e:  # of a device that hangs, or is lost
        _KEPT.append((list(reading), list(undo)))
        reading.clear()
        undo.clear()
        what = str(e).splitlines()[0]
        warnings.warn(f"the memory of batches that the device reads is kept: {what}", stacklevel=2)


def _take_back(undo: list[Callable[[], None]]) -> None:
    while undo:
        undo.pop()()


def _each(batch: Batch) -> list[torch.Tensor]:
    found = []
    for value in batch.values():
        found += [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, torch.Tensor)]
    return found
