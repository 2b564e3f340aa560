"""Rows of an index: all samples described, bad ones too, stored and read back."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pil

from libhelix.errors import IndexProblem, RecipeError, TooManyBadSamples
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.plan.caps import row_bytes
from libhelix.plan.layout import schema_of
from libhelix.recipe import Recipe, Rng
from libhelix.recipes import Clip, Image
from libhelix.recipes import describe as describing
from libhelix.recipes.describe import describe_all
from libhelix.recipes.rows import Rows, command, path_of, spec_of, stored_rows
from libhelix.recipes.run import Loaded, describe_row
from libhelix.wire.settings import FixedBatch
from tests.system.recipes import Drawn, Patchy, Restless, Tokens

SAMPLES = 40


def _stored(index: Index, recipe: Recipe, seed: int, epoch: int) -> Rows:
    return stored_rows([index], recipe, seed=seed, epoch=epoch, mixed=False, batching=FixedBatch(1))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("images")
    for i in range(SAMPLES):
        Pil.new("RGB", (8, 8), (i, 0, 0)).save(folder / f"{i:03d}.png")
    build([folder], folder / "images.arrow")
    return Index.open(folder / "images.arrow")


@pytest.mark.parametrize("recipe", [Tokens(), Drawn(), Patchy(failing=(3, 17)), Image(size=(32, 32))])
def test_rows_are_those_that_planning_gets_from_workers(index: Index, recipe: Recipe, tmp_path: Path) -> None:
    made = describe_all(index, recipe, seed=5)
    made.write(str(tmp_path / "x.rows.arrow"))
    read = Rows.open(str(tmp_path / "x.rows.arrow"))
    loaded = Loaded(recipe, type(recipe).__qualname__, index, 5)
    desc = recipe.describe(index[0], Rng(5, 0, 0))
    for rows in (made, read):
        assert len(rows) == SAMPLES
        for i in range(SAMPLES):
            row, _ = describe_row(loaded, 0, i)
            assert rows[i].costs == row.costs
            assert (rows[i].group, rows[i].error, rows[i].id) == (row.group, row.error, i)
            assert sum(rows[i].segment_us) == sum(row.segment_us)
            assert row_bytes(rows.schema, rows[i]) == row_bytes(schema_of(desc), row)
    assert read.origin == made.origin
    assert read.origin.drawn == isinstance(recipe, Drawn)
    assert read.origin.numbered == (not isinstance(recipe, Image))


def test_a_sample_that_ends_the_process_is_named_and_the_others_are_there(index: Index) -> None:
    rows = describe_all(index, Patchy(deadly=9, failing=(2,)))
    assert set(rows.errors) == {2, 9}
    assert rows.errors[9] == "009.png: describe ended its process (SIGSEGV)"
    assert "002.png: Patchy raised KeyError: 'caption'" in rows.errors[2]
    assert np.flatnonzero(rows.costs["tokens"] < 0).tolist() == [2, 9]


def test_many_questions_and_processes_give_the_same(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    once = describe_all(index, Tokens())
    monkeypatch.setattr(describing, "_SAMPLES_PER_QUESTION", 3)
    monkeypatch.setattr(describing, "_SAMPLES_PER_PROCESS", 10)
    often = describe_all(index, Tokens(), progress=lambda done, total: seen.append((done, total)))
    assert [often[i] for i in range(SAMPLES)] == [once[i] for i in range(SAMPLES)]
    assert seen[-1] == (SAMPLES, SAMPLES)
    assert len(seen) == 14


def test_what_concerns_the_recipe_stops_everything(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match="field 'x' is stacked and has shape"):
        describe_all(index, Restless())
    with pytest.raises(TooManyBadSamples, match=r"describe failed for all 40 samples; the first: 000\.png"):
        describe_all(index, Clip(frames=2))
    monkeypatch.setattr(describing, "_SAMPLES_PER_QUESTION", 1)
    with pytest.raises(RecipeError, match="field 'x' is stacked and has shape"):
        describe_all(index, Restless())
    monkeypatch.setattr(describing, "_CODE", "raise SystemExit(3)")
    with pytest.raises(RecipeError, match=r"does not start \(exit code 3\); run "):
        describe_all(index, Tokens())


def test_rows_are_found_by_index_and_recipe(index: Index) -> None:
    recipe = Patchy(failing=(1,))
    path = path_of(index, recipe)
    assert os.path.dirname(path) == os.path.dirname(index.path)
    assert path != path_of(index, Patchy())
    with pytest.raises(IndexProblem, match=r"make them with: helixctl describe .*images\.arrow --recipe"):
        _stored(index, recipe, 0, 0)
    rows = describe_all(index, recipe)
    rows.write(path)
    assert _stored(index, recipe, 9, 9).errors.keys() == {1}
    os.replace(path, path_of(index, Tokens()))
    with pytest.raises(IndexProblem, match="rows of another index or recipe"):
        _stored(index, Tokens(), 0, 0)


def test_drawn_rows_hold_for_their_seed_and_epoch_only(index: Index) -> None:
    recipe = Patchy(drawn=True)
    describe_all(index, recipe, seed=4).write(path_of(index, recipe))
    assert _stored(index, recipe, 4, 0).origin.drawn
    with pytest.raises(IndexProblem, match=r"of seed 4, epoch 0, not of seed 3, epoch 0; make them with"):
        _stored(index, recipe, 3, 0)
    with pytest.raises(IndexProblem, match=r"not of seed 4, epoch 1; other epochs have no known length"):
        _stored(index, recipe, 4, 1)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_damaged_rows_are_told_apart_from_none(index: Index, part: float, tmp_path: Path) -> None:
    path = tmp_path / "x.rows.arrow"
    describe_all(index, Tokens()).write(str(path))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(IndexProblem, match=r"x\.rows\.arrow: no rows, or truncated ones"):
        Rows.open(str(path))
    with pytest.raises(IndexProblem, match=r"images\.arrow: no rows"):
        Rows.open(index.path)
    with pytest.raises(IndexProblem, match="No such file"):
        Rows.open(str(tmp_path / "none"))


def test_equal_recipes_have_one_name_and_the_command_says_what_is_not_default(index: Index) -> None:
    one, other = Clip(rate=2, layout="pad"), Clip(rate=2.0, layout="pad", size=(224, 224))
    assert spec_of(one) == spec_of(other)
    words = command(index, one, 0).split(" --")
    assert words[1:] == ["recipe libhelix.recipes.clip:Clip", "param rate=2.0", "param 'layout=\"pad\"'"]
    assert command(index, one, 7).endswith(" --seed 7")
