"""What decoding an image will cost, from its header."""

from __future__ import annotations

from typing import NamedTuple

from libhelix.errors import MediaError
from libhelix.media import geometry
from libhelix.media.geometry import Fit, Size, Unfit
from libhelix.recipe import ImageInfo, Item


class _Cost(NamedTuple):
    """CPU microseconds for a million bytes of a file, and for a million pixels that its decoder gives."""

    per_mb: int
    per_mpx: int


_OPENING_US = 100
_COSTS = {
    "jpeg": _Cost(14_400, 1430),
    "png": _Cost(8600, 10_500),
    "webp": _Cost(31_000, 4000),
    "gif": _Cost(10_500, 5600),
    "bmp": _Cost(0, 1600),
}
"""Fitted to synthetic photographs of 0.3 to 8 million pixels on one core of an AMD EPYC (Zen 4): nearly all
take within a third of it. Progressive JPEGs take 2.5 times as much, which the index does not tell."""
_PER_MPX_SCALED, _PER_MPX_WRITTEN = 700, 3400
"""What scaling takes for a million pixels before and after it."""


def decode_cost_us(item: Item, size: Size, fit: Fit) -> int:
    """Predicted CPU microseconds of decoding an image into `size` pixels. Raises MediaError where it cannot
    be made to fit."""
    info = item.image
    if info is None:
        raise MediaError(f"{item.path}: indexed without an image header; run helixctl index again")
    try:
        scaled = geometry.placed(info.display_size, size, fit).scaled
    except Unfit as e:
        raise MediaError(f"{item.path}: {e}") from e
    pixels = _decoded(info, geometry.turned(scaled, info.orientation))
    cost = _COSTS.get(info.codec, _COSTS["webp"])
    work = item.size * cost.per_mb + pixels * cost.per_mpx
    if scaled != info.display_size:
        work += pixels * _PER_MPX_SCALED + scaled[0] * scaled[1] * _PER_MPX_WRITTEN
    return _OPENING_US + work // 1_000_000


def _decoded(info: ImageInfo, scaled: Size) -> int:
    """Pixels that come out of the decoder."""
    shrink = geometry.shrink_of((info.height, info.width), scaled) if info.codec == "jpeg" else 1
    return -(-info.height // shrink) * -(-info.width // shrink)
