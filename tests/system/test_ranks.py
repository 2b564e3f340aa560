"""Several ranks: who gets what, how often, and in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import libhelix as hx
from libhelix.errors import UsageError
from tests.system.processes import Trainer
from tests.system.recipes import Plain


def _batches(trainer: Trainer) -> list[dict[str, Any]]:
    events, _ = trainer.finish()
    return [e for e in events if e["event"] == "batch"]


def _run(index: Path, job: str, ranks: int, **options: Any) -> list[list[dict[str, Any]]]:
    trainers = [Trainer(index, job, dp_rank=r, dp_size=ranks, **options) for r in range(ranks)]
    return [_batches(t) for t in trainers]


def test_ranks_share_every_epoch_without_overlap_and_take_equal_steps(index: Path, job: str) -> None:
    ranks = _run(index, job, 4, samples=1, epochs=3)
    assert [len(batches) for batches in ranks] == [6, 6, 6, 6]
    for epoch in range(3):
        seen = [i for batches in ranks for b in batches if b["at"][0] == epoch for i in b["ids"]]
        assert sorted(seen) == list(range(8))


def test_the_seed_decides_the_order_and_nothing_else_does(index: Path, job: str) -> None:
    first = _run(index, job, 2, seed=3, name="one")
    assert first == _run(index, job, 2, seed=3, name="two")
    assert first != _run(index, job, 2, seed=4, name="three")


def test_a_step_has_the_same_samples_whatever_the_number_of_ranks(index: Path, job: str) -> None:
    two = _run(index, job, 2, samples=2, name="two")
    four = _run(index, job, 4, samples=1, name="four")
    for step in range(2):
        assert {i for b in two for i in b[step]["ids"]} == {i for b in four for i in b[step]["ids"]}


def test_what_does_not_fill_a_step_is_dropped_on_all_ranks(index: Path, job: str) -> None:
    ranks = _run(index, job, 3, samples=1)
    assert [len(b) for b in ranks] == [2, 2, 2]


def test_replicas_of_a_rank_share_batches_that_are_decoded_once(index: Path, job: str) -> None:
    pair = [
        Trainer(index, job, dp_rank=0, dp_size=1, replica=r, replicas=2, epochs=2, ring=5) for r in range(2)
    ]
    first, second = (_batches(t) for t in pair)
    assert first == second
    assert len(first) == 8


def test_len_is_exact_and_counts_batches(index: Path) -> None:
    def loader(**options: Any) -> hx.Loader:
        return hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(1), **options)

    assert len(loader(dp_rank=0, dp_size=1)) == 8
    assert len(loader(dp_rank=0, dp_size=3, job="j")) == 2
    assert len(loader(dp_rank=0, dp_size=1, micro_batches=3, epochs=2)) == 12
    with pytest.raises(TypeError, match="epochs=None has no length"):
        len(loader(dp_rank=0, dp_size=1, epochs=None))
    with pytest.raises(UsageError, match="the data set has 8 samples and one step takes 9"):
        loader(dp_rank=0, dp_size=9, job="j")


def test_iterating_again_is_the_next_epoch_also_after_a_break(index: Path, job: str) -> None:
    with hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2)) as loader:
        assert [(b.epoch, b.step) for b in loader] == [(0, s) for s in range(4)]
        for batch in loader:
            assert (batch.epoch, batch.step) == (1, 0)
            break
        del batch
        assert [(b.epoch, b.step) for b in loader] == [(2, s) for s in range(4)]
        loader.set_epoch(7)
        assert [(b.epoch, b.step) for b in loader] == [(7, s) for s in range(4)]
        loader.set_epoch(7)
        again = [b.ids for b in loader]
        loader.set_epoch(7)
        assert again == [b.ids for b in loader]


def test_an_endless_loader_goes_on_through_epochs(index: Path, job: str) -> None:
    with hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(4), epochs=None) as loader:
        batches = iter(loader)
        assert [next(batches).epoch for _ in range(7)] == [0, 0, 1, 1, 2, 2, 3]
