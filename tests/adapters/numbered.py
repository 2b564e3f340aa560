"""Samples that say which they are, in tensors, so that a model can note what it is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import libhelix as hx


class Numbered(hx.Recipe, frozen=True):
    """The number of the sample, and four floats of it."""

    def describe(self, sample: hx.Sample, rng: hx.Rng) -> hx.Descriptor:
        return hx.Descriptor(
            fields=(
                hx.Field("number", "int64", ()),
                hx.Field("x", "float32", (4,)),
                hx.Field("input_ids", "int64", (5,)),
                hx.Field("labels", "int64", (5,)),
            )
        )

    def fill(
        self, sample: hx.Sample, desc: hx.Descriptor, part: hx.Part, out: Mapping[str, np.ndarray]
    ) -> None:
        out["number"][...] = sample.id
        out["x"][...] = sample.id / 24
        out["input_ids"][...] = sample.id * 10 + np.arange(5)
        out["labels"][...] = sample.id * 10 + np.arange(5)


def loader(index: Path, samples: int = 2, **options: Any) -> hx.Loader:
    """A loader of these; by default without a daemon."""
    options = {"backend": "inline", **options}
    return hx.Loader(index, recipe=Numbered(), batching=hx.FixedBatch(samples), **options)
