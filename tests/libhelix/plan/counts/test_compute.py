"""Relative cost: exact, growing faster than the sequence."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhelix.errors import UsageError
from libhelix.plan.counts import compute

from .shapes import some

tokens = st.integers(0, 1_000_000)


def test_known_costs() -> None:
    assert compute.decoder(1000) == 24_576_000 + 1_000_000
    assert compute.dit(10, 8) == 24 * 10 * 64 + 4 * 100 * 8
    assert compute.dit(10, 8, Fraction(1, 3)) == 24 * 10 * 64 + 1066
    assert compute.decoder(0) == compute.dit(0, 8) == 0


@pytest.mark.parametrize("gamma", [-1.0, float("nan"), float("inf")])
def test_a_fit_gone_wrong_is_refused(gamma: float) -> None:
    with pytest.raises(UsageError, match="gamma"):
        compute.dit(10, 8, gamma)


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="tokens"):
        compute.decoder(-1)
    with pytest.raises(UsageError, match="width"):
        compute.dit(1, 0)


@some
@given(tokens, tokens, st.integers(1, 8192), st.floats(0, 16))
def test_one_long_sequence_costs_at_least_its_parts(a: int, b: int, width: int, gamma: float) -> None:
    assert compute.decoder(a + b) >= compute.decoder(a) + compute.decoder(b)
    assert compute.dit(a + b, width, gamma) >= compute.dit(a, width, gamma) + compute.dit(b, width, gamma)


@some
@given(tokens, st.integers(1, 8192))
def test_a_unit_gamma_is_exact(n: int, width: int) -> None:
    assert compute.dit(n, width) == 4 * n * width * (6 * width + n)
