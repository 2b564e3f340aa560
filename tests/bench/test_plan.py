"""`bench plan` on small numbers: what is drawn, what is counted, and that nothing is lost on the way."""

from __future__ import annotations

import math

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bench.__main__ import main
from bench.plan.command import PlanSettings, run, token_budget, windows_for
from bench.plan.distributions import HEAVY, QUANTILES, SHARES, WAN, draw, draw_buckets
from bench.plan.measure import bucket_rows, plain, planned, rows_of
from bench.plan.packing import differenced, differencing, longest_first
from bench.plan.report import TARGETS
from libhelix.wire.settings import Buckets, FixedBatch, TokenBudget


@pytest.mark.parametrize("name", QUANTILES)
def test_quantiles_rise_and_what_is_drawn_has_them(name: str) -> None:
    quantiles = QUANTILES[name]
    assert len(quantiles) == len(SHARES)
    assert list(quantiles) == sorted(quantiles)
    drawn = draw(name, 50_000)
    for share in (0.1, 0.5, 0.9):
        below = float(np.mean(drawn <= quantiles[SHARES.index(share)]))
        assert below == pytest.approx(share, abs=0.02)
    assert (name in HEAVY) == (drawn.std() >= drawn.mean())


def test_draws_are_the_same_whatever_their_number() -> None:
    assert draw("turns", 1000).tolist() == draw("turns", 3000)[:1000].tolist()
    assert draw("turns", 1000).tolist() != draw("chat", 1000).tolist()
    assert draw_buckets(100).tolist() == draw_buckets(300)[:100].tolist()


def test_buckets_have_their_shares_and_the_tokens_of_the_model() -> None:
    counts = np.bincount(draw_buckets(100_000), minlength=len(WAN)) / 100_000
    assert sum(bucket.share for bucket in WAN) == pytest.approx(1)
    assert counts.tolist() == pytest.approx([bucket.share for bucket in WAN], abs=0.01)
    assert max(bucket.tokens for bucket in WAN) == 32_760  # Wan 2.1: 81 frames of 832 x 480


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 6))
def test_differencing_has_every_item_once_in_bins_of_equal_count(costs: list[int], samples: int) -> None:
    kept = np.asarray(costs[: len(costs) // samples * samples], dtype=np.int64)
    if not len(kept):
        return
    where = differencing(kept, samples)
    assert where.shape == (len(kept) // samples, samples)
    assert sorted(where.ravel().tolist()) == list(range(len(kept)))


def test_differencing_levels_what_can_be_levelled() -> None:
    costs = np.asarray([8, 7, 6, 5, 4, 3, 2, 1], dtype=np.int64)
    assert costs[differencing(costs, 2)].sum(axis=1).tolist() == [9, 9, 9, 9]
    for way in (longest_first, differenced):
        assert way(costs[None], 2, 2).imbalance == 1.0


def test_ranks_that_take_consecutive_slices_are_as_uneven_as_these() -> None:
    found = plain(np.asarray([1, 1, 5, 1, 2, 2, 2, 2], dtype=np.int64), ranks=2, samples=2, steps=2)
    assert found.imbalance == pytest.approx((6 / 4 + 1) / 2)
    assert found.worst == pytest.approx(1.5)
    assert found.bound == pytest.approx((5 / 4 + 1) / 2)
    assert found.padding == pytest.approx(1 - 16 / (2 + 10 + 4 + 4))


def test_planning_balances_better_than_slices_and_a_window_better_than_a_step() -> None:
    costs = draw("segments", 4000)
    rows = rows_of(costs.tolist())
    before = plain(costs, 4, 8, 32)
    inside = planned(costs, rows, FixedBatch(8), 4, 32)
    regrouped = planned(costs, rows, FixedBatch(8, regroup=8), 4, 4)
    assert regrouped.imbalance < inside.imbalance < before.imbalance
    assert regrouped.samples == inside.samples == 32
    assert (regrouped.fill, regrouped.deferred, regrouped.fillers) == (1, 0, 0)
    assert regrouped.ms > 0


def test_a_budget_is_filled_and_says_what_it_leaves_and_skips() -> None:
    costs = np.tile(np.asarray([10, 10, 10, 500], dtype=np.int64), 200)
    found = planned(costs, rows_of(costs.tolist()), TokenBudget(100, oversize="skip"), 2, 1)
    assert found.skipped == pytest.approx(1 / 4, abs=0.02)
    assert 0 < found.fill <= 1
    assert not found.fillers


def test_buckets_are_full_but_for_fillers() -> None:
    costs, rows = bucket_rows(draw_buckets(3000))
    found = planned(costs, rows, Buckets(65_520), 8, 4)
    assert found.fill > 0.9
    by_step = planned(costs, rows, Buckets(65_520, same_kind="step"), 8, 4)
    assert by_step.fill <= 1 - by_step.fillers


def test_rows_that_do_not_last_are_noticed() -> None:
    costs = draw("coco", 100)
    with pytest.raises(ValueError, match="do not last"):
        planned(costs, rows_of(costs.tolist()), FixedBatch(8), 4, 4)


def test_everything_is_measured_for_every_target_of_the_ranks_that_were_asked_for() -> None:
    settings = PlanSettings(
        distributions=("coco", "turns", "wan"),
        ranks=(8, 64),
        regroup=4,
        most_steps=8,
        compared=(1, 2),
        compared_ranks=2,
        compared_steps=4,
    )
    results, shown = run(settings, Console(quiet=True))
    assert all(math.isfinite(value) for value in results.figures.values())
    missing = {t.figure for t in results.targets} - set(results.figures)
    assert {t.figure for t in TARGETS if "_1024_" in t.figure or "_8192_" in t.figure} == missing
    assert "turns_window_2_differencing_max_over_mean" in results.figures
    assert len(shown.renderables) == 4


def test_many_ranks_are_planned_in_few_windows() -> None:
    settings = PlanSettings(distributions=(), ranks=())
    assert [windows_for(ranks, settings) for ranks in (8, 64, 8192)] == [16, 16, 2]
    assert token_budget(np.asarray([1, 3]), 8, 4) == TokenBudget(16, regroup=4, oversize="skip")


def test_an_unknown_distribution_is_refused() -> None:
    ran = CliRunner().invoke(main, ["plan", "--distributions", "nobody"])
    assert ran.exit_code == 2
    assert "nobody" in ran.output
