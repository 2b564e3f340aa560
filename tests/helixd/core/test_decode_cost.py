"""What decoding costs is learned by kind, and how well that predicts is told rightly."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helixd.core.batch import CHEAP_CUT_US, GROUP_US, MIN_PART_US, part_limits_us, parts_of
from helixd.core.decode_cost import DecodeCosts, mape, rank_correlation
from libhelix.recipe import OPENING_US
from libhelix.wire import codec
from libhelix.wire import messages as m
from libhelix.wire.messages import Row

factors = st.floats(0.01, 100.0)


@given(factors, factors, st.integers(0, 1 << 32))
def test_each_kind_comes_to_its_own_factor(h264: float, av1: float, seed: int) -> None:
    costs, draws = DecodeCosts(), random.Random(seed)
    for _ in range(200):
        for kind, factor in (("h264", h264), ("av1", av1)):
            declared = draws.randrange(10_000, 1_000_000)
            costs.learn(kind, declared, max(1, round(declared * factor * math.exp(draws.gauss(0, 0.2)))))
    assert costs.scale("h264") == pytest.approx(h264, rel=0.25)
    assert costs.scale("av1") == pytest.approx(av1, rel=0.25)
    assert costs.scale("hevc") == 1.0
    assert costs.scales() == {"h264": costs.scale("h264"), "av1": costs.scale("av1")}


@given(factors)
def test_the_first_measurement_counts_in_full_and_few_are_enough(factor: float) -> None:
    costs = DecodeCosts()
    costs.learn("h264", 1_000_000, round(1_000_000 * factor))
    assert costs.scale("h264") == pytest.approx(factor, rel=1e-3)
    assert costs.scales() == {}, "one measurement is nothing to keep for other jobs"


def test_a_factor_that_changes_is_followed() -> None:
    costs = DecodeCosts()
    for _ in range(100):
        costs.learn("h264", 10_000, 10_000)
    for _ in range(60):
        costs.learn("h264", 10_000, 30_000)
    assert costs.scale("h264") == pytest.approx(3.0, rel=0.05)


@given(st.integers(10, 1_000_000), st.integers(12, 200))
def test_a_stall_does_not_move_it_far(times: int, before: int) -> None:
    costs = DecodeCosts()
    for _ in range(before):
        costs.learn("h264", 10_000, 10_000)
    costs.learn("h264", 10_000, 10_000 * times)
    assert costs.scale("h264") <= math.exp(0.1) + 1e-9
    for _ in range(20):
        costs.learn("h264", 10_000, 10_000)
    assert costs.scale("h264") == pytest.approx(1.0, abs=0.02)


def test_what_earlier_jobs_learned_is_where_it_starts_and_no_more() -> None:
    costs = DecodeCosts()
    costs.learn("vp9", 10_000, 20_000)
    costs.start_from({"h264": 3.0, "vp9": 5.0})
    assert costs.scale("h264") == pytest.approx(3.0)
    assert costs.scale("vp9") == pytest.approx(2.0), "what this job knows stands"
    costs.learn("h264", 10_000, 20_000)
    assert costs.scale("h264") == pytest.approx(2.0)


@pytest.mark.parametrize(("declared", "measured"), [(0, 10), (10, 0), (-1, 10), (10, -1)])
def test_what_took_or_declared_nothing_teaches_nothing(declared: int, measured: int) -> None:
    costs = DecodeCosts()
    costs.learn("h264", declared, measured)
    assert costs.quality() == []


def test_kinds_without_end_are_learned_as_one() -> None:
    costs = DecodeCosts()
    for n in range(1000):
        costs.learn(f"kind {n}", 10, 20)
    assert len(costs.quality()) <= 257
    assert costs.quality()[0].kind == ""


def test_quality_is_of_predictions_made_before_the_parts_ran() -> None:
    costs = DecodeCosts()
    costs.learn("h264", 100, 200)  # predicted 100: off by 50 %; learns a factor of 2
    costs.learn("h264", 100, 200)  # predicted 200: right
    (quality,) = costs.quality()
    assert (quality.kind, quality.tasks) == ("h264", 2)
    assert quality.scale == pytest.approx(2.0)
    assert quality.mape == pytest.approx(0.25)
    assert quality.rank_correlation is None


def test_errors_and_rank_correlations_are_those_worked_out_by_hand() -> None:
    assert mape([(110.0, 100.0), (50.0, 100.0), (100.0, 100.0)]) == pytest.approx((0.1 + 0.5 + 0.0) / 3)
    assert rank_correlation([(1, 10), (2, 20), (3, 30)]) == pytest.approx(1.0)
    assert rank_correlation([(1, 30), (2, 20), (3, 10)]) == pytest.approx(-1.0)
    # Ranks 1 2 3 4 5 against 2 1 4 3 5: 1 - 6 * (1 + 1 + 1 + 1) / (5 * 24)
    assert rank_correlation([(1, 2), (2, 1), (3, 4), (4, 3), (5, 5)]) == pytest.approx(0.8)
    # Ties share their mean rank: 1 2.5 2.5 4 against 1 2 3 4 gives 4.5 / sqrt(4.5 * 5)
    assert rank_correlation([(1, 1), (2, 2), (2, 3), (3, 4)]) == pytest.approx(4.5 / math.sqrt(22.5))
    assert rank_correlation([(1, 1), (1, 2), (1, 3)]) is None
    assert rank_correlation([(1, 1), (2, 2)]) is None


def test_parts_beyond_the_first_are_expected_to_open_the_file_again() -> None:
    row = Row(0, (), {}, 8, (2, 4, 6), (20_000, 10_000, 5_000, 30_000))
    assert parts_of(row, 1e9) == [(0, 8, 65_000)]
    assert parts_of(row, 30_000) == [(0, 2, 20_000), (2, 6, OPENING_US + 15_000), (6, 8, OPENING_US + 30_000)]
    assert parts_of(row, 1) == [
        (0, 2, 20_000),
        (2, 4, OPENING_US + 10_000),
        (4, 6, OPENING_US + 5_000),
        (6, 8, OPENING_US + 30_000),
    ]
    assert parts_of(Row(0, (), {}, 8, (), (7,)), 1) == [(0, 8, 7)]


@pytest.mark.parametrize(
    ("window_s", "ring", "part_us"),
    [
        (0.4, 2, 100_000),  # a quarter of the window
        (0.4, 8, 100_000),
        (0.1, 2, 25_000),
        (0.1, 3, CHEAP_CUT_US),  # a quarter would open files anew, and the batch is not due for two windows
        (0.02, 3, 20_000),  # no longer than the window that is to spare
        (0.02, 4, 40_000),
        (0.02, 1, MIN_PART_US),
        (0.001, 3, MIN_PART_US),
    ],
)
def test_samples_are_cut_as_finely_as_the_time_before_they_are_due_asks_for(
    window_s: float, ring: int, part_us: int
) -> None:
    assert part_limits_us(1e6, 8, window_s, ring) == (part_us, min(GROUP_US, int(window_s * 1e6 / 4)))


def test_a_recipe_that_makes_up_kinds_is_told_of_as_many_as_fit_a_message() -> None:
    costs = DecodeCosts()
    for kind in range(400):
        for _ in range(20):
            costs.learn(f"{kind}" * 20, 1000, 2000)
    assert len(costs.scales()) <= 64
    codec.to_trainer(codec.encode(m.Learned(1, costs.scales())))


def test_parts_are_about_equally_dear_and_no_more_than_have_to_be() -> None:
    row = Row(0, (), {}, 17, tuple(range(1, 17)), (10_000,) * 17)
    parts = parts_of(row, 52_000)
    costs = [us for _, _, us in parts]
    assert (
        len(parts) == 4
    )  # 4.25 segments each, where cutting as late as possible gives 5, 4, 4 and a rest of 4
    assert max(costs) - min(costs) <= 10_000 + OPENING_US
    assert (parts[0][0], parts[-1][1]) == (0, 17)
    assert all(a[1] == b[0] for a, b in pairwise(parts))
    uneven = parts_of(Row(0, (), {}, 5, (1, 2, 3, 4), (40_000, 40_000, 10_000, 10_000, 10_000)), 90_000)
    assert [(a, b) for a, b, _ in uneven] == [(0, 1), (1, 5)]
