"""Windows and steps: every sample once, equal steps, caps kept, the same from the same rows, and resumed."""

from __future__ import annotations

import random
import time
from collections import Counter
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libhelix.errors import Oversize, UsageError
from libhelix.plan.caps import bucket_size
from libhelix.plan.planner import Planner, Window, epoch_windows
from libhelix.plan.window import FILLER
from libhelix.wire.messages import FieldSpec, Row
from libhelix.wire.settings import (
    Base,
    Batching,
    Buckets,
    FixedBatch,
    RecipeSpec,
    Settings,
    TokenBudget,
)

START = Base(0, 0, 0)
many = settings(deadline=None, max_examples=100)


def planner(n: int, batching: Batching, ranks: int = 2, micros: int = 1, **changes: Any) -> Planner:
    base: dict[str, Any] = {
        "recipe": RecipeSpec("m", "C", "{}"),
        "index_fingerprint": "f",
        "index_samples": n,
        "batching": batching,
        "seed": 1,
        "shuffle": True,
        "dp_size": ranks,
        "replicas": 1,
        "micro_batches": micros,
        "ring": 3,
        "on_bad": "mask",
    }
    return Planner(Settings(**{**base, **changes}))


def row(sample: int, tokens: int, group: str = "", encoder: int = 0) -> Row:
    return Row(sample, (), {"tokens": tokens, "encoder": encoder}, 1, (), (0,), group)


class Data:
    """Samples with heavy-tailed costs that depend on nothing but their number."""

    def __init__(self, seed: int, most: int = 1000, groups: int = 1) -> None:
        self._seed, self._most, self._groups = seed, most, groups

    def __call__(self, epoch: int, sample: int) -> Row:
        del epoch
        group, tokens = _drawn(self._seed, self._groups, sample)
        return row(sample, 10 * (group + 1) if self._groups > 1 else min(self._most, tokens), f"g{group}")


@lru_cache(maxsize=1 << 16)
def _drawn(seed: int, groups: int, sample: int) -> tuple[int, int]:
    rng = random.Random(f"{seed} {sample}")
    return rng.randrange(groups), int(rng.lognormvariate(4.0, 1.0)) + 1


batchings = st.one_of(
    st.builds(FixedBatch, st.integers(1, 5), regroup=st.sampled_from([1, 3])),
    st.builds(
        TokenBudget,
        st.integers(1000, 3000),
        max_samples=st.sampled_from([3, 1 << 20]),
        regroup=st.sampled_from([1, 2, 8]),
    ),
    st.builds(
        Buckets,
        st.integers(10, 200),
        regroup=st.sampled_from([2, 8]),
        same_kind=st.sampled_from(["batch", "step"]),
    ),
)
geometries = st.tuples(st.integers(1, 5), st.integers(1, 3))


def _try(n: int, batching: Batching, geometry: tuple[int, int], **changes: Any) -> Planner | None:
    try:
        return planner(n, batching, *geometry, **changes)
    except UsageError:
        return None


def _data(seed: int, batching: Batching) -> Data:
    return Data(seed, groups=4 if isinstance(batching, Buckets) else 1)


def _check_shape(plan: Planner, windows: list[Window]) -> None:
    step = windows[0].base.step
    for window in windows:
        assert window.base.step == step
        assert window.steps, "a window without a step"
        step += len(window.steps)
        for one in window.steps:
            assert len(one) == plan.settings.micro_batches
            assert all(len(micro) == plan.settings.dp_size for micro in one)
            assert all(rank for micro in one for rank in micro), "a rank has nothing, not even a filler"


def _check_once(plan: Planner, windows: list[Window]) -> None:
    seen = Counter(d for window in windows for d in (*window.draws(), *window.dropped))
    begin = windows[0].base
    assert seen == Counter([*begin.carried, *range(begin.draw, plan.draws)])


@many
@given(st.integers(1, 300), batchings, geometries, st.sampled_from(["drop", "pad"]), st.integers(0, 5))
def test_every_draw_of_an_epoch_is_in_one_step_or_listed_as_dropped(
    n: int, batching: Batching, geometry: tuple[int, int], end: str, seed: int
) -> None:
    plan = _try(n, batching, geometry, end=end)
    if plan is None:
        return
    windows = epoch_windows(plan, START, _data(seed, batching))
    _check_shape(plan, windows)
    _check_once(plan, windows)
    if end == "pad":
        assert not any(window.dropped for window in windows)
    assert windows[-1].after == Base(1, 0, 0)
    if plan.steps_per_epoch is not None:
        assert sum(len(window.steps) for window in windows) == plan.steps_per_epoch


