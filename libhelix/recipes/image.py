"""Single images, cropped to fill, as uint8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from libhelix.errors import MediaError, UsageError
from libhelix.recipe import Descriptor, Field, Part, Recipe, Rng, Sample
from libhelix.recipes.frames import check_size

_US_PER_MPX = {"jpeg": 2400, "png": 11_000, "webp": 5000, "gif": 5000, "bmp": 1500}
"""CPU microseconds to decode a million pixels, as measured at 1080p."""
_US_OPENING = 300
_PATCH = 16


class Image(Recipe, frozen=True):
    """One field "image" of uint8 RGB: [h, w, 3] ("HWC") or [3, h, w] ("CHW"), cropped to fill `size`."""

    size: tuple[int, int] = (224, 224)
    order: Literal["HWC", "CHW"] = "HWC"

    def __post_init__(self) -> None:
        check_size("Image", self.size)
        if self.order not in ("HWC", "CHW"):
            raise UsageError(f'Image(order={self.order!r}) must be "HWC" or "CHW"')

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """One unit; costs by the image's own size."""
        del rng
        item = sample.item("image")
        if item.image is None:
            raise MediaError(f"{sample.key}: indexed without an image header; run helixctl index again")
        h, w = self.size
        pixels = item.image.width * item.image.height
        us = _US_OPENING + pixels * _US_PER_MPX.get(item.image.codec, 5000) // 1_000_000
        return Descriptor(
            fields=(Field("image", "uint8", (h, w, 3) if self.order == "HWC" else (3, h, w)),),
            segment_us=(us,),
            costs={"tokens": max(1, (h // _PATCH) * (w // _PATCH))},
            kind=item.image.codec,
        )

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """Decode into `out["image"]`."""
        del desc
        from libhelix.media.image import decode

        if part.first:
            decode(sample.item("image"), out["image"], self.order)
