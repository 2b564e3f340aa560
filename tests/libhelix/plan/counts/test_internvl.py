"""InternVL: tiles and frames of known media, the tile limit kept, and every frame within the video."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhelix.errors import MediaError, UsageError
from libhelix.plan.counts import internvl

from .shapes import outcome, rates, sides, some, totals


def test_a_small_photo_is_twelve_tiles_and_a_thumbnail() -> None:
    counts = internvl.image(375, 500)
    assert (counts.columns, counts.rows, counts.tiles, counts.tokens) == (4, 3, 13, 3328)


def test_a_square_is_one_tile_until_it_is_large_enough_for_more() -> None:
    assert internvl.image(448, 448).tiles == 1
    assert internvl.image(900, 900).tiles == 5
    assert internvl.image(900, 900, thumbnail=False).tiles == 4
    assert internvl.image(900, 900, max_tiles=1).tokens == 256


def test_the_middles_of_equal_stretches_are_taken() -> None:
    assert internvl.middle_frames(300, 8) == (18, 55, 93, 130, 168, 205, 243, 280)
    assert internvl.middle_frames(7, 8) == (0, 1, 2, 3, 4, 5, 6, 6)


def test_evaluation_ends_one_frame_earlier() -> None:
    assert internvl.evaluation_frames(300, 8)[-3:] == (205, 242, 280)


def test_frames_at_a_rate_begin_in_the_middle_of_their_gap() -> None:
    assert internvl.frames_at_rate(100, 25, 1) == (12, 38, 62, 88)
    assert internvl.frames_at_rate(100, 25, 1, max_frames=2) == (12, 38)


def test_a_random_draw_never_takes_the_last_frame_of_a_stretch() -> None:
    assert internvl.random_ranges(12, 3) == (range(3), range(4, 7), range(8, 11))
    assert not any(internvl.random_ranges(3, 3))


def test_a_video_has_a_tile_a_frame() -> None:
    assert internvl.video_tokens(16) == 4096


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: internvl.image(10, 0), MediaError),
        (lambda: internvl.video_tokens(0), MediaError),
        (lambda: internvl.middle_frames(0, 8), MediaError),
        (lambda: internvl.frames_at_rate(2, 30, 1), MediaError),
        (lambda: internvl.transformers_frames(3, 4), MediaError),
        (lambda: internvl.image(10, 10, min_tiles=3, max_tiles=2), UsageError),
        (lambda: internvl.middle_frames(10, 0), UsageError),
        (lambda: internvl.frames_at_rate(10, 25, 0), UsageError),
    ],
)
def test_impossible_input_is_refused(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


@some
@given(sides, sides, st.integers(1, 40))
def test_tiles_stay_within_their_limit(height: int, width: int, most: int) -> None:
    counts = internvl.image(height, width, max_tiles=most)
    assert 1 <= counts.columns * counts.rows <= most
    assert counts.tokens <= 256 * (most + 1)
    assert counts == internvl.image(height, width, max_tiles=most)


@some
@given(sides, sides, st.integers(1, 6))
def test_a_larger_picture_of_the_same_aspect_never_has_fewer_tiles(height: int, width: int, by: int) -> None:
    assert internvl.image(height, width).tiles <= internvl.image(height * by, width * by).tiles


@some
@given(totals, rates, st.floats(0.1, 8), st.integers(1, 64))
def test_frames_equal_what_numpy_makes_of_the_published_expressions(
    total: int, fps: float, rate: float, count: int
) -> None:
    edges = np.linspace(0, total, min(count, total) + 1).astype(int).tolist()
    assert internvl.random_ranges(total, count) == tuple(range(a, b - 1) for a, b in pairwise(edges))
    stretch = (total - 1) / count
    assert internvl.evaluation_frames(total, count) == tuple(
        int(stretch / 2 + np.round(stretch * i)) for i in range(count)
    )
    seconds = np.arange(1 / rate / 2, total / fps + 1 / rate / 2, 1 / rate)
    frames = [i for i in np.around(seconds * fps).astype(int).tolist() if i < total]
    assert outcome(lambda: list(internvl.frames_at_rate(total, fps, rate))) == (frames or None)


@pytest.mark.parametrize("policy", [internvl.middle_frames, internvl.evaluation_frames])
def test_every_policy_gives_the_frames_asked_for(policy: Callable[[int, int], tuple[int, ...]]) -> None:
    for total in (1, 2, 7, 300, 12_707):
        for count in (1, 2, 8, 32):
            frames = policy(total, count)
            assert len(frames) == count
            assert list(frames) == sorted(frames)
            assert 0 <= frames[0] <= frames[-1] < total


@some
@given(totals, rates, st.floats(0.1, 8))
def test_frames_at_a_rate_exist(total: int, fps: float, rate: float) -> None:
    try:
        frames = internvl.frames_at_rate(total, fps, rate)
    except MediaError:
        assert fps / rate >= total
    else:
        assert list(frames) == sorted(frames)
        assert frames[-1] < total
