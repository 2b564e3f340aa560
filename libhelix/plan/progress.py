"""Where a trainer stands: the next batch, the window it is in, and what of that window is still to come.

A trainer plans nothing. It is told the windows that do not follow from counting, in pieces that fit messages.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from libhelix.errors import ProtocolError
from libhelix.plan.planner import Planner, Window
from libhelix.plan.window import FILLER
from libhelix.wire.settings import Base, Position, Start

PART_BYTES = 48 * 1024
MAX_WINDOW_BYTES = 1 << 28
_KEPT = 4
_FEW_STEPS = 0xFF
"""Windows of fewer steps say each draw's in one byte, others in two."""


class Told(msgspec.Struct, frozen=True, array_like=True):
    """A window as trainers know it: for every draw, carried ones first, the step that has it, if any."""

    base: Base
    end: int
    steps: int
    after: Base
    step_of: bytes

    def rest(self, done: int) -> Base:
        """Where planning goes on after `done` of its steps, for whatever geometry comes then."""
        if done >= self.steps:
            return self.after
        carried = np.sort(self._draws(np.frombuffer(self.step_of, dtype=_dtype(self.steps)) >= done))
        return Base(self.base.epoch, self.base.step + done, self.end, tuple(carried.tolist()))

    def dropped(self) -> tuple[int, ...]:
        """Draws that neither a step nor the next window has."""
        dtype = _dtype(self.steps)
        never = self._draws(np.frombuffer(self.step_of, dtype=dtype) == np.iinfo(dtype).max)
        if not len(never):  # as nearly always: every rank asks at the end of each window, however large
            return ()
        later = set(self.after.carried) if self.after.epoch == self.base.epoch else set()
        return tuple(d for d in never.tolist() if d not in later)

    def _draws(self, which: NDArray[np.bool_]) -> NDArray[np.int64]:
        places, carried = np.flatnonzero(which), np.asarray(self.base.carried, dtype=np.int64)
        fresh = places[places >= len(carried)] - len(carried) + self.base.draw
        return np.concatenate((carried[places[places < len(carried)]], fresh))


def _dtype(steps: int) -> np.dtype[Any]:
    """Of the steps of draws; its largest number stands for a draw that none has."""
    return np.dtype("u1" if steps < _FEW_STEPS else "<u2")


def told(window: Window) -> Told:
    """What a trainer is told of a window."""
    first = window.base.draw
    where = {draw: i for i, draw in enumerate(window.base.carried)}
    offset = len(where) - first
    dtype = _dtype(len(window.steps))
    step_of = np.full(len(where) + window.end - first, np.iinfo(dtype).max, dtype=dtype)
    for k, step in enumerate(window.steps):
        draws = [d for micro in step for rank in micro for d in rank if d != FILLER]
        step_of[[where[d] if d in where else d + offset for d in draws]] = k
    return Told(window.base, window.end, len(window.steps), window.after, step_of.tobytes())


def pack_window(window: Window) -> tuple[bytes, ...]:
    """A window in pieces for messages."""
    data = zlib.compress(msgspec.msgpack.encode(told(window)), 1)
    return tuple(data[a : a + PART_BYTES] for a in range(0, len(data), PART_BYTES))


def unpack_window(parts: list[bytes]) -> Told:
    """The window that pieces make. Raises ProtocolError where they make none."""
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(b"".join(parts), MAX_WINDOW_BYTES)
        found = msgspec.msgpack.decode(data, type=Told)
    except (zlib.error, msgspec.DecodeError) as e:
        raise ProtocolError(f"not a window: {e}") from e
    if len(found.step_of) != _dtype(found.steps).itemsize * (
        len(found.base.carried) + found.end - found.base.draw
    ):
        raise ProtocolError(f"a window of {len(found.step_of)} bytes")
    return found


