"""len(loader) is the number of batches that come, for every batching, once the rows lie beside the index."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pil

import libhelix as hx
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.recipes.describe import describe_all
from libhelix.recipes.rows import path_of
from tests.system.recipes import Patchy, Tokens

SAMPLES = 97
BATCHINGS: dict[str, Any] = {
    "fixed": hx.FixedBatch(5, regroup=3),
    "tokens": hx.TokenBudget(19),
    "samples": hx.TokenBudget(19, max_samples=3, regroup=2),
    "bytes": hx.TokenBudget(50, max_bytes=2400),
    "few": hx.TokenBudget(6, oversize="skip", regroup=1),
    "packed": hx.Packed(24, pad_to=8, max_patches=40),
    "per step": hx.Packed(24, per_step=2),
    "buckets": hx.Buckets(20, max_samples=6),
    "square": hx.Buckets(60, power=2.0, same_kind="step", max_bytes=4000),
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for i in range(SAMPLES):
        Pil.new("RGB", (8, 8), (i, 0, 0)).save(folder / f"{i:03d}.png")
    build([folder], folder / "images.arrow")
    return folder / "images.arrow"


def _describe(path: Path, recipe: hx.Recipe, seed: int = 0) -> None:
    index = Index.open(path)
    describe_all(index, recipe, seed=seed).write(path_of(index, recipe))


def _loader(path: Any, recipe: hx.Recipe, batching: Any, **how: Any) -> hx.Loader:
    how = {"dp_rank": 0, "dp_size": 1, "backend": "inline", **how}
    return hx.Loader(path, recipe=recipe, batching=batching, **how)


@pytest.mark.parametrize("kind", BATCHINGS)
@pytest.mark.parametrize("end", ["drop", "pad"])
def test_as_many_batches_come_as_len_says(index: Path, kind: str, end: Any) -> None:
    recipe = Patchy(failing=(7, 50))
    _describe(index, recipe)
    for ranks, micro_batches, epochs, seed in ((2, 1, 1, 0), (3, 1, 2, 3), (1, 2, 1, 1)):
        how = {"dp_size": ranks, "micro_batches": micro_batches, "epochs": epochs, "seed": seed, "end": end}
        loader = _loader(index, recipe, BATCHINGS[kind], **how)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hx.HelixWarning)  # samples are masked
            said = len(loader)
            assert sum(1 for _ in loader) == said
            assert len(loader) == sum(1 for _ in loader)


def test_inside_an_iteration_it_is_the_length_of_that_one(index: Path) -> None:
    _describe(index, Tokens())
    loader = _loader(index, Tokens(), hx.TokenBudget(19), epochs=2)
    said = len(loader)
    batches = iter(loader)
    for _ in range(said - 1):
        next(batches)
        assert len(loader) == said


def test_without_rows_the_text_says_what_to_type(index: Path) -> None:
    loader = _loader(index, Patchy(failing=(1, 2)), hx.TokenBudget(19), seed=3)
    with pytest.raises(TypeError, match=r"helixctl describe \S+images\.arrow --recipe tests.*:Patchy .*"):
        len(loader)
    with pytest.raises(TypeError, match=r"--param 'failing=\[1,2\]' --seed 3$"):
        len(loader)
    with pytest.warns(hx.HelixWarning, match="masked"):
        assert len(list(loader)) > 0  # list() asks for a hint, and does without
    assert len(_loader(index, Patchy(failing=(1, 2)), hx.FixedBatch(10))) == 9
    with pytest.raises(TypeError, match="epochs=None has no length"):
        len(_loader(index, Tokens(), hx.TokenBudget(19), epochs=None))


def test_rows_that_were_drawn_give_the_length_of_their_epoch(index: Path) -> None:
    recipe = Patchy(drawn=True)
    _describe(index, recipe, seed=2)
    batching = hx.Buckets(20)
    loader = _loader(index, recipe, batching, seed=2)
    said = len(loader)
    assert sum(1 for _ in loader) == said
    with pytest.raises(TypeError, match="other epochs have no known length"):
        len(loader)
    with pytest.raises(TypeError, match="of seed 2, epoch 0, not of seed 1"):
        len(_loader(index, recipe, batching, seed=1))


def test_the_length_is_planned_once(index: Path) -> None:
    recipe = Patchy(failing=(3,))
    _describe(index, recipe)
    loader = _loader(index, recipe, hx.TokenBudget(19))
    said = len(loader)
    Path(path_of(Index.open(index), recipe)).unlink()
    assert len(loader) == said


def test_a_sample_that_is_too_large_is_the_same_error_as_in_the_loop(index: Path) -> None:
    _describe(index, Tokens())
    with pytest.raises(hx.Oversize, match=r"exceed 6 tokens, the largest, sample \d+ \(\d+\.png\), has 7"):
        len(_loader(index, Tokens(), hx.TokenBudget(6)))


@pytest.mark.parametrize("kind", ["tokens", "bytes", "packed", "buckets", "square"])
def test_mixtures_have_a_length_once_all_their_sources_have_rows(
    index: Path, kind: str, tmp_path: Path
) -> None:
    for i in range(30):
        Pil.new("RGB", (8, 8), (0, i, 0)).save(tmp_path / f"{i:03d}.png")
    build([tmp_path], tmp_path / "other.arrow")
    other, recipe = tmp_path / "other.arrow", Patchy(failing=(11,), by_key=True)
    mixture = hx.Mixture({index: 0.4, other: 0.6}, epoch_samples=120)
    Path(path_of(Index.open(index), recipe)).unlink(missing_ok=True)
    both = r"helixctl describe \S+images\.arrow .* && helixctl describe \S+other\.arrow"
    with pytest.raises(TypeError, match=both):
        len(_loader(mixture, recipe, BATCHINGS[kind]))
    _describe(index, recipe)
    with pytest.raises(TypeError, match=r"helixctl describe \S+other\.arrow"):
        len(_loader(mixture, recipe, BATCHINGS[kind]))
    _describe(other, Patchy())
    os.replace(path_of(Index.open(other), Patchy()), path_of(Index.open(other), recipe))
    with pytest.raises(TypeError, match="rows of another index or recipe"):
        len(_loader(mixture, recipe, BATCHINGS[kind]))
    _describe(other, recipe)
    loader = _loader(mixture, recipe, BATCHINGS[kind], dp_size=2, epochs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hx.HelixWarning)  # samples are masked
        said = len(loader)
        assert sum(1 for _ in loader) == said
        assert len(loader) == sum(1 for _ in loader)
        said = len(loader)  # of the next epochs
        loader.set_weights({index: 0.1, other: 0.9})
        assert len(loader) == sum(1 for _ in loader)


def test_mixtures_have_none_where_costs_depend_on_draws_or_numbers(index: Path) -> None:
    for recipe, cause in ((Patchy(drawn=True), "random draws"), (Patchy(), "Sample.id")):
        _describe(index, recipe)
        with pytest.raises(TypeError, match=f"{cause}, so that mixtures have no known length"):
            len(_loader(hx.Mixture({index: 1.0}), recipe, hx.Buckets(20)))


def test_with_shrinking_the_length_is_known_where_nothing_has_to_shrink(index: Path) -> None:
    _describe(index, Tokens())
    for batching in (hx.TokenBudget(7, oversize="shrink"), hx.Packed(24, max_patches=14, oversize="shrink")):
        loader = _loader(index, Tokens(), batching)
        said = len(loader)
        assert sum(1 for _ in loader) == said
    seven = sum(i % 7 == 6 for i in range(SAMPLES))
    with pytest.raises(TypeError, match=rf'oversize="shrink": {seven} of 97 samples exceed 13 patches'):
        len(_loader(index, Tokens(), hx.Packed(24, max_patches=13, oversize="shrink")))
