"""Distributions of declared costs, as quantiles; numbers only, and nothing else is needed to draw from them.

The traces that they are quantiles of hold numbers from public annotations, no media and no text:

name         of
activitynet  untrimmed video: JJBOY/BMN-Boundary-Matching-Network (MIT)
segments     segments of it, the same
moments      moments of television: jayleicn/TVRetrieval (MIT)
charades     near-uniform video, the control: piergiaj/super-events-cvpr18 (MIT; its data sets: academic use)
thumos       long video: the same
coco         an image and a caption of 40 to 150 tokens: tanluren/yolov3-channel-and-layer-pruning
             (Apache-2.0; COCO annotations CC-BY-4.0)
scans        scanned receipts with their text: zzzDavid/ICDAR-2019-SROIE (MIT)
interleaved  images per document of allenai/mmc4 (ODC-By); images and text of dotnet/docs-desktop
             (CC-BY-4.0) and opensearch-project/documentation-website (Apache-2.0); drawn independently
speech       utterances: sungnyun/ARMHuBERT (Apache-2.0; LibriSpeech CC-BY-4.0)
turns        turns of conversations: joonson/voxconverse (CC-BY-4.0)
chat         context and answer of inference traffic: Azure/AzurePublicDataset (CC-BY-4.0)
omni         40 % coco, 20 % activitynet, 15 % interleaved, 15 % turns, 10 % chat
wan          video in buckets: shapes of vztu/VIDEVAL (MIT), lengths of `moments`

Costs are tokens: 128 a second of video (two frames a second, 128 tokens a pair), 25 a second of audio, one
for 784 pixels of an image (4 to 16,384), text as it was counted. `wan`: latent tokens of a causal VAE
4 x 8 x 8 and patches 1 x 2 x 2, of 832 x 480, 480 x 832 and 624 x 624 with 4k + 1 frames at 16 a second.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

SHARES = (
    0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1,
)  # fmt: skip
"""Share of the samples whose cost is at most the quantile."""

# fmt: off
QUANTILES = {
    "activitynet": (
        202, 993, 1385, 2292, 3708, 6385, 8870, 11531, 14543, 17424, 20508, 23694, 26981, 28708,
        29909, 30289, 30468, 37548, 124813,
    ),
    "segments": (
        27, 149, 202, 315, 481, 878, 1404, 2208, 3448, 5222, 7809, 11588, 17386, 21514, 25089,
        26925, 28186, 29948, 57394,
    ),
    "moments": (
        37, 119, 159, 209, 271, 353, 447, 535, 648, 800, 1034, 1436, 2621, 4119, 6714, 8540, 10897,
        12164, 15747,
    ),
    "charades": (
        298, 908, 1189, 1925, 2458, 3185, 3638, 3845, 3909, 3963, 4054, 4232, 4667, 5243, 6326,
        7230, 8005, 16071, 24874,
    ),
    "thumos": (
        1143, 2528, 2646, 3996, 5451, 9208, 13200, 16475, 19848, 23562, 27304, 32329, 54888, 90050,
        115683, 146396, 167968, 200277, 214199,
    ),
    "coco": (
        73, 258, 276, 301, 339, 396, 423, 440, 455, 469, 485, 501, 529, 548, 600, 622, 643, 664, 672,
    ),
    "scans": (
        456, 719, 824, 972, 1184, 1301, 1447, 1597, 1998, 2243, 2418, 2814, 16524, 16555, 16624,
        16658, 16684, 16711, 16719,
    ),
    "interleaved": (
        19, 234, 304, 448, 642, 1012, 1413, 1902, 2546, 3467, 4745, 6720, 9869, 12307, 15812, 18298,
        20774, 26856, 46514,
    ),
    "speech": (
        27, 56, 62, 81, 113, 188, 272, 318, 341, 357, 370, 382, 394, 402, 413, 420, 426, 617, 879,
    ),
    "turns": (
        1, 8, 9, 11, 14, 24, 35, 52, 80, 119, 177, 275, 511, 781, 1156, 1476, 1830, 2974, 6484,
    ),
    "chat": (
        64, 133, 197, 296, 368, 473, 506, 800, 1412, 1469, 1522, 1628, 2820, 4136, 4186, 4259, 4915,
        6301, 14089,
    ),
    "omni": (
        1, 12, 17, 40, 148, 367, 435, 469, 505, 701, 1834, 5708, 15137, 22181, 27011, 28708, 29695,
        30465, 124813,
    ),
}
# fmt: on

HEAVY = ("segments", "moments", "thumos", "scans", "interleaved", "turns", "omni")
"""Those whose standard deviation is at least their mean."""


class Bucket(NamedTuple):
    """A group of samples of one shape, and its share of the samples."""

    name: str
    tokens: int
    share: float


_SHAPES = (("832x480", 52 * 30, 0.927), ("480x832", 30 * 52, 0.071), ("624x624", 39 * 39, 0.002))
_FRAMES = ((17, 0.083), (33, 0.144), (49, 0.150), (65, 0.117), (81, 0.506))
WAN = tuple(
    Bucket(f"{shape} {frames}", ((frames - 1) // 4 + 1) * tokens, a * b)
    for shape, tokens, a in _SHAPES
    for frames, b in _FRAMES
)


def draw(name: str, n: int) -> Ints:
    """Costs of n samples, the same for the same name and for every length."""
    quantiles = np.asarray(QUANTILES[name], dtype=np.float64)
    return np.rint(np.interp(_uniform(name, n), SHARES, quantiles)).astype(np.int64)


def draw_buckets(n: int) -> Ints:
    """The places in WAN of n samples."""
    ends = np.cumsum([bucket.share for bucket in WAN])
    found = np.searchsorted(ends / ends[-1], _uniform("wan", n), side="right")
    return found.astype(np.int64)


def _uniform(name: str, n: int) -> NDArray[np.float64]:
    return np.random.Generator(np.random.Philox(key=zlib.crc32(name.encode()))).random(n)
