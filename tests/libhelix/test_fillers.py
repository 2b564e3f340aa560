"""Micro-batches without a sample are such that a model takes them as any other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pil

import libhelix as hx
from libhelix.errors import RecipeError, UsageError
from libhelix.index.build import build

N = 10


class Sized(hx.Recipe, frozen=True):
    """Sample i has 1 + i % 4 rows: packed ids, padded pictures, one of a group's shape."""

    counts: str = "tokens"

    def describe(self, sample: hx.Sample, rng: hx.Rng) -> hx.Descriptor:
        n = 1 + sample.id % 4
        return hx.Descriptor(
            (
                hx.Field("ids", "int64", (n,), hx.Pack(counts=self.counts, value=-1)),
                hx.Field("picture", "uint8", (n, 5, 3), hx.Pad()),
                hx.Field("latent", "float32", (n, 2), hx.Ragged()),
            ),
            costs={"tokens": n, "rows": n},
        )

    def fill(self, sample: Any, desc: Any, part: Any, out: Mapping[str, np.ndarray]) -> None:
        for field in out.values():
            field[...] = 1 + sample.id


class Grouped(hx.Recipe, frozen=True):
    """Stacked, with a shape for each of two groups."""

    def describe(self, sample: hx.Sample, rng: hx.Rng) -> hx.Descriptor:
        n = 2 + 3 * (sample.id % 2)
        return hx.Descriptor((hx.Field("x", "uint8", (n,)),), costs={"tokens": n}, group=f"g{n}")

    def fill(self, sample: Any, desc: Any, part: Any, out: Mapping[str, np.ndarray]) -> None:
        out["x"][...] = 1 + sample.id


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for i in range(N):
        Pil.new("RGB", (4, 4)).save(folder / f"{i}.png")
    path = folder / "x.arrow"
    build([folder], path)
    return path


def _batches(index: Path, recipe: hx.Recipe, batching: Any, **more: Any) -> list[list[hx.Batch]]:
    """By rank, what two ranks get."""
    found = []
    for rank in range(2):
        loader = hx.Loader(
            index, recipe=recipe, batching=batching, backend="inline", dp_rank=rank, dp_size=2, **more
        )
        with loader:
            found.append(list(loader))
    return found


def test_fillers_alone_have_all_but_the_lengths_of_their_neighbours(index: Path) -> None:
    ranks = _batches(index, Sized(), hx.TokenBudget(6, per_step=1), end="pad")
    empty = [batch for batches in ranks for batch in batches if not batch.num_samples]
    assert empty
    for batch in empty:
        assert batch["ids"].shape == (1,)
        assert batch["picture"].shape == (1, 1, 5, 3)
        assert batch["latent"][0].shape == (1, 2)
        assert not batch.valid.any()
        assert batch["ids"].tolist() == [-1]
        assert batch["picture"].sum() == 0


def test_a_pack_of_fillers_is_padded_as_any_other(index: Path) -> None:
    ranks = _batches(index, Sized(), hx.Packed(8, pad_to=8, per_step=1), end="pad")
    for batches in ranks:
        for batch in batches:
            assert batch["ids"].shape == (8,)
            assert batch.host["ids_cu_seqlens"][-1] == 8
    assert any(not batch.num_samples for batch in ranks[0] + ranks[1])


def test_fillers_beside_samples_add_nothing_to_packs(index: Path) -> None:
    ranks = _batches(index, Sized(), hx.FixedBatch(3), end="pad")
    last = [batches[-1] for batches in ranks]
    assert sum(batch.fillers for batch in last) == 2
    for batch in last:
        assert len(batch["ids"]) == batch.num_tokens


def test_padding_that_pads_nothing_is_an_error(index: Path) -> None:
    with pytest.raises(RecipeError, match=r"pads packed fields that count tokens, and none does"):
        _batches(index, Sized(counts=""), hx.Packed(8, pad_to=8))
    _batches(index, Sized(counts=""), hx.Packed(8))


def test_stacked_fields_have_a_shape_for_each_group_of_buckets(index: Path) -> None:
    for same in ("batch", "step"):
        ranks = _batches(index, Grouped(), hx.Buckets(10, same_kind=same), end="pad")
        got = sorted(i for batches in ranks for batch in batches for i in batch.ids if i >= 0)
        assert got == list(range(N))
        for batches in ranks:
            for batch in batches:
                assert batch["x"].shape[1] in (2, 5)
    with pytest.raises(RecipeError, match="is stacked and has shape"):
        _batches(index, Grouped(), hx.FixedBatch(2))


def test_what_is_left_of_a_group_is_shared_out_over_one_step(index: Path) -> None:
    # Five samples of each group, two a batch, two ranks: a step of four, and one is left.
    ranks = _batches(index, Grouped(), hx.Buckets(4, max_samples=2, power=0.0, same_kind="step"), end="drop")
    assert all(batch.num_samples and not batch.fillers for batches in ranks for batch in batches)
    assert sum(batch.num_samples for batches in ranks for batch in batches) == 8
    ranks = _batches(index, Grouped(), hx.Buckets(4, max_samples=4, power=0.0, same_kind="step"), end="drop")
    assert [batch.num_samples for batch in ranks[0]] == [3, 3]
    assert [batch.num_samples for batch in ranks[1]] == [2, 2]


def test_targets_that_no_recipe_declares_are_an_error_and_not_nothing(index: Path) -> None:
    ((batch, *_), _) = _batches(index, Sized(), hx.FixedBatch(2))
    for name in ("num_targets", "global_targets"):
        with pytest.raises(UsageError, match=r'declares no cost "targets".*global_samples'):
            getattr(batch, name)
