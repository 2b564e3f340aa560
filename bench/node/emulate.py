"""The emulated tier: decoding sleeps for what it took once, stretched, and touches what it would write."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from bench.node.case import Emulation, read_rows
from bench.node.recipe import SLACK, loaded
from libhelix.recipe import OPENING_US, Descriptor, Part, Recipe, Rng, Sample
from libhelix.wire.settings import RecipeSpec

_slept = threading.local()
_thread_time = time.thread_time


class Emulated(Recipe, frozen=True):
    """Another recipe whose decoding is a sleep, the same for every system.

    A sample takes what `emulation` makes of the recorded cost of its row, shared out over its segments as
    describe predicts them; a part that does not begin it opens the file once more. helixd is told what the
    inner recipe predicts; with `oracle` what it will take. `storage_s`: a file's first byte takes so long,
    and no CPU time; not stretched.
    """

    inner: RecipeSpec
    rows: str
    emulation: Emulation
    oracle: bool = False
    storage_s: float = 0.0

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """As the inner recipe describes it; `draws` are the microseconds of its segments, stretched."""
        desc = loaded(self.inner).describe(sample, rng)
        shares = _segments(desc.segment_us, self.emulation)
        unaware = msgspec.structs.replace(self.emulation, dear=0)  # nobody is told which sources are dear
        told: float = unaware.full_us(sample.id, sum(desc.segment_us)) * self.emulation.dilation
        recorded = read_rows(self.rows).recorded_us[sample.id]
        takes: float = self.emulation.full_us(sample.id, recorded) * self.emulation.dilation
        segment_us = tuple(round(share * (takes if self.oracle else told)) for share in shares)
        # A thread of its own would sleep beside: the cores that frame threads are held on are not here.
        return msgspec.structs.replace(
            desc, segment_us=segment_us, draws=tuple(share * takes for share in shares), threads=False
        )

    def part_s(self, desc: Descriptor, part: Part) -> float:
        """Seconds that a part takes."""
        begins = (0, *desc.cuts)
        us: float = sum(us for begin, us in zip(begins, desc.draws) if part.begin <= begin < part.end)
        return (us + (0 if part.first else OPENING_US * self.emulation.dilation)) * 1e-6

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """Sleep, and write a value to every byte of the part."""
        if self.storage_s:
            time.sleep(self.storage_s)
        began_s = time.monotonic()
        for name, array in out.items():
            if name != SLACK:
                array[...] = sample.id & 0x7F
        compute(self.part_s(desc, part) - (time.monotonic() - began_s))


def compute(seconds: float) -> None:
    """Sleep, and let it count as CPU time of this thread."""
    if seconds <= 0:
        return
    if time.thread_time is _thread_time:
        # helixd learns what decoding costs from the CPU time that workers report, which is their threads'.
        # Asleep they take none. Only processes that emulate decoding come here, and all that they decode.
        time.thread_time = _with_sleep
    began_s = time.monotonic()
    time.sleep(seconds)
    _slept.s = getattr(_slept, "s", 0.0) + time.monotonic() - began_s


def _with_sleep() -> float:
    return _thread_time() + getattr(_slept, "s", 0.0)


def _segments(us: Sequence[int], emulation: Emulation) -> list[float]:
    """The share of every segment in a whole sample; the first opens the file."""
    opening = min(OPENING_US, us[0] / 2)
    full = [opening + (us[0] - opening) * emulation.scale, *(one * emulation.scale for one in us[1:])]
    whole = sum(full) or 1.0
    return [one / whole for one in full]
