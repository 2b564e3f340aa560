"""The demo's recipe: frames of a clip at a fixed rate, and the class that its folder names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

import msgspec
import numpy as np

from bench.demo.trace import traced
from libhelix.errors import RecipeError
from libhelix.recipe import Descriptor, Field, Part, Recipe, Rng, Sample
from libhelix.recipes import Clip


class LabelledClip(Recipe, frozen=True):
    """`video`: uint8 [frames, height, width, 3], packed over the batch; `label`: int64 [], stacked.

    Frames are taken at `rate` per second, at most `max_frames`, so that tokens, the declared cost, have the
    heavy tail of the lengths. `trace` names a folder for records of when samples were decoded.
    """

    rate: float = 4.0
    max_frames: int = 96
    size: tuple[int, int] = (96, 160)
    trace: str = ""

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """As the clip recipe describes it, and the label."""
        class_of(sample.key)  # a wrong key is known before anything is decoded
        clip = self._clip().describe(sample, rng)
        return msgspec.structs.replace(clip, fields=(*clip.fields, Field("label", "int64", ())))

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """The part's frames; the label with the first part."""
        with traced(self.trace, sample.id):
            if part.first:
                out["label"][...] = class_of(sample.key)
            self._clip().fill(sample, desc, part, out)

    def _clip(self) -> Clip:
        return Clip(rate=self.rate, max_frames=self.max_frames, size=self.size, order="THWC", layout="pack")


def class_of(key: str) -> int:
    """The class of a sample: N of its parent folder `classN`. Raises RecipeError for other keys."""
    folder = PurePosixPath(key).parent.name
    digits = folder.removeprefix("class")
    if folder == digits or not digits.isdecimal():
        raise RecipeError(f"{key}: the demo reads the class from a parent folder named class0, class1, ...")
    return int(digits)