@dataclass
class Progress:
    """The position of the next batch, and the base of its window. `window` is what was told of that.

    `left_out` is the ledger, a base by epoch: its carried draws, and all from its `draw` on, were not
    delivered. Only the last epochs are kept, `left_out_before` counts the samples of others.
    """

    planner: Planner
    base: Base = Base(0, 0, 0)  # noqa: RUF009  # frozen
    at: Position = Position(0, 0, 0)  # noqa: RUF009  # frozen
    window: Told | None = None
    left_out: list[Base] = field(default_factory=list)
    left_out_before: int = 0
    _rest: Base | None = None
    """What a restored state says that is still to come, until the first batch."""

    @property
    def start(self) -> Start:
        """What a daemon needs to go on here."""
        return Start(self.base, self.at)

    def restored(self, start: Start, rest: Base | None, left_out: list[Base], before: int) -> None:
        """Stand where a state stands, with its account."""
        self.base, self.at, self.window, self._rest = start.base, start.at, None, rest
        self.left_out, self.left_out_before = [], before
        for base in left_out:
            self._leave_out(base)

    def go_to(self, start: Start) -> None:
        """Stand somewhere else. What lies between is left out; going back starts the account over there."""
        rest, epoch = self.rest() or self.base, start.base.epoch
        if epoch > rest.epoch:
            self._leave_out(rest)
            skipped = range(rest.epoch + 1, epoch)
            self.left_out_before += len(skipped[:-_KEPT]) * self.planner.draws
            for e in skipped[-_KEPT:]:
                self._leave_out(Base(e, 0, 0))
        else:
            self.left_out = [base for base in self.left_out if base.epoch < epoch]
        self.base, self.at, self.window, self._rest = start.base, start.at, None, None

    def _leave_out(self, rest: Base) -> None:
        draws = self.planner.draws
        if not rest.carried and rest.draw >= draws:
            return
        if self.left_out and self.left_out[-1].epoch == rest.epoch:
            before = self.left_out.pop()
            carried = tuple(sorted({*before.carried, *rest.carried}))
            rest = Base(rest.epoch, rest.step, min(before.draw, rest.draw), carried)
        self.left_out.append(rest)
        for old in self.left_out[:-_KEPT]:
            self.left_out_before += len(old.carried) + draws - old.draw
        del self.left_out[:-_KEPT]

    def took(self, following: Position, window: Told | None) -> None:
        """A batch was taken: `following` comes next. `window` is the one it was of, where it was told."""
        base, draws, self._rest = self.base, self.planner.draws, None
        if window is not None and window.base == base:  # else it is that of a position before
            self.window = window
        if following.epoch != self.at.epoch:
            base = Base(following.epoch, following.step, 0)
            if self.planner.counted(self.base):
                end = self.base.draw + self.planner.per_step
                self._leave_out(Base(self.at.epoch, self.at.step + 1, min(end, draws)))
        elif self.planner.counted(base):
            base = Base(
                base.epoch, following.step, base.draw + (following.step - base.step) * self.planner.per_step
            )
        elif self.window is None:
            raise ProtocolError(f"the window of {self.at} was not told")
        elif following.step >= self.window.base.step + self.window.steps:
            base = self.window.after
        if base != self.base:
            if self.window is not None and (dropped := self.window.dropped()):
                self._leave_out(Base(self.base.epoch, following.step, draws, dropped))
            self.window = None
        self.base, self.at = base, following

    def untaken(self) -> int | None:
        """The first draw of the epoch that no window has taken, up to the one that is gone through.

        None before the first batch after a state of inside a step, which does not say where its window ends.
        """
        if self.at.step == self.base.step and not self.at.micro:
            return self.base.draw
        if self.planner.counted(self.base):
            return min(self.base.draw + self.planner.per_step, self.planner.draws)
        if self.window is not None:
            return self.window.end
        return self._rest.draw if self._rest is not None else None

    def rest(self) -> Base | None:
        """Where planning goes on with other ranks; None inside a step, which cannot be divided anew."""
        if self.at.micro:
            return None
        if self._rest is not None:
            return self._rest
        if self.at.step == self.base.step:
            return self.base
        return self.window.rest(self.at.step - self.base.step) if self.window is not None else None
