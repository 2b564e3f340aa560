"""Clips that differ in what drives the cost of decoding: size, key-frame distance, bit rate, length."""

from __future__ import annotations

import random

from bench.clips import DIRECTIONS, FPS, SIZES, ClipPlan

CLIPS_VERSION = "1"
"""Raise it when the clips change: figures of different versions must not be compared."""
GOPS = (12, 48, 250)
CRFS = {"h264": (20, 27, 34), "hevc": (22, 29, 36), "vp9": (28, 37, 46), "av1": (30, 41, 52)}
"""From more bits than usual to fewer; other codecs keep their encoder's own quality."""


def clips_of(codec: str, count: int) -> list[ClipPlan]:
    """`count` clips of a codec, equal at every call: sizes in turn, the rest drawn."""
    draws = random.Random(codec)
    plans = []
    for i in range(count):
        width, height = SIZES[i % len(SIZES)]
        gop, crf = draws.choice(GOPS), draws.choice(CRFS.get(codec, (None,)))
        frames = round(draws.uniform(2.0, 8.0) * FPS)
        suffix = ".webm" if codec == "vp9" else ".mp4"
        plans.append(
            ClipPlan(
                name=f"{codec}/clip{i:02d}-{height}p-gop{gop}{suffix}",
                codec=codec,
                width=width,
                height=height,
                frames=frames,
                direction=i % len(DIRECTIONS),
                seed=draws.getrandbits(32),
                gop=gop,
                crf=crf,
            )
        )
    return plans
