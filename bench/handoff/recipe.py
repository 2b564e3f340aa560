"""A recipe for batches of any size that cost next to nothing to fill."""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import numpy as np

from libhelix.recipe import DTYPES, Descriptor, Field, Part, Recipe, Rng, Sample

_SHARES = (("pixels", "uint8", 0.9), ("features", "float32", 0.06), ("positions", "int64", 0.03))
_MASK = "mask"


class Blocks(Recipe, frozen=True):
    """Four flat fields that take `nbytes` bytes a sample together; `fill` writes one value to a page."""

    nbytes: int

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """The same for all samples."""
        del sample, rng
        fields, left = [], self.nbytes
        for name, dtype, share in _SHARES:
            count = int(self.nbytes * share) // DTYPES[dtype]
            left -= count * DTYPES[dtype]
            fields.append(Field(name, dtype, (count,)))
        return Descriptor(fields=(*fields, Field(_MASK, "bool", (left,))))

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """Touch every page."""
        del desc, part
        for field in out.values():
            field[:: max(1, mmap.PAGESIZE // field.itemsize)] = sample.id % 2
