"""Single images, made to fit a size, as uint8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from libhelix.errors import MediaError, UsageError
from libhelix.media.geometry import Fit
from libhelix.media.image_cost import decode_cost_us
from libhelix.recipe import Descriptor, Field, Part, Recipe, Rng, Sample
from libhelix.recipes.frames import check_fit, check_size

_PATCH = 16


class Image(Recipe, frozen=True):
    """One field "image" of uint8 RGB: [h, w, 3] ("HWC") or [3, h, w] ("CHW"), (h, w) = `size`.

    fit: the image covers `size` and is cropped at the centre ("crop"), lies whole in its middle, the rest
    being of the level `grey` ("letterbox"), or is stretched to it.
    """

    size: tuple[int, int] = (224, 224)
    order: Literal["HWC", "CHW"] = "HWC"
    fit: Fit = "crop"
    grey: int = 0

    def __post_init__(self) -> None:
        check_size("Image", self.size)
        if self.order not in ("HWC", "CHW"):
            raise UsageError(f'Image(order={self.order!r}) must be "HWC" or "CHW"')
        check_fit("Image", self.fit, self.grey)

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """One unit; costs by the image's own size."""
        del rng
        item = sample.item("image")
        if item.image is None:
            raise MediaError(f"{sample.key}: indexed without an image header; run helixctl index again")
        h, w = self.size
        return Descriptor(
            fields=(Field("image", "uint8", (h, w, 3) if self.order == "HWC" else (3, h, w)),),
            segment_us=(decode_cost_us(item, self.size, self.fit),),
            costs={"tokens": max(1, (h // _PATCH) * (w // _PATCH))},
            kind=item.image.codec,
        )

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """Decode into `out["image"]`."""
        del desc
        from libhelix.media.image import decode

        if part.first:
            decode(sample.item("image"), out["image"], self.order, fit=self.fit, grey=self.grey)
