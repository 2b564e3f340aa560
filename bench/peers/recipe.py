"""Samples that take a known time to decode, and a known number of bytes."""

from __future__ import annotations

import itertools
import os
import time
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random

import numpy as np

import libhelix as hx
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
        out["x"][...] = _value_of(sample.id)


def _value_of(sample: int) -> int:
    return sample % 251


def checksum_of(samples: Iterable[int], nbytes: int) -> int:
    """Of a batch that arrived whole."""
    return zlib.crc32(b"".join(bytes([_value_of(sample)]) * nbytes for sample in samples))


def ids_of_one_node(index: Path, ranks: int, steps: int, batching: hx.FixedBatch) -> list[list[list[int]]]:
    """The samples of every rank and step, as each plans them by itself, without any daemon."""
    found = []
    for rank in range(ranks):
        loader = hx.Loader(
            index,
            recipe=Paced(mean_us=1, nbytes=1),
            batching=batching,
            backend="inline",
            dp_rank=rank,
            dp_size=ranks,
            epochs=None,
        )
        found.append([list(batch.ids) for batch in itertools.islice(loader, steps)])
    return found
