"""LLaVA-OneVision: tokens of known pictures, limits kept, and the frames of LLaVA-Video."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhelix.errors import MediaError, UsageError
from libhelix.plan.counts import llava

from .shapes import rates, sides, some, totals


def test_a_small_photo_has_1728_tokens() -> None:
    counts = llava.anyres(375, 500)
    assert (counts.rows, counts.columns, counts.crops) == (1, 2, 3)
    assert counts.tokens == 1728


def test_one_crop_is_seen_whole_and_as_its_own_crop() -> None:
    assert llava.anyres(384, 384).tokens == 729 + 27 * 27 + 27


def test_a_large_picture_shrinks_to_nine_crops() -> None:
    counts = llava.anyres(2304, 2304)
    assert (counts.rows, counts.columns, counts.kept) == (6, 6, (81, 81))


def test_several_images_and_video_have_constant_rates() -> None:
    assert llava.several_images(3) == 3 * 730
    assert llava.video_tokens(32) == 32 * 196 + 1


def test_long_videos_are_thinned_to_the_most_frames_from_first_to_last() -> None:
    assert llava.frame_indices(300, 30, max_frames=8) == (0, 42, 85, 128, 170, 213, 256, 299)
    assert llava.frame_indices(100, 30, max_frames=8) == (0, 30, 60, 90)
    assert llava.frame_indices(3, 30, max_frames=4, always_max=True) == (0, 0, 1, 2)
    assert llava.frame_indices(100, 25) == (0, 25, 50, 75)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: llava.anyres(0, 5), MediaError),
        (lambda: llava.video_tokens(0), MediaError),
        (lambda: llava.frame_indices(10, 0), MediaError),
        (lambda: llava.several_images(0), UsageError),
        (lambda: llava.frame_indices(10, 10, rate=30), UsageError),
        (lambda: llava.frame_indices(10, 10, max_frames=0), UsageError),
    ],
)
def test_impossible_input_is_refused(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


@some
@given(sides, sides, st.integers(1, 20))
def test_tokens_stay_within_the_limit(height: int, width: int, most: int) -> None:
    counts = llava.anyres(height, width, most)
    h, w = counts.kept
    assert h * w <= 1.21 * most * 729
    assert h <= 27 * counts.rows
    assert w <= 27 * counts.columns
    assert counts == llava.anyres(height, width, most)


@some
@given(totals, rates, st.integers(1, 64))
def test_frames_exist_and_are_not_more_than_asked_for(total: int, fps: float, most: int) -> None:
    frames = llava.frame_indices(total, max(fps, 1.0), max_frames=most)
    assert 1 <= len(frames) <= most
    assert list(frames) == sorted(frames)
    assert 0 <= frames[0] <= frames[-1] < total
    thinned = llava.frame_indices(total, fps, rate=fps, max_frames=most, always_max=True)
    assert list(thinned) == np.linspace(0, total - 1, most, dtype=int).tolist()
