"""What trainers take for granted of an iterable is checked before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

import libhelix as hx
from libhelix.adapters.iterations import batches_of, check_iterations
from libhelix.errors import UsageError
from libhelix.index.read import Index
from libhelix.recipes.describe import describe_all
from libhelix.recipes.rows import path_of
from tests.adapters.numbered import loader
from tests.system.recipes import Tokens


def test_epochs_that_differ_in_length_are_refused_where_one_stands_for_all(numbers: Path) -> None:
    index = Index.open(numbers)
    describe_all(index, Tokens(), seed=0).write(path_of(index, Tokens()))
    planned = hx.Loader(
        numbers, recipe=Tokens(), batching=hx.TokenBudget(16), backend="inline", dp_rank=0, dp_size=1
    )
    assert batches_of(planned)
    check_iterations(planned, 1, 1)
    with pytest.raises(UsageError, match="make the loader with epochs=3, and have the trainer take one"):
        check_iterations(planned, 2.5, 1)
    check_iterations(loader(numbers), 3, 2)


def test_a_loader_without_end_has_nothing_to_check(numbers: Path) -> None:
    endless = loader(numbers, epochs=None)
    assert batches_of(endless) is None
    check_iterations(endless, 5, 5)


def test_a_restored_loader_may_be_asked_for_an_iterator_twice(numbers: Path) -> None:
    """As trainers do that look whether it is one."""
    one = loader(numbers)
    batches = iter(one)
    for _ in range(5):
        next(batches)
    other = loader(numbers)
    other.load_state_dict(one.state_dict())
    iter(other)
    assert [batch.ids for batch in other] == [batch.ids for batch in batches]
    assert {batch.epoch for batch in other} == {1}
