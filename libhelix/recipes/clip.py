"""Video clips: some frames of a video, or of images that are one, made to fit a size, as uint8."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Literal

import msgspec
import numpy as np

from libhelix.errors import UsageError
from libhelix.media.geometry import Fit
from libhelix.recipe import (
    Descriptor,
    Layout,
    Pack,
    Pad,
    Part,
    Ragged,
    Recipe,
    Rng,
    Sample,
    Stack,
    VideoInfo,
)
from libhelix.recipes.frames import (
    Order,
    check_count,
    check_fit,
    check_order,
    check_size,
    described,
    fill_frames,
    film_of,
    stills_of,
    timed_film_of,
)

_LAYOUTS: dict[str, Layout] = {"stack": Stack(), "pad": Pad(), "pack": Pack(), "ragged": Ragged()}
_PATCH = 16


class Clip(Recipe, frozen=True):
    """One field "video" of uint8 RGB: [n, h, w, 3] ("THWC") or [n, 3, h, w] ("TCHW").

    Exactly one of `frames` (that many, uniformly placed) and `rate` (frames per second of video, at most
    `max_frames`) is given. `layout` says how clips make a batch; "stack" needs `frames`. (h, w) = `size`.

    fit: pictures cover `size` and are cropped at the centre ("crop"), lie whole in its middle, the rest being
    of the level `grey` ("letterbox"), or are stretched to it.
    fps: of samples whose frames are images, for `rate`.
    """

    frames: int | None = None
    rate: float | None = None
    max_frames: int | None = None
    size: tuple[int, int] = (224, 224)
    order: Order = "THWC"
    layout: Literal["stack", "pad", "pack", "ragged"] = "stack"
    fit: Fit = "crop"
    grey: int = 0
    fps: float | None = None

    def __post_init__(self) -> None:
        if (self.frames is None) == (self.rate is None):
            raise UsageError("Clip needs exactly one of frames= and rate=, such as Clip(frames=8)")
        if self.frames is not None:
            check_count("Clip", "frames", self.frames)
            if self.max_frames is not None:
                raise UsageError("Clip(max_frames=) limits rate=; with frames= leave it out")
        if self.rate is not None and not 0 < self.rate <= 1000:
            raise UsageError(f"Clip(rate={self.rate}) must lie in (0, 1000] frames per second")
        if self.max_frames is not None:
            check_count("Clip", "max_frames", self.max_frames)
        check_size("Clip", self.size)
        check_order("Clip", self.order)
        check_fit("Clip", self.fit, self.grey)
        if self.fps is not None and not 0 < self.fps <= 1000:
            raise UsageError(f"Clip(fps={self.fps}) must lie in (0, 1000] images per second")
        if self.layout not in _LAYOUTS:
            raise UsageError(f"Clip(layout={self.layout!r}) must be one of {', '.join(_LAYOUTS)}")
        if self.layout == "stack" and self.frames is None:
            raise UsageError(
                'Clip(rate=) gives clips of different lengths: set layout="pad", "pack" or "ragged"'
            )

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """The frames chosen (in `draws`), cut where their key-frame group changes."""
        del rng  # placed by rule, nothing is drawn
        info = self._film(sample)
        chosen = self._choose(info)
        n, (h, w) = len(chosen), self.size
        costs = {"tokens": max(1, n * (h // _PATCH) * (w // _PATCH)), "frames": n}
        return described(
            info,
            chosen,
            self.size,
            order=self.order,
            layout=_LAYOUTS[self.layout],
            costs=costs,
            stills=stills_of(sample),
            fit=self.fit,
        )

    def shrink(self, sample: Sample, rng: Rng, caps: Mapping[str, int]) -> Descriptor | None:
        """The same clip of fewer frames, as with the largest `frames` or `max_frames` that keep the caps.

        None with layout "stack", whose clips have one length, and where a single frame is too much.
        """
        h, w = self.size
        per_frame = {"tokens": (h // _PATCH) * (w // _PATCH), "frames": 1}
        most = min((caps[name] // n for name, n in per_frame.items() if n and name in caps), default=0)
        if self.layout == "stack" or most < 1:
            return None
        if self.frames is not None:
            shorter = msgspec.structs.replace(self, frames=min(self.frames, most))
        else:
            shorter = msgspec.structs.replace(self, max_frames=min(self.max_frames or most, most))
        return shorter.describe(sample, rng)

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """Decode the part's frames into `out["video"]`."""
        fill_frames(sample, desc.draws, part, out["video"], self.order, fit=self.fit, grey=self.grey)

    def _film(self, sample: Sample) -> VideoInfo:
        return film_of(sample) if self.rate is None else timed_film_of(sample, self.fps, "Clip")

    def _choose(self, info: VideoInfo) -> tuple[int, ...]:
        if self.frames is not None:
            return uniform_frames(info.frames, self.frames)
        assert self.rate is not None
        return frames_at_rate(info, self.rate, self.max_frames)


def uniform_frames(total: int, n: int) -> tuple[int, ...]:
    """The middle frames of n equal stretches of `total` frames: frame i is ((2i + 1) * total) // (2n)."""
    return tuple((2 * i + 1) * total // (2 * n) for i in range(n))


def frames_at_rate(info: VideoInfo, rate: float, most: int | None) -> tuple[int, ...]:
    """The frames on screen at start + i/rate, for all i/rate below the duration; at least one.

    Of more than `most`, that many are taken by the uniform rule over these. `rate` is read as the nearest
    fraction with a denominator up to a million, and all times are exact.
    """
    num, den = info.time_base
    step = 1 / (Fraction(rate).limit_denominator(1_000_000) * Fraction(num, den))
    # Stored as a float of seconds; ticks are integers, and the product is exact far beyond any duration.
    ticks = round(info.duration_s * den / num)
    n = max(1, -((-ticks * step.denominator) // step.numerator))
    picked = range(n) if most is None or n <= most else uniform_frames(n, most)
    return tuple(info.frame_at(info.start_pts + i * step.numerator // step.denominator) for i in picked)
