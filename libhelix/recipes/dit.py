"""Clips for video diffusion transformers: as many frames as autoencoders take, in sizes of a few shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from libhelix.errors import MediaError, UsageError
from libhelix.plan.counts.buckets import bucket_for, bucket_sizes
from libhelix.plan.counts.dit import causal
from libhelix.plan.frames import Frames, Resample, at_rate, whole_groups
from libhelix.recipe import Descriptor, Pad, Part, Recipe, Rng, Sample
from libhelix.recipes.frames import Order, check_count, check_order, described, fill_frames, video_of

_RULES = ("musubi", "diffsynth", "open-sora-plan", "open-sora")
_LEAST_AREA = 64 * 64


class VideoDiT(Recipe, frozen=True):
    """One field "video" of uint8 RGB, [n, 3, h, w] ("TCHW") or [n, h, w, 3], for Wan 2.1, HunyuanVideo and
    Open-Sora 2: n = 4k + 1 frames at `rate` a second, at most `frames`; (h, w) the size of about `area`
    pixels, multiples of 16, whose aspect ratio is nearest.

    rate, rule    how a video becomes one of that rate (libhelix.plan.frames.at_rate); None: its own rate
    frames        at most so many; shorter videos give fewer, and those below `least` fail
    start         of longer ones: the first ("head"), the middle, or a random stretch

    The descriptor's group is "<frames>x<height>x<width>": use it with Buckets. Its cost "tokens" are those of
    the transformer, after a 4x8x8 causal autoencoder and 1x2x2 patches.
    """

    area: int = 480 * 832
    frames: int = 81
    least: int = 1
    rate: float | None = 16.0
    rule: Resample = "diffsynth"
    start: Literal["head", "middle", "random"] = "head"
    order: Order = "TCHW"

    def __post_init__(self) -> None:
        for name, value in (("area", self.area), ("frames", self.frames), ("least", self.least)):
            check_count("VideoDiT", name, value)
        if self.area < _LEAST_AREA:
            raise UsageError(f"VideoDiT(area={self.area}) must be at least {_LEAST_AREA} pixels")
        bucket_sizes(self.area)
        if self.frames % 4 != 1:
            raise UsageError(
                f"VideoDiT(frames={self.frames}) must be 4k + 1, such as {whole_groups(self.frames)}"
            )
        if self.rate is not None and not 0 < self.rate <= 1000:
            raise UsageError(f"VideoDiT(rate={self.rate}) must lie in (0, 1000] frames per second")
        if self.rule not in _RULES:
            raise UsageError(f"VideoDiT(rule={self.rule!r}) must be one of {', '.join(_RULES)}")
        if self.start not in ("head", "middle", "random"):
            raise UsageError(f'VideoDiT(start={self.start!r}) must be "head", "middle" or "random"')
        check_order("VideoDiT", self.order)

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """The frames chosen (in `draws`), and the bucket."""
        item, info = video_of(sample)
        chosen = tuple(range(info.frames))
        if self.rate is not None:
            chosen = at_rate(info.frames, info.fps, self.rate, self.rule)
        if len(chosen) < self.least:
            raise MediaError(
                f"{item.path}: has {len(chosen)} frames at this rate, {self.least} are wanted; leave it out"
            )
        chosen = self._stretch(chosen, rng)
        h, w = bucket_for(*info.display_size, self.area)
        n = len(chosen)
        return described(
            info,
            chosen,
            (h, w),
            order=self.order,
            layout=Pad(),  # those of a batch are of one size: nothing is padded
            costs={"tokens": causal(h, w, n).tokens, "frames": n},
            group=f"{n}x{h}x{w}",
        )

    def _stretch(self, chosen: Frames, rng: Rng) -> Frames:
        n = whole_groups(min(len(chosen), self.frames))
        room = len(chosen) - n
        begin = {"head": 0, "middle": room // 2}.get(self.start)
        if begin is None:
            begin = rng.integers(0, room + 1)
        return chosen[begin : begin + n]

    def shrink(self, sample: Sample, rng: Rng, caps: Mapping[str, int]) -> Descriptor | None:
        """Fewer frames, 4 at a time, until the caps hold; None where one frame is too much."""
        full = self.describe(sample, rng)
        _, info = video_of(sample)
        h, w = bucket_for(*info.display_size, self.area)
        for n in range(full.units, 0, -4):
            costs = {"tokens": causal(h, w, n).tokens, "frames": n}
            if all(cost <= caps.get(name, cost) for name, cost in costs.items()):
                return described(
                    info,
                    full.draws[:n],
                    (h, w),
                    order=self.order,
                    layout=Pad(),
                    costs=costs,
                    group=f"{n}x{h}x{w}",
                )
        return None

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """Decode the part's frames into `out["video"]`."""
        fill_frames(sample, desc.draws, part, out["video"], self.order)
