"""Sound: all of it or a stretch, at one rate, as float32 or int16."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Literal

import numpy as np

from libhelix.errors import MediaError, UsageError
from libhelix.plan.counts.audio import HOP, MOST_MEL_FRAMES, RATE_HZ, qwen2_audio
from libhelix.recipe import (
    AudioInfo,
    Descriptor,
    Field,
    Item,
    Layout,
    Pack,
    Pad,
    Part,
    Ragged,
    Recipe,
    Rng,
    Sample,
    Stack,
)

_MOST_RATE_HZ = 384_000
_MOST_CHANNELS = 64


class Audio(Recipe, frozen=True):
    """One field "audio": [n] for one channel, else [channels, n]; float32 in [-1, 1], or int16.

    n = ceil(samples * rate / the file's rate), at most round(seconds * rate) where `seconds` is given: then
    from the beginning (start="head") or from a random sample on ("random"). Channels are mixed as
    `libhelix.media.mixing.mixing_matrix` says. `layout` says how sounds make a batch; "stack" needs
    `seconds`, and silence follows sounds that are shorter.
    """

    rate: int = RATE_HZ
    channels: int = 1
    dtype: Literal["float32", "int16"] = "float32"
    seconds: float | None = None
    start: Literal["head", "random"] = "head"
    layout: Literal["stack", "pad", "pack", "ragged"] = "pad"

    def __post_init__(self) -> None:
        for name, value, most in (
            ("rate", self.rate, _MOST_RATE_HZ),
            ("channels", self.channels, _MOST_CHANNELS),
        ):
            if type(value) is not int or not 1 <= value <= most:
                raise UsageError(f"Audio({name}={value!r}) must be an integer from 1 to {most}")
        if self.dtype not in ("float32", "int16"):
            raise UsageError(f'Audio(dtype={self.dtype!r}) must be "float32" or "int16"')
        if self.seconds is not None and not 0 < self.seconds <= 86_400:
            raise UsageError(f"Audio(seconds={self.seconds!r}) must lie in (0, 86400]")
        if self.start not in ("head", "random"):
            raise UsageError(f'Audio(start={self.start!r}) must be "head" or "random"')
        if self.layout not in ("stack", "pad", "pack", "ragged"):
            raise UsageError(f"Audio(layout={self.layout!r}) must be one of stack, pad, pack, ragged")
        if self.seconds is None and (self.layout == "stack" or self.start == "random"):
            raise UsageError(
                'Audio(layout="stack") and Audio(start="random") need seconds=, such as seconds=30'
            )

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """The stretch chosen: `draws` are its first sample and its end, at the file's rate."""
        return self._describe(sample, rng, self._most())

    def shrink(self, sample: Sample, rng: Rng, caps: Mapping[str, int]) -> Descriptor | None:
        """The same sound with fewer `seconds`, the most that keep the caps.

        None with layout "stack", whose sounds have one length, and where no sample fits.
        """
        if self.layout == "stack":
            return None
        _, info = _audio(sample)
        low, high = 0, _length(info, self.rate, info.samples)
        while low < high:  # costs do not fall as sounds grow
            middle = (low + high + 1) // 2
            costs = self._costs(middle)
            fits = all(costs[name] <= cap for name, cap in caps.items() if name in costs)
            low, high = (middle, high) if fits else (low, middle - 1)
        most = self._most()
        return self._describe(sample, rng, low if most is None else min(low, most)) if low else None

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """Decode the stretch into `out["audio"]`."""
        from libhelix.media.pcm import decode

        if not part.first:
            return
        item, info = _audio(sample)
        start, stop = desc.draws
        sound = out["audio"]
        n = min(sound.shape[-1], _length(info, self.rate, stop - start))
        decode(item, sound[..., :n], start=start, stop=stop, rate=self.rate)
        sound[..., n:] = 0

    def _most(self) -> int | None:
        """Samples a sound may have, by `seconds`."""
        if self.seconds is None:
            return None
        return max(1, round(Fraction(self.seconds) * self.rate))

    def _describe(self, sample: Sample, rng: Rng, most: int | None) -> Descriptor:
        # Imported here: a trainer makes recipes and must not load FFmpeg for it.
        from libhelix.media.audio import decode_cost_us

        _, info = _audio(sample)
        taken = info.samples if most is None else min(info.samples, -(-most * info.rate // self.rate))
        start = rng.integers(0, info.samples - taken + 1) if self.start == "random" else 0
        heard = _length(info, self.rate, taken)
        n = heard if most is None else most if self.layout == "stack" else min(heard, most)
        us = decode_cost_us(info, start, start + taken, self.rate, self.channels)
        return Descriptor(
            fields=(Field("audio", self.dtype, self._shape(n), self._layout()),),
            segment_us=(us,),
            costs=self._costs(n),
            draws=(start, start + taken),
            kind=info.codec,
        )

    def _shape(self, n: int) -> tuple[int, ...]:
        return (n,) if self.channels == 1 else (self.channels, n)

    def _layout(self) -> Layout:
        if self.layout == "pack":
            return Pack(axis=0 if self.channels == 1 else 1)
        layouts: dict[str, Layout] = {"stack": Stack(), "pad": Pad(), "ragged": Ragged()}
        return layouts[self.layout]

    def _costs(self, n: int) -> dict[str, int]:
        """Qwen2-Audio's tokens (25 a second), in pieces of 30 seconds as Whisper's encoder takes them."""
        piece = HOP * MOST_MEL_FRAMES
        pieces, rest = divmod(-(-n * RATE_HZ // self.rate), piece)
        tokens = pieces * qwen2_audio(piece).tokens + (qwen2_audio(rest).tokens if rest else 0)
        return {"tokens": max(1, tokens), "samples": n}


def _length(info: AudioInfo, rate: int, samples: int) -> int:
    """As `resampled_length` of libhelix.media.mixing, which would load FFmpeg."""
    return -(-samples * rate // info.rate)


def _audio(sample: Sample) -> tuple[Item, AudioInfo]:
    item = sample.item("audio")
    if item.audio is None:
        raise MediaError(f"{sample.key}: indexed without its sound's length; run helixctl index again")
    return item, item.audio
