"""Records in, figures out."""

from __future__ import annotations

import pytest

from bench.ceiling import Ceiling
from bench.demo import report, stats
from bench.demo.records import StepRecord
from bench.samples import heaviest_rank_tokens


def record(
    rank: int, step: int, *, wait_s: float = 0.0, window_s: float = 0.1, loss: float = 1.0, masked: int = 0
) -> StepRecord:
    """A step of 0.1 s, from step * 0.1 s on, in which a rank got 2 samples of 50 tokens each."""
    return StepRecord(
        rank=rank,
        step=step,
        epoch=0,
        asked_at_s=step * 0.1,
        done_at_s=step * 0.1 + 0.1,
        wait_s=wait_s,
        compute_s=0.01,
        window_s=window_s,
        cpu_s=0.02,
        tokens=100,
        nbytes=1000,
        loss=loss,
        ids=(3, 4),
        masked=masked,
    )


def test_a_miss_is_longer_than_a_millisecond_and_a_hundredth_of_a_step() -> None:
    assert stats.miss_over_s(0.05) == 0.001
    assert stats.miss_over_s(2.0) == pytest.approx(0.02)


def test_the_first_step_of_a_rank_is_no_miss_but_the_time_to_first_batch() -> None:
    records = [record(r, s, wait_s=(5.0 + r if s == 0 else 0.0)) for r in range(2) for s in range(4)]
    run = stats.figures(records)
    assert (run.steps, run.ranks, run.asks, run.misses) == (4, 2, 6, 0)
    assert run.time_to_first_batch_s == 6.0
    assert run.input_wait_max_s == 0.0


def test_waits_over_the_limit_are_counted_over_all_ranks() -> None:
    waits = {(0, 1): 0.0009, (1, 1): 0.0011, (0, 2): 0.5, (1, 2): 0.0002}
    run = stats.figures([record(r, s, wait_s=waits.get((r, s), 0.0)) for r in range(2) for s in range(3)])
    assert run.miss_over_s == pytest.approx(0.001)
    assert run.misses == 2
    assert run.input_wait_max_s == 0.5


def test_throughput_counts_from_the_end_of_the_first_step() -> None:
    run = stats.figures([record(r, s) for r in range(2) for s in range(11)])
    assert run.samples == 2 * 2 * 10
    assert run.samples_per_s == pytest.approx(40.0)
    assert run.tokens_per_s == pytest.approx(2000.0)
    assert run.trainer_cores == pytest.approx(0.4)


def test_the_accelerator_bound_takes_the_longest_window_of_each_step() -> None:
    steps = [[record(0, 0, window_s=0.1), record(1, 0, window_s=0.3)], [record(0, 1), record(1, 1)]]
    assert stats.accelerator_bound(steps) == pytest.approx(8 / 0.4)


def test_records_in_any_order_give_the_same_figures() -> None:
    records = [record(r, s, wait_s=0.001 * r * s, loss=1 / (1 + s)) for r in range(3) for s in range(8)]
    assert stats.figures(records) == stats.figures(records[::-1])


def test_losses_are_means_over_ranks_and_over_five_steps_at_each_end() -> None:
    falling = [record(r, s, loss=10.0 - s + r) for r in range(2) for s in range(10)]
    assert stats.losses(falling) == [10.5 - s for s in range(10)]
    assert stats.loss_edges(stats.losses(falling)) == (8.5, 3.5)
    assert stats.loss_edges([3.0, 2.0, 1.0]) == (3.0, 1.0)


def test_one_step_is_not_enough() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        stats.figures([record(0, 0)])


@pytest.mark.parametrize(
    ("decoded_per_s", "limit", "share"),
    [(10.0, "decoding", 4.0), (100.0, "accelerator", 1.0), (41.0, "both", 1.0)],
)
def test_the_share_is_of_the_lower_bound(decoded_per_s: float, limit: str, share: float) -> None:
    run = stats.figures([record(r, s) for r in range(2) for s in range(11)])
    ceiling = Ceiling(samples=100, cores=2, wall_s=50.0, cpu_s=200 / decoded_per_s)
    named = report.bound_figures(run, ceiling)
    assert report.limited_by(named) == limit
    assert named["share_of_ceiling"] == pytest.approx(share)
    assert named["decode_demand"] == pytest.approx(40.0 / decoded_per_s)


def test_the_data_loader_s_figures_stand_beside_and_as_ratios() -> None:
    run = stats.figures([record(r, s) for r in range(2) for s in range(11)])
    ours, theirs = report.run_figures(run, 0.05), report.run_figures(run, 0.1) | {"samples_per_s": 20.0}
    named = report.compared_figures(ours, theirs)
    assert named["dataloader_samples_per_s"] == 20.0
    assert named["throughput_over_dataloader"] == pytest.approx(2.0)
    assert named["cpu_ratio_to_dataloader"] == pytest.approx(0.5)


def test_a_busy_machine_lowers_what_the_loops_reach_but_not_the_bound() -> None:
    ceiling = Ceiling(samples=10, cores=2, wall_s=1.0, cpu_s=1.0)
    assert ceiling.core_share == 0.5
    assert (ceiling.samples_per_s, ceiling.bound_samples_per_s) == (10.0, 20.0)


def test_the_heaviest_rank_has_more_than_its_share_of_tokens() -> None:
    assert heaviest_rank_tokens([7], ranks=4, batch=2, seed=0) == 14
    tokens = [10] * 9 + [1000]
    assert heaviest_rank_tokens(tokens, ranks=4, batch=4, seed=0) > 4 * 109
    assert heaviest_rank_tokens(tokens, ranks=4, batch=4, seed=0) == heaviest_rank_tokens(
        tokens, ranks=4, batch=4, seed=0
    )
