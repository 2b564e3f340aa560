"""Shapes of pictures and videos for the tests, and what a function makes of one: its result, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from libhelix.errors import MediaError

many = settings(deadline=None, max_examples=1000)
some = settings(deadline=None, max_examples=200)

# Multiples of 14 and 16, odd ones too, lie on the ties of rounding.
sides = st.one_of(
    st.integers(1, 300), st.integers(1, 16_384), st.integers(1, 600).map(lambda n: 14 * n), st.just(448)
)
rates = st.one_of(
    st.sampled_from([23.976, 24.0, 25.0, 29.97, 30.0, 59.94, 60.0]), st.floats(0.5, 240, allow_nan=False)
)
totals = st.one_of(st.integers(1, 60), st.integers(1, 20_000))


def outcome(call: Callable[[], Any]) -> Any:
    """The result of a call, None where it refuses."""
    try:
        return call()
    except (AssertionError, MediaError, ValueError, ZeroDivisionError):
        return None
