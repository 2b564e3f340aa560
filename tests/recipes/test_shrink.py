"""A sample above a cap is described again under it, once for all who ask, and stays what it is otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from libhelix.errors import RecipeError
from libhelix.plan.layout import lay_out
from libhelix.recipe import Descriptor, Field, Pad, Recipe, Rng, Sample
from libhelix.recipes.run import Loaded, describe_row, fill
from libhelix.wire import messages as m
from tests.system.recipes import Shrinking, Tokens

SAMPLES = {i: Sample(i, str(i), ()) for i in range(40)}
CAPS = {"tokens": 5}


def _loaded(recipe: Recipe, caps: Mapping[str, int]) -> Loaded:
    return Loaded(recipe, type(recipe).__name__, SAMPLES, 3, caps)  # type: ignore[arg-type]


def _numbers(loaded: Loaded, sample: int, occurrence: int) -> list[int]:
    """What fill writes; its descriptor comes from a process that never planned."""
    row, schema = describe_row(loaded, 2, sample, occurrence)
    layout = lay_out(schema, [row])
    memory = bytearray(layout.nbytes)
    piece = m.Piece(sample, occurrence, 0, 1, layout.records[0], layout.places[0])
    fill(_loaded(loaded.recipe, loaded.caps), 2, piece, memory)
    place = layout.places[0][0]
    found: list[int] = np.frombuffer(memory, "int64", place.shape[0], place.offset).tolist()
    return found


def test_a_sample_above_a_cap_keeps_the_draws_that_fit_it() -> None:
    whole, capped = _loaded(Shrinking(), {}), _loaded(Shrinking(), CAPS)
    lengths = set()
    for sample in SAMPLES:
        for occurrence in range(2):
            numbers = _numbers(whole, sample, occurrence)
            assert _numbers(capped, sample, occurrence) == numbers[:5]
            lengths.add(len(numbers))
    assert lengths == set(range(1, 9))


class Odd(Recipe, frozen=True):
    """9 tokens, and what becomes of them when shrunk."""

    shrunk: int | None
    dtype: str = "uint8"

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        return self._of(9)

    def shrink(self, sample: Sample, rng: Rng, caps: Mapping[str, int]) -> Any:
        return None if self.shrunk is None else self._of(self.shrunk)

    def _of(self, n: int) -> Descriptor:
        return Descriptor((Field("x", self.dtype, (n,), Pad()),), costs={"tokens": n, "patches": 2 * n})


@pytest.mark.parametrize("recipe", [Tokens(), Odd(None), Odd(6), Odd(5)])
def test_what_is_not_shrunk_or_not_enough_stays_what_it_is(recipe: Recipe) -> None:
    caps = {"tokens": 5, "patches": 9}
    assert describe_row(_loaded(recipe, caps), 0, 6) == describe_row(_loaded(recipe, {}), 0, 6)


def test_caps_that_a_sample_keeps_do_not_shrink_it() -> None:
    assert describe_row(_loaded(Odd(1), {"tokens": 9, "frames": 1}), 0, 6)[0].costs["tokens"] == 9
    assert describe_row(_loaded(Odd(1), {"tokens": 8}), 0, 6)[0].costs["tokens"] == 1


def test_a_shrunk_descriptor_is_checked_like_any_other() -> None:
    class Wrong(Odd, frozen=True):
        def shrink(self, sample: Sample, rng: Rng, caps: Mapping[str, int]) -> Any:
            return 7

    with pytest.raises(RecipeError, match="returned int, not a"):
        describe_row(_loaded(Wrong(1), CAPS), 0, 6)


def test_an_error_in_shrink_concerns_its_sample() -> None:
    class Failing(Odd, frozen=True):
        def shrink(self, sample: Sample, rng: Rng, caps: Mapping[str, int]) -> Any:
            raise KeyError("caption")

    row, _ = describe_row(_loaded(Failing(1), CAPS), 0, 6)
    assert "6: Failing raised KeyError: 'caption'" in row.error
