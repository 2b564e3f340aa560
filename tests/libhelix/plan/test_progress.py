"""What a trainer is told of a window is enough to say what of it is still to come."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libhelix.errors import ProtocolError, UsageError
from libhelix.plan.planner import Planner, epoch_windows
from libhelix.plan.progress import PART_BYTES, Progress, Told, pack_window, told, unpack_window
from libhelix.plan.state import SavedBase
from libhelix.wire.settings import Base, Batching, Buckets, FixedBatch, PackedBase, Position, TokenBudget
from tests.libhelix.plan.test_planner import START, Data, planner

many = settings(deadline=None, max_examples=60)
batchings = st.sampled_from(
    [
        FixedBatch(2),
        FixedBatch(2, regroup=3),
        TokenBudget(1500),
        TokenBudget(300, oversize="skip", regroup=4),
        Buckets(40),
    ]
)


def _planner(n: int, batching: Batching, ranks: int, micros: int) -> tuple[Planner, Data] | None:
    try:
        return planner(n, batching, ranks, micros), Data(1, groups=3 if isinstance(batching, Buckets) else 1)
    except UsageError:
        return None


@many
@given(st.integers(5, 150), batchings, st.integers(1, 4), st.integers(1, 3))
def test_a_window_is_the_same_after_the_wire_and_says_what_is_left(
    n: int, batching: Batching, ranks: int, micros: int
) -> None:
    made = _planner(n, batching, ranks, micros)
    if made is None:
        return
    plan, data = made
    for window in epoch_windows(plan, START, data):
        known = unpack_window(list(pack_window(window)))
        assert known == told(window)
        assert sorted(known.dropped()) == sorted(window.dropped)
        for done in range(len(window.steps) + 1):
            assert known.rest(done) == plan.rest_of(window, done)


@many
@given(st.integers(5, 150), batchings, st.integers(1, 4), st.integers(1, 3))
def test_a_trainer_follows_the_windows_without_planning(
    n: int, batching: Batching, ranks: int, micros: int
) -> None:
    made = _planner(n, batching, ranks, micros)
    if made is None:
        return
    plan, data = made
    progress = Progress(plan)
    left_out = 0
    for window in epoch_windows(plan, START, data):
        known = None if plan.counted(window.base) else told(window)
        positions = [
            Position(0, window.base.step + k, j) for k in range(len(window.steps)) for j in range(micros)
        ]
        for at in positions:
            assert progress.at == at
            assert progress.base == window.base
            assert (progress.rest() is None) == (at.micro > 0)
            progress.took(window.following(at), known)
        left_out += len(window.dropped)
    assert (progress.at, progress.base) == (Position(1, 0, 0), Base(1, 0, 0))
    assert sum(len(b.carried) + n - b.draw for b in progress.left_out) == left_out


def test_a_window_of_many_samples_travels_in_parts() -> None:
    rng = random.Random(1)
    window = epoch_windows(planner(90_000, FixedBatch(64, regroup=1000), 8), START, Data(1))[0]
    shuffled = list(window.steps)
    rng.shuffle(shuffled)
    parts = pack_window(window)
    assert len(parts) > 1
    assert all(len(part) <= PART_BYTES for part in parts)
    assert unpack_window(list(parts)) == told(window)


def test_damaged_parts_are_a_protocol_error() -> None:
    window = epoch_windows(planner(100, TokenBudget(1500)), START, Data(1))[0]
    (part,) = pack_window(window)
    for damaged in (b"", part[:-9], part[:20] + b"x" * 9 + part[29:], part[1:], msgspec.msgpack.encode(1)):
        with pytest.raises(ProtocolError):
            unpack_window([damaged])


@many
@given(st.lists(st.integers(0, 5000), unique=True), st.integers(0, 9))
def test_a_base_is_the_same_after_saving(carried: list[int], epoch: int) -> None:
    base = Base(epoch, 3, 5001, tuple(sorted(carried)))
    saved = msgspec.convert(msgspec.json.decode(msgspec.json.encode(SavedBase.of(base))), SavedBase)
    assert saved.restored() == base
    assert len(saved.bits) < 850
    assert (
        msgspec.msgpack.decode(msgspec.msgpack.encode(PackedBase.of(base)), type=PackedBase).unpacked()
        == base
    )


def test_windows_follow_one_another() -> None:
    windows = epoch_windows(planner(200, TokenBudget(1200)), START, Data(1))
    knowns: list[Told] = [told(window) for window in windows]
    assert all(one.after == other.base for one, other in pairwise(knowns))
