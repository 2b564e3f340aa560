"""Iterators as Megatron's schedules take them: without end, several for one rank, micro-batches kept."""

from __future__ import annotations

import warnings
import weakref
from pathlib import Path

import pytest

from libhelix.adapters.megatron import iterators
from libhelix.errors import UsageError
from tests.adapters.numbered import loader


def test_all_model_chunks_of_a_rank_see_the_same_batches(numbers: Path) -> None:
    first, second = iterators(loader(numbers, epochs=None), chunks=2)
    ahead = [next(first)["number"].tolist() for _ in range(15)]
    assert [next(second)["number"].tolist() for _ in range(15)] == ahead
    assert sorted(n for batch in ahead[:12] for n in batch) == list(range(24))


def test_the_micro_batches_of_a_step_may_be_kept_until_its_end(numbers: Path, job: str) -> None:
    with loader(numbers, epochs=None, micro_batches=3, backend="daemon") as train, warnings.catch_warnings():
        warnings.simplefilter("error")  # as private copies would be warned about
        (batches,) = iterators(train)
        for _ in range(5):
            step = [next(batches) for _ in range(3)]
            numbers_of = [batch["number"].tolist() for batch in step]
            assert len({n for batch in numbers_of for n in batch}) == 6
            assert [batch.micro for batch in step] == [0, 1, 2]


def test_a_state_resumes_with_the_rest(numbers: Path) -> None:
    one = loader(numbers, epochs=None)
    (batches,) = iterators(one)
    for _ in range(5):
        next(batches)
    state = one.state_dict()
    rest = [next(batches)["number"].tolist() for _ in range(9)]
    other = loader(numbers, epochs=None)
    other.load_state_dict(state)
    (again,) = iterators(other)
    assert [next(again)["number"].tolist() for _ in range(9)] == rest


def test_a_loader_that_ends_is_refused(numbers: Path) -> None:
    with pytest.raises(UsageError, match="make it with epochs=None"):
        iterators(loader(numbers))


def test_a_batch_is_kept_no_longer_than_until_the_last_chunk_took_it(numbers: Path) -> None:
    first, second = iterators(loader(numbers, epochs=None), chunks=2)
    batch = next(first)
    kept = weakref.ref(batch["x"])
    del batch["number"], batch
    assert kept() is not None
    assert "number" in next(second)
    assert kept() is None
