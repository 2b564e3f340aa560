"""Which samples a step has: each once, the same number of steps everywhere, whatever the geometry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libhelix.errors import UsageError
from libhelix.plan.steps import FixedBatch, StepPlan
from libhelix.wire.settings import Position, RecipeSpec, Settings


def _plan(n: int, **changes: Any) -> StepPlan:
    base: dict[str, Any] = {
        "recipe": RecipeSpec("m", "C", "{}"),
        "index_fingerprint": "f",
        "index_samples": n,
        "batching": FixedBatch(changes.pop("samples", 2)),
        "seed": 1,
        "shuffle": True,
        "dp_size": 2,
        "replicas": 1,
        "micro_batches": 1,
        "ring": 3,
        "on_bad": "mask",
    }
    return StepPlan(Settings(**{**base, **changes}))


def _positions(plan: StepPlan, start: Position = Position(0, 0, 0)) -> Iterator[Position]:  # noqa: B008
    at = start
    while True:
        yield at
        at = plan.after(at)


def _epoch(plan: StepPlan, epoch: int) -> list[Position]:
    found: list[Position] = []
    for at in _positions(plan, Position(epoch, 0, 0)):
        if at.epoch != epoch:
            return found
        found.append(at)
    raise AssertionError("positions have no end")


geometries = st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5))
few = settings(deadline=None, max_examples=80)


@few
@given(st.integers(1, 600), geometries, st.booleans(), st.integers(0, 5))
def test_an_epoch_delivers_each_sample_once_or_drops_it(
    n: int, geometry: tuple[int, int, int], shuffle: bool, epoch: int
) -> None:
    ranks, micros, samples = geometry
    if n < ranks * micros * samples:
        n += ranks * micros * samples
    plan = _plan(n, dp_size=ranks, micro_batches=micros, samples=samples, shuffle=shuffle)
    seen: Counter[int] = Counter()
    at_ranks = [0] * ranks
    for at in _epoch(plan, epoch):
        batches = plan.ids(at)
        assert len(batches) == ranks
        for rank, batch in enumerate(batches):
            assert len(batch) == samples
            seen.update(batch)
            at_ranks[rank] += 1
    dropped = plan.dropped(epoch)
    assert len(dropped) < plan.samples_per_step
    seen.update(dropped)
    assert seen == Counter(range(n))
    assert set(at_ranks) == {plan.steps_per_epoch * micros}


@few
@given(geometries, st.integers(0, 3))
def test_the_samples_of_a_step_depend_only_on_how_many_it_takes(
    geometry: tuple[int, int, int], epoch: int
) -> None:
    ranks, micros, samples = geometry
    product = ranks * micros * samples
    one = _plan(5 * product, dp_size=1, samples=product)
    many = _plan(5 * product, dp_size=ranks, micro_batches=micros, samples=samples)
    for step in range(5):
        (whole,) = one.ids(Position(epoch, step, 0))
        split = [many.ids(Position(epoch, step, micro)) for micro in range(micros)]
        assert tuple(i for micro in split for rank in micro for i in rank) == whole


@few
@given(geometries, st.integers(1, 7))
def test_positions_follow_one_another_and_are_numbered_without_a_gap(
    geometry: tuple[int, int, int], steps: int
) -> None:
    ranks, micros, samples = geometry
    plan = _plan(steps * ranks * micros * samples, dp_size=ranks, micro_batches=micros, samples=samples)
    stream = list(islice(_positions(plan), 3 * steps * micros))
    assert stream == sorted(stream)
    assert [plan.number(at) for at in stream] == list(range(len(stream)))
    assert all(plan.holds(at) for at in stream)
    assert stream[-1].epoch == 2
    assert not plan.holds(Position(0, steps, 0))
    assert not plan.holds(Position(0, 0, micros))


def test_without_shuffling_the_samples_come_in_the_order_of_the_index() -> None:
    plan = _plan(13, dp_size=2, micro_batches=2, samples=2, shuffle=False)
    assert [plan.ids(Position(4, 0, micro)) for micro in range(2)] == [((0, 1), (2, 3)), ((4, 5), (6, 7))]
    assert plan.dropped(4) == (8, 9, 10, 11, 12)


def test_what_is_dropped_differs_between_epochs() -> None:
    plan = _plan(107, dp_size=2, samples=8)
    assert len({plan.dropped(epoch) for epoch in range(5)}) == 5


def test_seeds_and_epochs_bring_other_batches() -> None:
    at = Position(0, 0, 0)
    batches = {_plan(1000, seed=seed, samples=8).ids(at) for seed in range(4)}
    batches |= {_plan(1000, samples=8).ids(Position(epoch, 0, 0)) for epoch in range(2, 6)}
    assert len(batches) == 8


def test_a_step_is_a_fixed_function_of_seed_and_epoch() -> None:
    """As for the order: what a resumed job trains on depends on these values."""
    assert _plan(100, samples=3, seed=9).ids(Position(2, 1, 0)) == ((88, 69, 19), (35, 89, 81))


def test_too_little_data_for_one_step_names_the_numbers_and_the_cure() -> None:
    with pytest.raises(UsageError) as caught:
        _plan(47, dp_size=4, micro_batches=3, samples=4)
    assert str(caught.value) == (
        "the data set has 47 samples and one step takes 48 (4 ranks x 3 micro-batches x 4 samples); "
        "use a smaller batch or more data"
    )
    assert _plan(48, dp_size=4, micro_batches=3, samples=4).steps_per_epoch == 1
