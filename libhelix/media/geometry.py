"""Where the pixels of a picture go in a target: sizes and places, in integers only.

Sizes are (height, width). A picture "as shown" is upright and has square pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np

Fit = Literal["crop", "letterbox", "stretch"]
Size = tuple[int, int]

MOST_PIXELS = 178_956_970
"""Of a picture, and of what it is scaled to: a few hundred bytes must not cost gigabytes."""


SHRINK_LEAVES = 2
_MOST_ASPECT = 10


class Unfit(ValueError):
    """This picture cannot become pixels of the target; the text says why, not of which file."""


class Placed(NamedTuple):
    """The size to which a picture as shown is scaled, and where it then lies in the target: what is
    negative is cut off, at both sides."""

    scaled: Size
    top: int
    left: int


def placed(shown: Size, target: Size, fit: Fit) -> Placed:
    """Where a picture goes: it covers the target ("crop"), lies in its middle ("letterbox"), or is its size
    ("stretch"). Raises Unfit for a picture so narrow that covering the target would take gigabytes."""
    if fit == "stretch":
        return Placed(target, 0, 0)
    scaled = cover_size(*shown, target) if fit == "crop" else contain_size(*shown, target)
    (sh, sw), (h, w) = scaled, target
    if sh * sw > max(MOST_PIXELS, h * w):
        raise Unfit(
            f"{shown[1]}x{shown[0]} scaled to cover {w}x{h} would be {sw}x{sh}; leave it out, or take "
            'fit="letterbox"'
        )
    if fit == "crop":
        return Placed(scaled, -((sh - h) // 2), -((sw - w) // 2))
    return Placed(scaled, (h - sh) // 2, (w - sw) // 2)


def cover_size(height: int, width: int, target: Size) -> Size:
    """The size to which a picture is scaled so that it covers `target` = (h, w) with its aspect kept.

    With (H0, W0) the picture as shown: where h*W0 >= w*H0 the height binds, and the size is
    (h, max(w, W0*h/H0)); else it is (max(h, H0*w/W0), w). Quotients round half up. The crop then begins at
    ((sh - h) // 2, (sw - w) // 2).
    """
    h, w = target
    if h * width >= w * height:
        return h, max(w, _rounded(width * h, height))
    return max(h, _rounded(height * w, width)), w


def contain_size(height: int, width: int, target: Size) -> Size:
    """The largest size within `target` that keeps a picture's aspect; its place is ((h - sh) // 2,
    (w - sw) // 2). The quotient rounds half up, and no side becomes 0."""
    h, w = target
    if h * width <= w * height:
        return h, max(1, min(w, _rounded(width * h, height)))
    return max(1, min(h, _rounded(height * w, width))), w


def _rounded(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)


def shrink_of(stored: Size, scaled: Size) -> int:
    """By how much the sides of a JPEG shrink in decoding, before it is scaled: the most of 8, 4, 2 that
    leaves both at least SHRINK_LEAVES times as long as they become; else 1."""
    for shrink in (8, 4, 2):
        if all(-(-a // shrink) >= SHRINK_LEAVES * b for a, b in zip(stored, scaled)):
            return shrink
    return 1


def turned(size: Size, orientation: int) -> Size:
    """The size of a picture before `upright`, from that after it, and the other way round."""
    return (size[1], size[0]) if orientation >= 5 else size


def upright(image: np.ndarray, orientation: int) -> np.ndarray:
    """The image [h, w, C] as it is meant to be seen, for EXIF's orientation 1..8; a view."""
    if orientation >= 5:
        image = image.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    return image


def turn_of(matrix: Sequence[int]) -> tuple[int, bool]:
    """(degrees clockwise, whether left and right are changed before) of a display matrix [a b u c d v x y w],
    which takes (x, y) to (a*x + c*y, b*x + d*y), y pointing down. Other angles go to the nearest of four."""
    a, b, c, d = matrix[0], matrix[1], matrix[3], matrix[4]
    mirrored = a * d < b * c
    if mirrored:
        a, b = -a, -b
    return round(math.degrees(math.atan2(b, a)) / 90) * 90 % 360, mirrored


def pixel_aspect(ratio: Fraction | None) -> tuple[int, int]:
    """A stream's sample aspect ratio; square where it has none, or one so far from square (beyond 10 to 1)
    that it must be damage."""
    if ratio is None or not Fraction(1, _MOST_ASPECT) <= ratio <= _MOST_ASPECT:
        return (1, 1)
    return (ratio.numerator, ratio.denominator)


def put(image: np.ndarray, out: np.ndarray, place: Placed, grey: int) -> None:
    """Copy an image [sh, sw, C] to its place in `out` [h, w, C], and `grey` where it leaves room."""
    (h, w), (sh, sw) = out.shape[:2], place.scaled
    top, left = max(0, place.top), max(0, place.left)
    high, wide = min(h, sh), min(w, sw)
    y, x = max(0, -place.top), max(0, -place.left)
    np.copyto(out[top : top + high, left : left + wide], image[y : y + high, x : x + wide])
    for rest in (out[:top], out[top + high :], out[:, :left], out[:, left + wide :]):
        rest[...] = grey