@many
@given(st.integers(20, 200), batchings, geometries, st.integers(0, 5))
def test_what_is_left_over_leads_the_next_window_and_is_not_left_again(
    n: int, batching: Batching, geometry: tuple[int, int], seed: int
) -> None:
    plan = _try(n, batching, geometry)
    if plan is None:
        return
    if isinstance(batching, Buckets) and batching.same_kind == "step":
        return  # a group waits until it makes a step
    windows = epoch_windows(plan, START, _data(seed, batching))
    left = Counter(d for window in windows for d in window.after.carried)
    assert not left or max(left.values()) == 1
    for window, following in pairwise(windows):
        assert following.base == window.after


@many
@given(st.integers(1, 200), st.integers(900, 3000), geometries, st.integers(1, 9), st.sampled_from([1, 8]))
def test_caps_hold(n: int, tokens: int, geometry: tuple[int, int], samples: int, regroup: int) -> None:
    plan = _try(n, TokenBudget(tokens, max_samples=samples, regroup=regroup), geometry)
    if plan is None:
        return
    data = Data(3, most=900)
    for window in epoch_windows(plan, START, data):
        for step in window.steps:
            for rank in (rank for micro in step for rank in micro):
                real = [d for d in rank if d != FILLER]
                assert len(real) <= samples
                assert sum(data(0, s).costs["tokens"] for s in plan.ids(0, real)) <= tokens


