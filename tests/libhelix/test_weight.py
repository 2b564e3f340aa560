"""A job's weight is a number from 1 to 3, and nice values that make up for it."""

from __future__ import annotations

import pytest

from libhelix.errors import UsageError
from libhelix.weight import nicer_by, weight_of


def test_none_said_is_one() -> None:
    assert weight_of({}) == 1.0
    assert nicer_by(1.0) == 0


@pytest.mark.parametrize("text", ["0", "0.5", "4", "many", "nan", "-1", ""])
def test_others_are_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="HELIX_WEIGHT"):
        weight_of({"HELIX_WEIGHT": text})


def test_nice_values_stay_where_everybody_may_set_them() -> None:
    assert nicer_by(weight_of({"HELIX_WEIGHT": "2"})) == 3
    assert 5 - nicer_by(weight_of({"HELIX_WEIGHT": "3"})) >= 0
