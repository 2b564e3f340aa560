"""Sizes into which pictures are sorted, so that those of a batch have one.

Source: musubi-tuner, `BucketSelector`.
"""

from __future__ import annotations

import math
from functools import lru_cache

from libhelix.plan.counts._numbers import check_picture, check_setting

Size = tuple[int, int]
"""(height, width)"""


@lru_cache(maxsize=64)
def bucket_sizes(area: int, multiple: int = 16) -> tuple[Size, ...]:
    """Sizes of about `area` pixels whose sides are multiples: for every width from half the square's side up
    to it, the largest height that keeps the area, and the same lying. Sorted by (width, height)."""
    check_setting("area", area, multiple * multiple)
    check_setting("multiple", multiple)
    side = math.isqrt(area)
    found = set()
    for width in range(side // 2 // multiple * multiple, side + multiple, multiple):
        if width < multiple:
            continue
        height = area // width // multiple * multiple
        if height >= multiple:
            found |= {(height, width), (width, height)}
    return tuple(sorted(found, key=lambda size: (size[1], size[0])))


def bucket_for(height: int, width: int, area: int, multiple: int = 16) -> Size:
    """The size whose aspect ratio w / h is nearest; of equally near ones, the first."""
    check_picture(height, width)
    aspect = width / height
    return min(bucket_sizes(area, multiple), key=lambda size: abs(size[1] / size[0] - aspect))
