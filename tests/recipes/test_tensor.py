"""Tensor: stored arrays as fields, whole and in parts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from libhelix.errors import MediaError, RecipeError, UsageError
from libhelix.media import probe_items
from libhelix.recipe import Descriptor, Pack, Pad, Part, Ragged, Recipe, Rng, Sample, Stack, check_descriptor
from libhelix.recipes import Tensor
from tests import stored

RNG = Rng(0, 0, 0)
ARRAYS = {
    "latent": ("bfloat16", stored.array("bfloat16", (6, 2, 3))),
    "mask": ("bool", stored.array("bool", (6,))),
    "scale": ("float32", stored.array("float32", ())),
}


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    path = stored.write_safetensors(tmp_path / "a.safetensors", ARRAYS)
    return Sample(0, "a.safetensors", probe_items(path))


def fill(recipe: Recipe, sample: Sample, bounds: tuple[int, ...] = ()) -> tuple[Descriptor, dict[str, Any]]:
    """All fields of a sample, in the parts that `bounds` (the descriptor's cuts by default) make."""
    desc = check_descriptor(recipe.describe(sample, RNG), "recipe")
    out: dict[str, Any] = {}
    for f in desc.fields:
        dtype = "uint16" if f.dtype == "bfloat16" else f.dtype
        out[f.name] = np.full((*f.shape, 2), 99).astype(dtype)[..., 0]
    for a, b in pairwise(bounds or (0, *desc.cuts, desc.units)):
        part = Part(a, b, desc.units)
        rows = {
            f.name: out[f.name][a * f.rows_per_unit : b * f.rows_per_unit] if f.rows_per_unit else out[f.name]
            for f in desc.fields
            if f.rows_per_unit or part.first
        }
        recipe.fill(sample, desc, part, rows)
    return desc, out


@pytest.mark.parametrize("bounds", [(), (0, 2, 3, 6)])
def test_every_array_is_a_field_of_its_name(sample: Sample, bounds: tuple[int, ...]) -> None:
    desc, out = fill(Tensor(), sample, bounds)
    assert [(f.name, f.dtype, f.shape, f.rows_per_unit) for f in desc.fields] == [
        ("latent", "bfloat16", (6, 2, 3), 1),
        ("mask", "bool", (6,), 0),
        ("scale", "float32", (), 0),
    ]
    assert (desc.units, desc.kind) == (6, "tensor")
    for name, (_, expected) in ARRAYS.items():
        np.testing.assert_array_equal(out[name], expected)


def test_names_choose_and_order_and_the_first_with_axes_is_split(sample: Sample) -> None:
    desc, out = fill(Tensor(names=("scale", "mask")), sample, (0, 1, 6))
    assert [(f.name, f.rows_per_unit) for f in desc.fields] == [("scale", 0), ("mask", 1)]
    np.testing.assert_array_equal(out["mask"], ARRAYS["mask"][1])


def test_layouts_are_for_all_or_by_name(sample: Sample) -> None:
    layouts: dict[str, Any] = {"latent": "pack", "mask": "pad"}
    desc = Tensor(layout=layouts, pad={"mask": 1}).describe(sample, RNG)
    assert [f.layout for f in desc.fields] == [Pack(counts="tokens"), Pad(1), Stack()]
    assert desc.costs == {"tokens": 6}
    desc = Tensor(layout="ragged").describe(sample, RNG)
    assert [f.layout for f in desc.fields] == [Ragged()] * 3
    assert desc.costs == {}


def test_a_lone_npy_file_is_the_field_tensor(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(5))
    sample = Sample(0, "a.npy", probe_items(tmp_path / "a.npy"))
    for recipe in (Tensor(), Tensor(names=("tensor",))):
        _, out = fill(recipe, sample)
        assert out["tensor"].tolist() == [0, 1, 2, 3, 4]


def test_an_array_without_rows_is_one_unit(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((0, 4), np.float32))
    desc, out = fill(Tensor(layout="pack"), Sample(0, "a.npy", probe_items(tmp_path / "a.npy")))
    assert (desc.units, desc.fields[0].rows_per_unit, desc.costs) == (1, 1, {"tokens": 0})
    assert out["tensor"].shape == (0, 4)


def test_long_arrays_are_cut_into_parts_of_some_megabytes(tmp_path: Path) -> None:
    expected = np.arange(5_000_000, dtype=np.int64).reshape(-1, 100)
    np.save(tmp_path / "a.npy", expected)
    desc, out = fill(Tensor(), Sample(0, "a.npy", probe_items(tmp_path / "a.npy")))
    assert len(desc.cuts) == 8
    assert len(set(np.diff([0, *desc.cuts, desc.units]).tolist())) <= 2
    np.testing.assert_array_equal(out["tensor"], expected)
    np.save(tmp_path / "b.npy", np.zeros(100_000_000, np.uint8))
    desc = Tensor().describe(Sample(0, "b.npy", probe_items(tmp_path / "b.npy")), RNG)
    assert len(desc.cuts) == 12
    check_descriptor(desc, "Tensor")


def test_a_sample_without_the_array_says_what_it_has(sample: Sample) -> None:
    with pytest.raises(MediaError, match=r"a\.safetensors: no array embedding, only latent, mask, scale"):
        Tensor(names=("latent", "embedding")).describe(sample, RNG)
    with pytest.raises(MediaError, match="no array at all, only nothing"):
        Tensor().describe(Sample(0, "x", ()), RNG)
    twice = Sample(0, "x", (*sample.items, *sample.items))
    with pytest.raises(MediaError, match="two arrays are named 'latent'"):
        Tensor().describe(twice, RNG)
    with pytest.raises(MediaError, match='one number; only "stack"'):
        Tensor(layout="pack").describe(sample, RNG)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"names": "latent"}, "different names"),
        ({"names": ()}, "different names"),
        ({"names": ("a", "a")}, "different names"),
        ({"layout": "packed"}, "must be of stack"),
        ({"layout": {"a": "x"}}, "must be of stack"),
        ({"names": ("a",), "layout": {"b": "pad"}}, r"names \['b'\], which"),
        ({"names": ("a",), "pad": {"b": 1}}, r"names \['b'\], which"),
    ],
)
def test_wrong_parameters_say_what_to_write(parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Tensor(**parameters)


def test_a_pad_value_that_the_array_cannot_hold_is_the_recipes_fault(sample: Sample) -> None:
    with pytest.raises(RecipeError, match="field 'mask' has pad value -1"):
        check_descriptor(Tensor(names=("mask",), layout="pad", pad=-1).describe(sample, RNG), "Tensor")


@pytest.mark.parametrize("recipe", [Tensor(), Tensor(("a",), {"a": "pack"}, {"a": 0.5}), Tensor(pad=2)])
def test_parameters_survive_the_way_to_workers(recipe: Tensor) -> None:
    assert msgspec.json.decode(msgspec.json.encode(recipe), type=Tensor) == recipe
