"""Sizes and lengths of the workloads, as quantiles; numbers only (bench/plan/distributions.py has others).

name         of
ucf101_s     seconds of short clips: jeffreyyihuang/two-stream-action-recognition (MIT)
source_s     seconds of the films that moments are cut from: jayleicn/TVRetrieval (MIT)
ugc_s        seconds of films that users uploaded: vztu/VIDEVAL (MIT); UGC_SIZES are their sizes
coco_px, coco_aspect    pixels of an image, width / height: tanluren/yolov3-channel-and-layer-pruning
             (Apache-2.0; COCO annotations CC-BY-4.0)
docs_px, docs_aspect    of images in documentation: dotnet/docs-desktop (CC-BY-4.0)
scan_px, scan_aspect    of scanned receipts: zzzDavid/ICDAR-2019-SROIE (MIT)
mmc4_images  images of a document: allenai/mmc4 (ODC-By), 107 of them
speech_s     seconds of utterances: sungnyun/ARMHuBERT (Apache-2.0; LibriSpeech CC-BY-4.0)

Pixels and aspects are drawn independently of one another.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from bench.plan.distributions import SHARES, draw

VIDEO_TOKENS_PER_S = 128.0
"""By which the tables of bench/plan give lengths in tokens."""
SOUND_TOKENS_PER_S = 25.0

# fmt: off
QUANTILES = {
    "ucf101_s": (
        1.12, 2.2, 2.48, 2.88, 3.36, 4.12, 4.88, 5.68, 6.64, 7.68, 9.12, 10.04, 11.96, 14.44, 17.8,
        19.96, 22.72, 31.87, 71,
    ),
    "source_s": (
        8.02, 44.02, 51.84, 56.02, 58.07, 60.03, 61.03, 62.04, 69.02, 88.02, 90.02, 91.03, 92.53,
        96.03, 111.02, 130.03, 154.55, 176.02, 184.02,
    ),
    "ugc_s": (
        7.51, 8, 8, 8, 8.01, 8.01, 8.01, 10, 10.03, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20,
    ),
    "coco_px": (
        3672, 140500, 166000, 167000, 187500, 256000, 272640, 273280, 273920, 305920, 307200,
        307200, 307200, 360972, 386560, 409600, 409600, 409600, 409600,
    ),
    "coco_aspect": (
        0.34, 0.647, 0.664, 0.667, 0.692, 0.75, 1.25, 1.333, 1.333, 1.339, 1.499, 1.499, 1.506,
        1.628, 1.783, 1.984, 2.215, 3.122, 6.154,
    ),
    "docs_px": (
        100, 462, 576, 1646, 6991, 22429, 37977, 68052, 112194, 188244, 307200, 602416, 1886528,
        3504668, 6432423, 7001033, 7341557, 10147884, 10618362,
    ),
    "docs_aspect": (
        0.27, 0.617, 0.752, 0.907, 1, 1, 1.172, 1.333, 1.495, 1.616, 1.829, 2.204, 3.183, 4.538,
        7.251, 8.669, 12.007, 17.27, 21.847,
    ),
    "scan_px": (
        280115, 431482, 538158, 659687, 739248, 876561, 992216, 1135625, 1428048, 1640631, 1760336,
        2063448, 34806376, 34806376, 34806376, 34806376, 34806376, 34806376, 34806376,
    ),
    "scan_aspect": (
        0.263, 0.289, 0.307, 0.336, 0.373, 0.412, 0.437, 0.475, 0.501, 0.521, 0.55, 0.651, 0.707,
        0.707, 0.708, 0.712, 0.723, 0.843, 0.971,
    ),
    "mmc4_images": (2, 2, 2, 2, 2, 2, 2, 3, 3, 4, 4, 5, 6, 9, 10, 11, 11, 12, 12),
    "speech_s": (
        1.41, 2.5, 2.97, 4.24, 6.37, 10.39, 12.44, 13.38, 14, 14.53, 14.96, 15.38, 15.81, 16.09,
        16.45, 16.71, 16.84, 17.1, 24.52,
    ),
}
# fmt: on
UGC_SIZES = (
    ((960, 540), 1202),
    ((1280, 720), 582),
    ((1920, 1080), 436),
    ((640, 360), 170),
    ((640, 480), 145),
    ((3840, 2160), 130),
    ((404, 720), 119),
    ((720, 480), 54),
    ((480, 360), 38),
    ((720, 1280), 18),
)  # fmt: skip
"""(width, height), and how many of the films have it."""

Floats = NDArray[np.float64]


def drawn(name: str, n: int, salt: str = "") -> Floats:
    """n values of a table of ours, or seconds of one of bench/plan that holds tokens of video ("video:NAME")
    or of sound ("sound:NAME"), or tokens ("tokens:NAME"). The same at every call."""
    kind, _, other = name.partition(":")
    if other:
        per = {"video": VIDEO_TOKENS_PER_S, "sound": SOUND_TOKENS_PER_S, "tokens": 1.0}[kind]
        values: Floats = np.random.default_rng(zlib.crc32(salt.encode())).permutation(draw(other, n)) / per
        return values
    uniform = np.random.Generator(np.random.Philox(key=zlib.crc32((name + salt).encode()))).random(n)
    found: Floats = np.interp(uniform, SHARES, QUANTILES[name])
    return found


def ugc_sizes(n: int) -> list[tuple[int, int]]:
    """(width, height) of n films that users uploaded."""
    weights = np.asarray([count for _, count in UGC_SIZES], dtype=np.float64)
    chosen = np.random.default_rng(1).choice(len(UGC_SIZES), size=n, p=weights / weights.sum())
    return [UGC_SIZES[i][0] for i in chosen]
