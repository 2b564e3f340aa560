"""Qwen-VL: sizes and tokens of known pictures and videos, limits kept, impossible input refused."""

from __future__ import annotations

from typing import Any, cast, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from libhelix.errors import MediaError, UsageError
from libhelix.plan.counts import qwen

from .shapes import rates, sides, some, totals

models = st.sampled_from(get_args(qwen.Model))
policies = st.sampled_from(get_args(qwen.Policy))


@pytest.mark.parametrize(
    ("height", "width", "resized"), [(1080, 1920, (1092, 1932)), (1, 1, (56, 56)), (375, 500, (364, 504))]
)
def test_images_have_the_published_sizes(height: int, width: int, resized: tuple[int, int]) -> None:
    counts = qwen.image(height, width)
    assert (counts.height, counts.width) == resized
    assert counts.grid == (1, resized[0] // 14, resized[1] // 14)


def test_a_small_photo_has_234_tokens_and_four_patches_for_each() -> None:
    counts = qwen.image(375, 500)
    assert (counts.tokens, counts.patches) == (234, 936)


def test_half_a_token_rounds_to_the_even_side() -> None:
    assert qwen.image(70, 98, policy="transformers").grid == (1, 4, 8)


@pytest.mark.parametrize(
    ("height", "width", "frames", "resized"),
    [
        (720, 1280, 20, (560, 1008)),
        (1080, 1920, 16, (560, 1008)),
        (360, 640, 20, (364, 644)),
        (720, 1280, 768, (336, 644)),
        (240, 320, 8, (280, 392)),
    ],
)
def test_video_frames_have_the_published_sizes(
    height: int, width: int, frames: int, resized: tuple[int, int]
) -> None:
    counts = qwen.video(height, width, frames)
    assert (counts.height, counts.width) == resized
    assert counts.tokens == frames // 2 * (resized[0] // 28) * (resized[1] // 28)


@pytest.mark.parametrize(
    ("total", "fps", "frames"),
    [(300, 30, 20), (299, 29.97, 18), (31, 30, 4), (5, 25, 4), (3, 25, 2), (2, 25, 2), (18000, 30, 768)],
)
def test_the_published_number_of_frames_is_sampled(total: int, fps: float, frames: int) -> None:
    assert qwen.frame_count(total, fps) == frames


def test_film_rates_sample_two_frames_a_second_rounded_down_to_pairs() -> None:
    assert qwen.frame_count(900, 23.976) == 74


@pytest.mark.parametrize(
    ("height", "width", "total", "tokens"), [(720, 1280, 1200, 28_800), (1080, 1920, 108_000, 105_984)]
)
def test_a_long_video_has_few_more_tokens(height: int, width: int, total: int, tokens: int) -> None:
    assert qwen.video(height, width, qwen.frame_count(total, 30)).tokens == tokens


def test_a_frame_keeps_a_twentieth_more_than_the_least_however_small_the_budget() -> None:
    counts = qwen.video(480, 640, 768, total_pixels=1_000_000)
    assert (counts.height, counts.width) == (280, 364)


def test_frames_of_long_videos_round_in_single_precision_from_the_nearer_end() -> None:
    assert qwen.frame_indices(12_003, 768)[544] == 8513


def test_a_thin_strip_keeps_its_length_under_one_policy_only() -> None:
    assert qwen.image(10, 2000).tokens == 71
    assert qwen.image(10, 2000, policy="transformers").tokens == 29


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: qwen.image(0, 10), "no size"),
        (lambda: qwen.image(10, 2001), "aspect ratio above 200"),
        (lambda: qwen.video(100, 15_000, 768, min_pixels=3136, total_pixels=1e6), "row of patches"),
        (lambda: qwen.video(10, 10, 0), "none"),
        (lambda: qwen.video(64, 64, 1, model="qwen3-vl", policy="transformers"), "2 frames or more"),
        (lambda: qwen.frame_count(1, 25), "0 frames"),
        (lambda: qwen.frame_count(31, 30, frames=32), "32 frames"),
        (lambda: qwen.frame_count(10, 0), "no rate"),
        (lambda: qwen.frame_indices(10, 12, policy="transformers"), "12 frames"),
        (lambda: qwen.clip_range(100, 25, 2.0, 2.0), "no two frames"),
    ],
)
def test_impossible_media_concerns_one_sample(call: Any, says: str) -> None:
    with pytest.raises(MediaError, match=says):
        call()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: qwen.image(64, 64, model=cast("Any", "qwen-vl")), "must be one of"),
        (lambda: qwen.image(64, 64, policy=cast("Any", "vllm")), "must be"),
        (lambda: qwen.image(64, 64, min_pixels=5000, max_pixels=4000), "below min_pixels"),
        (lambda: qwen.video(64, 64, 4, cap_pixels_per_frame=True), "transformers"),
        (lambda: qwen.video(64, 64, 4, total_pixels=9e6, policy="transformers"), "qwen-vl-utils"),
        (lambda: qwen.frame_count(100, 25, rate=float("nan")), "rate=nan"),
        (lambda: qwen.frame_count(100, 25, max_frames=1), "max_frames=1"),
        (lambda: qwen.frame_indices(100, 4, first=3, policy="transformers"), "whole videos"),
        (lambda: qwen.timed_tokens(qwen.video(64, 64, 4), ["<0.0 seconds>"], len), "1 timestamps"),
    ],
)
def test_impossible_settings_are_told_before_training(call: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        call()


def test_clips_are_counted_from_their_first_to_their_last_frame() -> None:
    assert qwen.clip_range(300, 30, None, None) == (0, 300)
    assert qwen.clip_range(300, 30, 1.01, 2.0) == (31, 30)
    assert qwen.clip_range(300, 30, None, 99.0) == (0, 300)
    assert qwen.frame_indices(30, 4, first=31) == (31, 41, 50, 60)


def test_timestamps_are_the_mean_of_a_pair_and_count_with_its_marks() -> None:
    texts = qwen.timestamp_texts((0, 15, 30, 45, 60), 30)
    assert texts == ("<0.2 seconds>", "<1.2 seconds>", "<2.0 seconds>")
    counts = qwen.video(64, 64, 5, model="qwen3-vl")
    assert qwen.timed_tokens(counts, texts, lambda text: 6) == counts.tokens + 3 * (2 + 6)


@some
@given(sides, sides, models, policies)
def test_an_image_has_whole_tokens_within_its_limits(
    height: int, width: int, model: qwen.Model, policy: qwen.Policy
) -> None:
    # Thinner ones are legal, and may pass the limit with a single row of tokens.
    assume(max(height, width) <= 50 * min(height, width))
    counts = qwen.image(height, width, model=model, policy=policy)
    f = qwen.factor(model)
    assert counts == qwen.image(height, width, model=model, policy=policy)
    assert counts.height % f == counts.width % f == 0
    assert counts.tokens == counts.height * counts.width // f**2
    low, high = (4 * f * f, 16384 * f * f) if policy == "qwen-vl-utils" else (3136, 1_003_520)
    assert low <= counts.height * counts.width <= high


@some
@given(sides, sides, st.integers(1, 384), models)
def test_a_video_stays_below_its_budget(height: int, width: int, pairs: int, model: qwen.Model) -> None:
    assume(max(height, width) <= 20 * min(height, width))
    counts = qwen.video(height, width, 2 * pairs, model=model)
    # 134 is 1.05 times the least of 128 tokens a pair, which the budget always leaves.
    assert 1 <= counts.tokens <= min(max(0.9 * 128_000, pairs * 134), pairs * 768)
    assert counts.patches == 4 * counts.tokens


@some
@given(st.integers(56, 980), st.integers(56, 980), st.integers(1, 16_384), policies)
def test_a_larger_square_never_has_fewer_tokens_within_the_limits(
    one: int, other: int, most: int, policy: qwen.Policy
) -> None:
    small, large = (qwen.image(n, n, policy=policy).tokens for n in sorted((one, other)))
    assert small <= large
    limit = 4096 + most * 784
    assert qwen.image(one, one, policy=policy, max_pixels=limit).tokens * 784 <= limit


def test_enlarging_rounds_up_in_floats_as_published() -> None:
    # 19 * sqrt(56^2 / 19^2) / 28 is a little above 2, 20 * sqrt(56^2 / 20^2) / 28 is not.
    assert (qwen.image(19, 19).tokens, qwen.image(20, 20).tokens) == (9, 4)


@some
@given(totals, rates, st.floats(0.1, 8), models, policies)
def test_frames_are_ascending_and_exist(
    total: int, fps: float, rate: float, model: qwen.Model, policy: qwen.Policy
) -> None:
    assume(total >= 2)
    n = qwen.frame_count(total, fps, rate=rate, model=model, policy=policy)
    indices = qwen.frame_indices(total, n, model=model, policy=policy)
    assert len(indices) == n <= min(total, 768)
    assert indices[0] == 0
    assert indices[-1] < total
    assert list(indices) == sorted(set(indices))
    assert indices == qwen.frame_indices(total, n, model=model, policy=policy)
