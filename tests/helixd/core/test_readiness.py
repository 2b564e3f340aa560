"""Windows are learned from what trainers report, and waiting for other ranks is not computing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helixd.core.readiness import Features, Readiness, WindowModel, features_of, fit
from libhelix.plan.window import FILLER
from libhelix.wire import messages as m
from libhelix.wire.settings import Position

TRUE: Features = (0.02, 8.0, 900.0, 0.0)
"""20 ms, 8 s per million tokens, 900 s per million million: about 0.25 s for 16,384 tokens."""


def _features(tokens: Sequence[int], latents: int = 0) -> Features:
    rows = [m.Row(i, (), {"tokens": n, "latents": latents}, 1, (), (0,)) for i, n in enumerate(tokens)]
    return features_of(rows)


def _draw(draws: random.Random, most: int = 4096) -> Features:
    """A micro-batch of four samples of mixed lengths."""
    return _features([draws.randrange(64, most) for _ in range(4)])


def _window_s(features: Features, true: Features = TRUE) -> float:
    return sum(c * x for c, x in zip(true, features))


def test_features_are_tokens_their_squares_and_latents_without_fillers() -> None:
    rows = (
        m.Row(0, (), {"tokens": 1000, "latents": 5}, 1, (), (0,)),
        m.Row(1, (), {"tokens": 2000}, 1, (), (0,)),
        m.Row(FILLER, (), {"tokens": 9000, "latents": 9}, 1, (), (0,)),
    )
    assert features_of(rows) == pytest.approx((1.0, 0.003, 5e-6, 5e-6))


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.001, 0.1),
    st.sampled_from([0.0, 1.0, 20.0]),
    st.sampled_from([0.0, 100.0, 5000.0]),
    st.sampled_from([0.0, 3.0]),
    st.integers(0, 1 << 32),
)
def test_coefficients_that_are_there_are_found(a: float, b: float, c: float, d: float, seed: int) -> None:
    draws = random.Random(seed)
    true = (a, b, c, d)
    given_ = [
        _features([draws.randrange(16, 8192) for _ in range(draws.randrange(1, 6))], draws.randrange(10**5))
        for _ in range(64)
    ]
    found = fit(given_, [_window_s(f, true) for f in given_])
    assert found == pytest.approx(true, rel=1e-3, abs=1e-3 * max(true))


def test_noise_and_a_tenth_of_outliers_hardly_change_predictions() -> None:
    draws = random.Random(1)
    given_ = [_draw(draws) for _ in range(256)]
    values = [_window_s(f) * draws.gauss(1.0, 0.05) for f in given_]
    for i in range(0, 256, 12):
        values[i] *= 20  # a checkpoint is written
    found = fit(given_, values)
    assert min(found) >= 0
    for features in given_[:50]:
        assert _window_s(features, found) == pytest.approx(_window_s(features), rel=0.1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(1e-6, 1e3)), min_size=1, max_size=40
    )
)
def test_predictions_are_never_negative_and_what_was_seen_is_predicted_above_zero(
    seen: list[tuple[int, int, float]],
) -> None:
    model = WindowModel()
    for i, (tokens, latents, window_s) in enumerate(seen):
        model.learn(_features([tokens], latents), window_s, float(i))
    assert model.coefficients is not None
    assert min(model.coefficients) >= 0
    assert max(model.coefficients) > 0
    for tokens, latents, _ in seen:
        assert model.predict_s(_features([tokens], latents)) >= 0
    assert any(model.predict_s(_features([tokens], latents)) > 0 for tokens, latents, _ in seen)


class _Ranks:
    """Ranks that compute micro-batches and meet at the end of each step, as with a collective there."""

    def __init__(self, ranks: int, micro_batches: int, draw: Callable[[], Features]) -> None:
        self.readiness = Readiness(ranks, micro_batches)
        self._ranks, self._micros, self._draw = range(ranks), micro_batches, draw
        self._before: list[Position | None] = [None] * ranks
        self._busy = [0.0] * ranks
        self.now = 0.0

    def step(
        self,
        number: int,
        wait_s: Callable[[int], float] = lambda _: 0.0,
        speed: Callable[[int], float] = lambda _: 1.0,
    ) -> list[list[Features]]:
        """A step; each rank waits for the input of its first micro-batch, and with its last for the others.
        `speed`: what windows take of a rank, relative to what they should."""
        given_ = [[self._draw() for _ in range(self._micros)] for _ in self._ranks]
        for rank in self._ranks:
            for micro in range(self._micros):
                self.readiness.granted(Position(0, number, micro), rank, given_[rank][micro])
        ends = [self.now] * len(given_)
        for rank in self._ranks:
            waits = wait_s(rank)
            ends[rank] += waits
            for micro in range(self._micros):
                self._took(rank, Position(0, number, micro), waits if micro == 0 else 0.0, ends[rank])
                self._busy[rank] = _window_s(given_[rank][micro]) * speed(rank)
                ends[rank] += self._busy[rank]
        self.now = max(ends)
        for rank in self._ranks:
            self._busy[rank] += self.now - ends[rank]
        return given_

    def _took(self, rank: int, at: Position, wait_s: float, now: float) -> None:
        taking = m.Taking(at, int(wait_s * 1e6), int(now * 1e6), int(self._busy[rank] * 1e6))
        self.readiness.took(rank, taking, self._before[rank], now)
        self._before[rank] = at


def _expect_true_windows(readiness: Readiness, within: float = 0.1) -> None:
    draws = random.Random(99)
    for _ in range(50):
        features = _draw(draws)
        assert readiness.model.predict_s(features) == pytest.approx(_window_s(features), rel=within)


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("micro_batches", [1, 2, 8])
def test_waiting_for_the_slowest_rank_is_never_taken_for_computing(ranks: int, micro_batches: int) -> None:
    draws = random.Random(ranks * 10 + micro_batches)
    job = _Ranks(ranks, micro_batches, lambda: _draw(draws))
    for number in range(120):
        job.step(number)
    assert job.readiness.known
    _expect_true_windows(job.readiness)


@pytest.mark.parametrize("micro_batches", [1, 8])
def test_nor_is_it_where_ranks_wait_for_input_as_well(micro_batches: int) -> None:
    draws = random.Random(3)
    job = _Ranks(4, micro_batches, lambda: _draw(draws))
    for number in range(150):
        late = draws.randrange(4)
        job.step(number, wait_s=lambda rank, late=late: 0.3 if rank == late else 0.0)  # type: ignore[misc]
    _expect_true_windows(job.readiness)


def test_a_rank_that_hangs_now_and_then_changes_little() -> None:
    draws = random.Random(4)
    job = _Ranks(4, 1, lambda: _draw(draws))
    for number in range(200):
        hangs = number % 20 == 7
        job.step(number, speed=lambda rank, hangs=hangs: 30.0 if hangs and rank == 2 else 1.0)  # type: ignore[misc]
    _expect_true_windows(job.readiness, within=0.2)


def test_the_last_micro_batch_is_expected_to_wait_for_the_heaviest_rank() -> None:
    draws = random.Random(5)
    job = _Ranks(2, 2, lambda: _draw(draws))
    for number in range(100):
        job.step(number)
    light, heavy = _features([200] * 4), _features([4000] * 4)
    for rank, features in ((0, light), (1, heavy)):
        for micro in range(2):
            job.readiness.granted(Position(1, 0, micro), rank, features)
    assert job.readiness.window_s(Position(1, 0, 0), 0) == pytest.approx(_window_s(light), rel=0.1)
    expected = 2 * _window_s(heavy) - _window_s(light)
    assert job.readiness.window_s(Position(1, 0, 1), 0) == pytest.approx(expected, rel=0.1)
    assert job.readiness.window_s(Position(1, 0, 1), 1) == pytest.approx(_window_s(heavy), rel=0.1)


def test_what_a_trainer_measured_itself_counts_as_it_is() -> None:
    readiness = Readiness(2, 1)
    draws = random.Random(6)
    before = None
    for number in range(60):
        at, features = Position(0, number, 0), _draw(draws)
        readiness.granted(at, 0, features)
        readiness.granted(at, 1, features)  # never reports
        if before is not None:
            window_us = int(_window_s(before[1]) * 1e6)
            readiness.took(0, m.Taking(at, 0, 1, window_us, computing=True), before[0], float(number))
        before = at, features
    _expect_true_windows(readiness)


def test_what_an_accelerator_measured_counts_for_its_batch_and_what_its_host_saw_does_not() -> None:
    readiness = Readiness(1, 1)
    draws = random.Random(7)
    given: list[Features] = []
    for number in range(60):
        at = Position(0, number, 0)
        given.append(_draw(draws))
        readiness.granted(at, 0, given[-1])
        measured = m.Measured(at, 0)  # not known yet
        if number >= 2:
            measured = m.Measured(Position(0, number - 2, 0), int(_window_s(given[number - 2]) * 1e6))
        before = Position(0, number - 1, 0) if number else None
        readiness.took(0, m.Taking(at, 0, 1, 777, measured=measured), before, float(number))
    _expect_true_windows(readiness)


def test_a_miss_is_a_wait_of_a_millisecond_or_a_hundredth_of_a_step() -> None:
    readiness = Readiness(2, 2)
    assert readiness.miss_s() == 0.001
    before = None
    for number in range(20):
        for micro in range(2):
            at = Position(0, number, micro)
            readiness.granted(at, 0, _features([100]))
            readiness.took(0, m.Taking(at, 0, 1, 500_000), before, float(number))
            before = at
    assert readiness.usual_s == pytest.approx(0.5)
    assert readiness.miss_s() == pytest.approx(0.01)
