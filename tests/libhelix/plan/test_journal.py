"""Weights that are set on the way: where they begin, what they leave as it is, and what they replace."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from libhelix.plan.journal import Journal
from libhelix.plan.mixture import Mixture
from libhelix.plan.mixture import _drawn as counted
from libhelix.plan.planner import Planner, Window, epoch_windows
from libhelix.plan.progress import Progress, told
from libhelix.wire.settings import Base, Batching, Buckets, FixedBatch, Position, Segment, TokenBudget
from tests.libhelix.plan.test_mixture import _in_bounds
from tests.libhelix.plan.test_planner import Data, planner

A, B, C = (1.0, 1.0), (3.0, 1.0), (0.0, 1.0)


def test_an_entry_holds_until_the_next_of_the_journal_or_the_schedule() -> None:
    made = Journal((Segment(0, A), Segment(50, B)))
    once = made.entered(Segment(20, C))
    twice = once.entered(Segment(70, A))
    assert twice.in_force == (Segment(0, A), Segment(20, C), Segment(50, B), Segment(70, A))
    assert twice.schedule == made.schedule
    assert made.in_force == made.schedule


def test_an_entry_replaces_what_was_set_for_its_place_and_later_ones_but_not_the_schedule() -> None:
    journal = Journal((Segment(0, A), Segment(50, B))).entered(Segment(20, C)).entered(Segment(70, A))
    assert journal.entered(Segment(20, B)).in_force == (Segment(0, A), Segment(20, B), Segment(50, B))
    assert journal.entered(Segment(10, B)).entries == (Segment(10, B),)
    assert journal.entered(Segment(50, C)).in_force[-1] == Segment(50, C)


def test_weights_that_are_in_force_are_no_entry() -> None:
    made = Journal((Segment(0, A), Segment(50, B)))
    assert made.entered(Segment(20, A)) == made
    assert made.entered(Segment(50, B)) == made
    assert made.entered(Segment(20, C)).entered(Segment(20, A)) == made
    assert made.entered(Segment(20, C)).entered(Segment(40, C)).entries == (Segment(20, C),)


some_weights = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(1, 40))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 200), some_weights), max_size=6), some_weights)
def test_every_segment_has_the_shares_that_were_set(
    changes: list[tuple[int, tuple[int, ...]]], first: tuple[int, ...]
) -> None:
    journal, at = Journal((Segment(0, tuple(map(float, first))),)), 0
    for distance, weights in changes:
        before = Mixture((30, 7, 3), journal.in_force, 1)
        at += distance
        journal = journal.entered(Segment(at, tuple(map(float, weights))))
        after = Mixture((30, 7, 3), journal.in_force, 1)
        places = np.arange(at)
        for a, b in zip(before.draws(0, places), after.draws(0, places)):
            np.testing.assert_array_equal(a, b)
    mixture = Mixture((30, 7, 3), journal.in_force, 1)
    firsts = [segment.first for segment in journal.in_force]
    for k, (begin, end) in enumerate(zip(firsts, [*firsts[1:], firsts[-1] + 200])):
        sources, _ = mixture.at(np.arange(begin, end))
        _in_bounds(mixture._parts[k], sources)


# ---- windows -----------------------------------------------------------------------------------------

batchings = st.sampled_from(
    [
        FixedBatch(2),
        FixedBatch(2, regroup=3),
        TokenBudget(1500),
        TokenBudget(300, oversize="skip", regroup=4),
        Buckets(40),
        Buckets(40, same_kind="step", regroup=2),
    ]
)


def _mixed(batching: Batching, journal: Journal) -> Planner:
    return planner(0, batching, micros=2, index_samples=150, sources=(90, 40, 20), schedule=journal.in_force)


def _positions(window: Window) -> list[Position]:
    at, found = Position(window.base.epoch, window.base.step, 0), []
    while at <= window.end_position:
        found.append(at)
        at = window.following(at)
    return found


@settings(deadline=None, max_examples=60)
@given(batchings, st.integers(0, 1 << 30))
def test_windows_that_are_gone_through_stay_what_they_are(batching: Batching, seed: int) -> None:
    rng = random.Random(seed)
    data = Data(seed % 7, groups=3 if isinstance(batching, Buckets) else 1)
    journal = Journal((Segment(0, (6.0, 3.0, 1.0)),))
    base = start = Base(rng.randrange(2), 0, 0)
    windows: list[Window] = []
    while base.epoch == start.epoch:
        plan = _mixed(batching, journal)
        window = epoch_windows(plan, base, data)[0]
        at = rng.choice([None, *_positions(window)])
        if at is not None:
            known = None if plan.counted(base) else told(window)
            untaken = Progress(plan, base, at, known).untaken()
            inside = at > Position(base.epoch, base.step, 0)
            assert untaken == (window.end if inside else base.draw) or plan.counted(base)
            assert untaken is not None
            weights = (float(rng.randrange(9)), float(rng.randrange(9)), 1.0)
            journal = journal.entered(Segment(base.epoch * plan.draws + untaken, weights))
            changed = _mixed(batching, journal)
            again = epoch_windows(changed, base, data)[0]
            if inside:
                assert again == window
                assert changed.drawn(base.epoch, window.draws()) == plan.drawn(base.epoch, window.draws())
            window = again
        windows.append(window)
        base = window.after
    assert windows == epoch_windows(_mixed(batching, journal), start, data)


def test_a_history_of_many_entries_is_counted_once() -> None:
    rng = random.Random(1)
    journal = Journal((Segment(0, A),))
    counted.cache_clear()
    for k in range(1, 40):
        journal = journal.entered(Segment(k * 70_000, (rng.random(), rng.random())))
        Mixture((40, 20), journal.in_force, 1)
    assert counted.cache_info().misses == 39
