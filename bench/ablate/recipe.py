"""Clips of which every one takes the same memory, so that a ring of three batches holds three, not more."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from libhelix.recipe import Descriptor, Field, Pack, Part, Recipe, Rng, Sample
from libhelix.recipes import Clip


class LevelClip(Recipe, frozen=True):
    """`video`: uint8 [frames, height, width, 3], packed over the batch, as tokens and decode cost vary.

    `level` adds `slack`, never written, that makes up for the frames a clip has less than `max_frames`.
    A DataLoader keeps so many batches whatever their size, and needs none.
    """

    rate: float = 4.0
    max_frames: int = 96
    size: tuple[int, int] = (64, 112)
    level: bool = True

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """As the clip recipe describes it, and the slack."""
        clip = self._clip().describe(sample, rng)
        if not self.level:
            return clip
        height, width = self.size
        nbytes = (self.max_frames - clip.units) * height * width * 3
        return msgspec.structs.replace(
            clip, fields=(*clip.fields, Field("slack", "uint8", (nbytes,), Pack()))
        )

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """The part's frames."""
        self._clip().fill(sample, desc, part, out)

    def _clip(self) -> Clip:
        return Clip(rate=self.rate, max_frames=self.max_frames, size=self.size, layout="pack")
