"""Samples that take a known time to decode, and a known number of bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from random import Random

import numpy as np

from libhelix import Descriptor, Field, Part, Recipe, Rng, Sample

SLOWNESS = "HELIX_BENCH_SLOWNESS"
"""How many times as long as on others decoding takes on this node."""


class Paced(Recipe, frozen=True):
    """`x` uint8 [nbytes], of the sample's number. Decoding sleeps for a log-normal time of mean `mean_us`."""

    mean_us: int = 10_000
    sigma: float = 1.0
    nbytes: int = 4096

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:  # noqa: ARG002  # the contract
        """One part; the time is the sample's own."""
        spread = Random(sample.id).lognormvariate(-(self.sigma**2) / 2, self.sigma)
        return Descriptor(
            fields=(Field("x", "uint8", (self.nbytes,)),),
            costs={"tokens": 100},
            segment_us=(max(1, int(self.mean_us * spread)),),
        )

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:  # noqa: ARG002
        """Sleep, and write."""
        time.sleep(sum(desc.segment_us) * 1e-6 * float(os.environ.get(SLOWNESS, "1")))
        out["x"][...] = sample.id % 251
