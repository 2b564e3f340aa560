"""Video clips: some frames of a video, cropped to fill, as uint8."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal

import msgspec
import numpy as np

from libhelix.errors import MediaError, UsageError
from libhelix.recipe import (
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
    VideoInfo,
    merge_segments,
)

_LAYOUTS: dict[str, Layout] = {"stack": Stack(), "pad": Pad(), "pack": Pack(), "ragged": Ragged()}
_PATCH = 16
MOST_SIDE = 16384


class Clip(Recipe, frozen=True):
    """One field "video" of uint8 RGB: [n, h, w, 3] ("THWC") or [n, 3, h, w] ("TCHW").

    Exactly one of `frames` (that many, uniformly placed) and `rate` (frames per second of video, at most
    `max_frames`) is given. Pictures are scaled to cover `size` = (h, w) and cropped at the centre. `layout`
    says how clips make a batch; "stack" needs `frames`.
    """

    frames: int | None = None
    rate: float | None = None
    max_frames: int | None = None
    size: tuple[int, int] = (224, 224)
    order: Literal["THWC", "TCHW"] = "THWC"
    layout: Literal["stack", "pad", "pack", "ragged"] = "stack"

    def __post_init__(self) -> None:
        if (self.frames is None) == (self.rate is None):
            raise UsageError("Clip needs exactly one of frames= and rate=, such as Clip(frames=8)")
        if self.frames is not None:
            _check_count("frames", self.frames)
            if self.max_frames is not None:
                raise UsageError("Clip(max_frames=) limits rate=; with frames= leave it out")
        if self.rate is not None and not 0 < self.rate <= 1000:
            raise UsageError(f"Clip(rate={self.rate}) must lie in (0, 1000] frames per second")
        if self.max_frames is not None:
            _check_count("max_frames", self.max_frames)
        check_size("Clip", self.size)
        if self.order not in ("THWC", "TCHW"):
            raise UsageError(f'Clip(order={self.order!r}) must be "THWC" or "TCHW"')
        if self.layout not in _LAYOUTS:
            raise UsageError(f"Clip(layout={self.layout!r}) must be one of {', '.join(_LAYOUTS)}")
        if self.layout == "stack" and self.frames is None:
            raise UsageError(
                'Clip(rate=) gives clips of different lengths: set layout="pad", "pack" or "ragged"'
            )

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """The frames chosen (in `draws`), cut where their key-frame group changes."""
        del rng  # placed by rule, nothing is drawn
        # Imported here: a trainer makes recipes and must not load FFmpeg for it.
        from libhelix.media.video import decode_cost_us, group_cuts

        _, info = _video(sample)
        chosen = self._choose(info)
        n, (h, w) = len(chosen), self.size
        cuts, segment_us = merge_segments(group_cuts(info, chosen), decode_cost_us(info, chosen, h * w))
        shape = (n, h, w, 3) if self.order == "THWC" else (n, 3, h, w)
        return Descriptor(
            fields=(Field("video", "uint8", shape, _LAYOUTS[self.layout], rows_per_unit=1),),
            units=n,
            cuts=cuts,
            segment_us=segment_us,
            costs={"tokens": max(1, n * (h // _PATCH) * (w // _PATCH)), "frames": n},
            draws=chosen,
            kind=info.codec,
            threads=True,
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
        from libhelix.media.pixels import write_frame
        from libhelix.media.sampler import decode

        item, info = _video(sample)
        video = out["video"]
        places: dict[int, list[int]] = {}
        for at, frame in enumerate(desc.draws[part.begin : part.end]):
            places.setdefault(frame, []).append(at)

        def put(frame: int, picture: Any) -> None:
            first, *others = places[frame]
            write_frame(picture, info.rotation, video[first], "HWC" if self.order == "THWC" else "CHW")
            for at in others:
                video[at] = video[first]

        decode(item, list(places), put, threads=part.threads)

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


def check_size(recipe: str, size: object) -> None:
    """Raise UsageError unless `size` is (height, width) in pixels."""
    sides = size if isinstance(size, (tuple, list)) else ()
    if len(sides) != 2 or not all(type(n) is int and 1 <= n <= MOST_SIDE for n in sides):
        raise UsageError(
            f"{recipe}(size={size!r}) must be (height, width), each 1 to {MOST_SIDE}, such as size=(224, 224)"
        )


def _check_count(name: str, value: int) -> None:
    if type(value) is not int or value < 1:
        raise UsageError(f"Clip({name}={value!r}) must be an integer of 1 or more")


def _video(sample: Sample) -> tuple[Item, VideoInfo]:
    item = sample.item("video")
    if item.video is None:
        raise MediaError(f"{sample.key}: indexed without a demux scan; run helixctl index again")
    return item, item.video