def test_a_byte_cap_holds() -> None:
    schema = (FieldSpec("x", "uint8", "ragged", 1),)
    rng = random.Random(5)
    rows = [Row(i, ((rng.randrange(1, 4000),),), {"tokens": 1}, 1, (), (0,)) for i in range(200)]
    plan = planner(200, TokenBudget(1000, max_bytes=9000, regroup=4))
    windows = epoch_windows(plan, START, lambda _, sample: rows[sample], schema)
    _check_once(plan, windows)
    for window in windows:
        for step in window.steps:
            for rank in (rank for micro in step for rank in micro):
                assert sum(-(-rows[s].shapes[0][0] // 128) * 128 for s in plan.ids(0, rank)) <= 9000


@many
@given(st.integers(1, 200), st.integers(1, 5), geometries, st.sampled_from(["drop", "pad"]))
def test_a_fixed_batch_has_its_number_of_samples_and_fillers_only_at_a_padded_end(
    n: int, samples: int, geometry: tuple[int, int], end: str
) -> None:
    plan = _try(n, FixedBatch(samples), geometry, end=end)
    if plan is None:
        return
    steps = [s for window in epoch_windows(plan, START, Data(1)) for s in window.steps]
    for k, step in enumerate(steps):
        assert all(len(rank) == samples for micro in step for rank in micro)
        fillers = sum(d == FILLER for micro in step for rank in micro for d in rank)
        assert fillers == (plan.per_step * len(steps) - n if end == "pad" and k == len(steps) - 1 else 0)


@many
@given(st.integers(4, 300), geometries, geometries, st.integers(1, 12))
def test_with_per_step_the_samples_of_a_step_do_not_depend_on_the_ranks(
    n: int, one: tuple[int, int], other: tuple[int, int], per_step: int
) -> None:
    sets = []
    for geometry in (one, other):
        plan = _try(n, FixedBatch(12, per_step=per_step), geometry)
        if plan is None:
            return
        windows = epoch_windows(plan, START, Data(2))
        sets.append([sorted(w.draws()) for w in windows])
    assert sets[0] == sets[1]


@many
@given(st.integers(4, 200), st.sampled_from([1, 4]), st.integers(1, 8), geometries, geometries)
def test_with_per_step_packs_do_not_depend_on_the_ranks(
    n: int, regroup: int, per_step: int, one: tuple[int, int], other: tuple[int, int]
) -> None:
    sets = []
    for geometry in (one, other):
        plan = _try(n, TokenBudget(1000, per_step=per_step, regroup=regroup), geometry)
        if plan is None:
            return
        windows = epoch_windows(plan, START, Data(2))
        steps = [s for window in windows for s in window.steps]
        sets.append([sorted(rank for micro in s for rank in micro if rank != (FILLER,)) for s in steps])
    assert sets[0] == sets[1]


@many
@given(st.integers(10, 150), batchings, geometries, st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_when_rows_come(
    n: int, batching: Batching, geometry: tuple[int, int], rng: random.Random
) -> None:
    plan = _try(n, batching, geometry)
    if plan is None:
        return
    data = _data(0, batching)
    straight = epoch_windows(plan, START, data)
    base = START
    for expected in straight:
        opening = plan.open(base)
        while not opening.complete:
            wanted = opening.wants()
            assert wanted, "it waits for nothing"
            some = rng.sample(wanted, rng.randint(1, len(wanted)))
            some += [rng.randrange(n) for _ in range(3)]  # rows of other windows may be at hand
            for draw in some:
                opening.put(draw, data(0, plan.ids(0, [draw])[0]))
        window = plan.plan(opening)
        assert window == expected
        base = window.after


@many
@given(st.integers(10, 150), batchings, geometries, st.randoms(use_true_random=False))
def test_who_asks_for_what_no_call_has_named_asks_for_every_row_once(
    n: int, batching: Batching, geometry: tuple[int, int], rng: random.Random
) -> None:
    plan = _try(n, batching, geometry)
    if plan is None:
        return
    data = _data(0, batching)
    base = START
    for expected in epoch_windows(plan, START, data):
        opening = plan.open(base)
        named: list[int] = []
        coming: list[int] = []
        while not opening.complete:
            new = opening.wants_anew()
            named += new
            coming += new
            assert set(coming) == set(opening.wants())
            draw = coming.pop(rng.randrange(len(coming)))
            opening.put(draw, data(0, plan.ids(0, [draw])[0]))
        assert len(set(named)) == len(named)
        assert opening.wants() == opening.wants_anew() == []
        window = plan.plan(opening)
        assert window == expected
        base = window.after


@many
@given(
    st.integers(10, 150),
    batchings,
    st.lists(st.tuples(geometries, st.integers(1, 6)), min_size=1, max_size=5),
    st.integers(0, 3),
)
def test_resuming_with_other_ranks_any_number_of_times_gives_every_sample_once(
    n: int, batching: Batching, parts: list[tuple[tuple[int, int], int]], seed: int
) -> None:
    data = _data(seed, batching)
    base, seen, dropped = START, Counter[int](), Counter[int]()
    for geometry, steps in [*parts, ((1, 1), 1 << 30)]:
        plan = _try(n, batching, geometry)
        if plan is None:
            return
        settled = plan.settle(base)
        if base.epoch == 0 and settled.epoch == 1:
            dropped.update([*base.carried, *range(base.draw, n)])
        base = settled
        while base.epoch == 0 and steps:
            window = epoch_windows(plan, base, data)[0]
            done = min(steps, len(window.steps))
            steps -= done
            for step in window.steps[:done]:
                seen.update(d for micro in step for rank in micro for d in rank if d != FILLER)
            if done == len(window.steps):
                dropped.update(window.dropped)
            base = plan.rest_of(window, done)
    assert seen + dropped == Counter(range(n))


def test_resuming_at_every_step_with_the_same_ranks_gives_the_rest() -> None:
    for batching in (FixedBatch(3), FixedBatch(3, regroup=4), TokenBudget(1500), Buckets(100)):
        plan = planner(300, batching, 2, 2)
        data = _data(0, batching)
        windows = epoch_windows(plan, START, data)
        for i, window in enumerate(windows):
            assert epoch_windows(plan, window.base, data) == windows[i:]


def test_regrouping_balances_heavy_tails() -> None:
    data = Data(7, most=4000)
    plan = planner(6000, FixedBatch(8, regroup=16), 8)
    apart = planner(6000, FixedBatch(8), 8)

    def imbalance(p: Planner) -> float:
        ratios = []
        for window in epoch_windows(p, START, data):
            for step in window.steps:
                loads = [sum(data(0, s).costs["tokens"] for s in p.ids(0, r)) for m in step for r in m]
                ratios.append(max(loads) * len(loads) / sum(loads))
        return sum(ratios) / len(ratios)

    assert imbalance(plan) < 1.04 < imbalance(apart)


def test_token_budgets_are_filled() -> None:
    data = Data(7, most=2000)
    plan = planner(6000, TokenBudget(8000), 8)
    windows = epoch_windows(plan, START, data)
    loads = [
        sum(data(0, s).costs["tokens"] for s in plan.ids(0, rank))
        for window in windows[:-1]
        for step in window.steps
        for micro in step
        for rank in micro
    ]
    assert sum(loads) / len(loads) >= 0.97 * 8000


def test_buckets_hold_one_group_and_its_number_of_samples() -> None:
    batching = Buckets(200)
    data = Data(1, groups=4)
    plan = planner(2000, batching, 4)
    windows = epoch_windows(plan, START, data)
    for window in windows[:-1]:
        for step in window.steps:
            for rank in (rank for micro in step for rank in micro):
                rows = [data(0, s) for s in plan.ids(0, rank)]
                assert len({r.group for r in rows}) == 1
                assert len(rows) == bucket_size(batching, rows[0])


def test_buckets_of_one_kind_per_step() -> None:
    data = Data(1, groups=4)
    plan = planner(4000, Buckets(100, same_kind="step"), 4, 2)
    windows = epoch_windows(plan, START, data)
    for window in windows[:-1]:
        for step in window.steps:
            draws = [d for micro in step for rank in micro for d in rank if d != FILLER]
            assert len({data(0, s).group for s in plan.ids(0, draws)}) == 1


@pytest.mark.parametrize("regroup", [1, 8])
def test_every_sample_is_described_once(regroup: int) -> None:
    asked: Counter[int] = Counter()

    def describe(_: int, sample: int) -> Row:
        asked[sample] += 1
        return row(sample, 1000 if sample % 50 == 0 else 1)

    epoch_windows(planner(3000, TokenBudget(1000, regroup=regroup)), START, describe)
    assert asked == Counter(range(3000))


def test_a_sample_above_the_budget_is_named_and_counted_or_skipped() -> None:
    def describe(_: int, sample: int) -> Row:
        return row(sample, 5000 if sample in (3, 9) else 10)

    with pytest.raises(Oversize, match=r"2 of \d+ samples.*exceed 1000 tokens.*has 5000") as raised:
        epoch_windows(planner(40, TokenBudget(1000, max_samples=2)), START, describe)
    assert raised.value.sample in (3, 9)
    plan = planner(40, TokenBudget(1000, max_samples=2, oversize="skip"))
    windows = epoch_windows(plan, START, describe)
    _check_once(plan, windows)
    assert {3, 9} <= set(plan.ids(0, [d for w in windows for d in w.dropped]))
    assert {3, 9} == set(plan.ids(0, [d for w in windows for d in w.skipped]))


@pytest.mark.parametrize(
    ("batching", "said"),
    [
        (TokenBudget(1000), 'has 5000; raise that cap, or choose oversize="skip" or "shrink"'),
        (
            TokenBudget(1000, oversize="shrink"),
            'has 5000, and recipe m:C cannot shrink these; raise that cap, or choose oversize="skip"',
        ),
        (TokenBudget(9000, max_bytes=999), r'has 5\d+; raise that cap, or choose oversize="skip"'),
        (
            TokenBudget(9000, max_bytes=999, oversize="shrink"),
            r'has 5\d+; raise that cap, or choose oversize="skip"',
        ),
    ],
)
def test_what_is_too_large_is_told_with_what_helps(batching: Batching, said: str) -> None:
    schema = (FieldSpec("x", "uint8", "ragged", 1),)

    def describe(_: int, sample: int) -> Row:
        size = 5000 if sample == 7 else 10
        return Row(sample, ((size,),), {"tokens": size}, 1, (), (0,))

    with pytest.raises(Oversize, match=said + "; helixctl describe names all$"):
        epoch_windows(planner(40, batching), START, describe, schema)


def test_skipping_many_samples_takes_time_as_their_number() -> None:
    def took_s(n: int) -> float:
        plan = planner(n, TokenBudget(1000, max_samples=2, oversize="skip", regroup=n))
        opening = plan.open(START)
        for d in range(n):
            opening.put(d, row(d, 5000 if d % 4 else 10))
        assert opening.complete
        began_s = time.process_time()
        plan.plan(opening)
        return time.process_time() - began_s

    took_s(1000)
    assert min(took_s(16_000) for _ in range(3)) < 0.5  # seconds, if each were looked up in a list


@pytest.mark.parametrize(
    ("batching", "text"),
    [
        (FixedBatch(2, per_step=100), "do not fit"),
        (FixedBatch(2, per_step=3, regroup=4), "leave one out"),
        (TokenBudget(10, per_step=9), "do not fit"),
        (FixedBatch(1000), "one step takes"),
    ],
)
def test_settings_that_give_no_step_are_refused(batching: Batching, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        planner(100, batching)


def test_a_sample_of_too_many_bytes_is_named() -> None:
    schema = (FieldSpec("x", "uint8", "ragged", 1),)
    rows = [Row(i, ((5000 if i == 7 else 10,),), {"tokens": 1}, 1, (), (0,)) for i in range(40)]
    plan = planner(40, TokenBudget(8, max_bytes=4096))
    with pytest.raises(Oversize, match=r"1 of \d+ samples of a window exceed 4096 bytes, .* sample 7, has 5"):
        epoch_windows(plan, START, lambda _, sample: rows[sample], schema)


def test_where_sources_alternate_ranks_have_all_of_them() -> None:
    plan = planner(400, FixedBatch(4), 2, shuffle=False)
    windows = epoch_windows(plan, START, lambda _, sample: row(sample, 10))
    for rank in range(2):
        draws = [d for window in windows for step in window.steps for d in step[0][rank]]
        odd = sum(d % 2 for d in draws)
        assert 0.4 < odd / len(draws) < 0.6


def test_the_heaviest_micro_batch_is_not_always_of_one_rank() -> None:
    plan = planner(800, FixedBatch(2), 4)
    data = Data(1)
    heaviest = Counter(
        max(range(4), key=lambda r: sum(data(0, s).costs["tokens"] for s in plan.ids(0, step[0][r])))
        for window in epoch_windows(plan, START, data)
        for step in window.steps
    )
    assert set(heaviest) == {0, 1, 2, 3}
    assert max(heaviest.values()) < 50
