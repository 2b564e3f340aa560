"""What decoding an image will cost, from its header."""

from __future__ import annotations

from typing import NamedTuple

from libhelix.errors import MediaError
from libhelix.media.geometry import Fit, Size
from libhelix.recipe import Item


class _Cost(NamedTuple):
    """CPU microseconds for a million pixels, and for a million bytes of the file."""

    per_mpx: int
    per_mb: int


_OPENING_US = 300
_COSTS = {
    "jpeg": _Cost(2400, 0),
    "png": _Cost(11_000, 0),
    "webp": _Cost(5000, 0),
    "gif": _Cost(5000, 0),
    "bmp": _Cost(1500, 0),
}
_OTHER = _Cost(5000, 0)


def decode_cost_us(item: Item, size: Size, fit: Fit) -> int:
    """Predicted CPU microseconds of decoding an image into `size` pixels."""
    info = item.image
    if info is None:
        raise MediaError(f"{item.path}: indexed without an image header; run helixctl index again")
    pixels = info.width * info.height
    cost = _COSTS.get(info.codec, _OTHER)
    return _OPENING_US + (pixels * cost.per_mpx + item.size * cost.per_mb) // 1_000_000
