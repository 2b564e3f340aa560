"""The emulated tier: decoding sleeps for what it took once, stretched, and touches what it would write."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import msgspec
import numpy as np

from bench.node.case import read_rows
from bench.node.recipe import SLACK, loaded
from libhelix.recipe import OPENING_US, Descriptor, Part, Recipe, Rng, Sample
from libhelix.wire.settings import RecipeSpec

_slept = threading.local()
_thread_time = time.thread_time


class Emulated(Recipe, frozen=True):
    """Another recipe whose decoding is a sleep, the same for every system.

    A sample takes the recorded cost of its row, shared out over its segments as describe predicts them; a
    part that does not begin it opens the file once more. All of it is stretched by `dilation`. What helixd is
    told is what the inner recipe predicts, stretched; with `oracle` what it will take. `dear`: every so many
    samples one takes three times as long (0: none), as a source of dearer media.
    `storage_s`: a file's first byte takes so long, and no CPU time.
    """

    inner: RecipeSpec
    rows: str
    dilation: float
    oracle: bool = False
    storage_s: float = 0.0
    dear: int = 0

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """As the inner recipe describes it; `draws` are the microseconds of its segments, stretched."""
        desc = loaded(self.inner).describe(sample, rng)
        told = [us * self.dilation for us in desc.segment_us]
        takes = self._takes(sample.id, told)
        segment_us = tuple(round(us) for us in (takes if self.oracle else told))
        # A thread of its own would sleep beside: the cores that frame threads are held on are not here.
        return msgspec.structs.replace(desc, segment_us=segment_us, draws=tuple(takes), threads=False)

    def _takes(self, sample: int, told: list[float]) -> list[float]:
        recorded: float = read_rows(self.rows).recorded_us[sample] * self.dilation
        if self.dear and sample % self.dear == 0:
            recorded *= 3
        whole = sum(told) or 1.0
        return [us / whole * recorded for us in told]

    def part_s(self, desc: Descriptor, part: Part) -> float:
        """Seconds that a part takes."""
        begins = (0, *desc.cuts)
        us = sum(us for begin, us in zip(begins, desc.draws) if part.begin <= begin < part.end)
        return (us + (0 if part.first else OPENING_US * self.dilation)) * 1e-6

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
