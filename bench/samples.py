"""The index as the bare loops read it: all samples in a list, and descriptors for planning a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec

from libhelix.errors import IndexProblem
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.recipe import Descriptor, Recipe, Rng, Sample, nbytes


class Visit(msgspec.Struct, frozen=True):
    """A sample in an epoch: what the random draws are keyed by."""

    sample: int
    epoch: int


VISIT = "visit"
"""The name under which a batch has its visits, int64 [samples, 2], where they are asked for."""


def write_index(clips: Path, out: Path) -> Path:
    """Index the clips into the file `out`. Raises IndexProblem where a clip is not usable."""
    made = build([clips], out)
    if made.refused:
        raise IndexProblem("; ".join(f"{path}: {why}" for path, why in made.refused))
    return out


def read_samples(index: Path) -> list[Sample]:
    """All samples of the index; a sample's id is its place in the list."""
    rows = Index.open(index)
    return [rows[i] for i in range(len(rows))]


def one_epoch(samples: Sequence[Sample], seed: int) -> list[Visit]:
    """Every sample once, shuffled."""
    ids = [s.id for s in samples]
    Random(seed).shuffle(ids)
    return [Visit(sample=i, epoch=0) for i in ids]


def describe(recipe: Recipe, samples: Sequence[Sample], visit: Visit, seed: int) -> Descriptor:
    """The descriptor that the loader gets for this visit too."""
    return recipe.describe(samples[visit.sample], Rng(seed, visit.epoch, visit.sample))


def descriptor_bytes(desc: Descriptor) -> int:
    """Bytes of all fields of a sample."""
    return sum(nbytes(f.dtype, f.shape) for f in desc.fields)


def heaviest_rank_tokens(
    tokens: Sequence[int], *, ranks: int, batch: int, seed: int, rounds: int = 400
) -> float:
    """Expected tokens of the rank that has most of them in a step, when samples are dealt at random."""
    draws = Random(seed)
    heaviest = (max(sum(draws.choices(tokens, k=batch)) for _ in range(ranks)) for _ in range(rounds))
    return sum(heaviest) / rounds
