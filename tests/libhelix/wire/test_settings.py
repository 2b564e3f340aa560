"""Ranks that disagree read in which setting, and what both sides have."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhelix.wire.settings import FixedBatch, Position, RecipeSpec, Settings, differences


def _settings(**changes: Any) -> Settings:
    base: dict[str, Any] = {
        "recipe": RecipeSpec("libhelix.recipes.clip", "Clip", '{"size":[224,224],"frames":8}'),
        "index_fingerprint": "f00d",
        "index_samples": 100,
        "batching": FixedBatch(4),
        "seed": 1,
        "shuffle": True,
        "dp_size": 2,
        "replicas": 1,
        "micro_batches": 1,
        "ring": 3,
        "on_bad": "mask",
    }
    return Settings(**{**base, **changes})


def test_equal_settings_have_no_differences() -> None:
    assert differences(_settings(), _settings()) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 2}, "seed 1 there, 2 here"),
        ({"shuffle": False}, "shuffle True there, False here"),
        ({"ring": 8}, "ring 3 there, 8 here"),
        ({"on_bad": "raise"}, "on_bad 'mask' there, 'raise' here"),
        ({"index_fingerprint": "beef"}, "index_fingerprint 'f00d' there, 'beef' here"),
        ({"batching": FixedBatch(8)}, "batching.samples 4 there, 8 here"),
        ({"batching": FixedBatch(4, max_bytes=9)}, "batching.max_bytes None there, 9 here"),
    ],
)
def test_a_difference_names_the_setting_and_both_values(changes: dict[str, Any], said: str) -> None:
    assert differences(_settings(), _settings(**changes)) == [said]


def test_a_parameter_of_the_recipe_is_named_with_its_path() -> None:
    theirs = RecipeSpec("libhelix.recipes.clip", "Clip", '{"size":[256,256],"frames":8}')
    (said,) = differences(_settings(), _settings(recipe=theirs))
    assert said == "recipe.params.size [224, 224] there, [256, 256] here"


def test_the_order_of_recipe_parameters_does_not_matter() -> None:
    theirs = RecipeSpec("libhelix.recipes.clip", "Clip", '{"frames":8,"size":[224,224]}')
    assert differences(_settings(), _settings(recipe=theirs)) == []


def test_every_difference_is_named() -> None:
    assert len(differences(_settings(), _settings(seed=2, ring=4, dp_size=8))) == 3


positions = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))


@given(positions, positions)
def test_positions_are_ordered_as_batches_are_delivered(a: Any, b: Any) -> None:
    assert (Position(*a) < Position(*b)) == (a < b)


def test_a_misspelt_option_of_the_batching_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="max_byte"):
        msgspec.convert({"type": "fixed", "samples": 2, "max_byte": 9}, FixedBatch)
