"""Tiles show what they should: places are told by colours, scaling by a picture whose pixels are known."""

from __future__ import annotations

import numpy as np
import pytest

from libhelix.media import tiles
from libhelix.media.tiles import Array

pytest.importorskip("PIL", reason="tiles are scaled by Pillow")

SIDE = 8


def blocks(rows: int, columns: int, side: int = SIDE) -> Array:
    """A picture whose tile (r, c) has the colour (20 r, 20 c, 200)."""
    made = np.full((rows * side, columns * side, 3), 200, np.uint8)
    made[..., 0] = (np.arange(rows * side) // side * 20)[:, np.newaxis]
    made[..., 1] = np.arange(columns * side) // side * 20
    return made


def test_tiles_go_row_by_row_and_the_thumbnail_comes_last() -> None:
    out = np.empty((7, 3, SIDE, SIDE), np.uint8)
    tiles.grid(blocks(2, 3), 3, 2, out)
    for at in range(6):
        assert (out[at] == np.array([at // 3 * 20, at % 3 * 20, 200])[:, None, None]).all()
    assert out[6, 0, 0, 0] < out[6, 0, -1, 0]
    assert out[6, 1, 0, 0] < out[6, 1, 0, -1]
    assert (out[6, 2] == 200).all()


@pytest.mark.parametrize(("first", "last"), [(0, 2), (2, 6), (3, 7), (6, 7), (5, 6)])
def test_some_of_the_tiles_equal_those_of_all(first: int, last: int) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (37, 61, 3), np.uint8)
    everything = np.empty((7, 3, SIDE, SIDE), np.uint8)
    tiles.grid(picture, 3, 2, everything)
    some = np.empty((last - first, 3, SIDE, SIDE), np.uint8)
    tiles.grid(picture, 3, 2, some, first)
    np.testing.assert_array_equal(some, everything[first:last])


def test_a_lone_tile_is_the_whole_picture_and_has_no_thumbnail() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (30, 20, 3), np.uint8)
    one, other = np.empty((1, 3, SIDE, SIDE), np.uint8), np.empty((3, SIDE, SIDE), np.uint8)
    tiles.grid(picture, 1, 1, one)
    tiles.whole(picture, other)
    np.testing.assert_array_equal(one[0], other)


def test_crops_keep_the_aspect_and_lie_on_black() -> None:
    out = np.full((3, 3, SIDE, SIDE), 99, np.uint8)
    tiles.anyres(np.full((10, 40, 3), 255, np.uint8), 1, 2, out)
    assert (out[0] == 255).all()
    # 16 x 8 pixels for a picture of 4:1: 4 rows of it, with 2 of black above and below.
    for crop in out[1:]:
        assert (crop[:, 2:6] == 255).all()
        assert not crop[:, :2].any()
        assert not crop[:, 6:].any()


@pytest.mark.parametrize(("height", "width"), [(4, 8), (8, 4), (8, 8)])
def test_a_square_is_padded_with_its_colour(height: int, width: int) -> None:
    out = np.empty((3, SIDE, SIDE), np.uint8)
    tiles.square(np.full((height, width, 3), 255, np.uint8), (1, 2, 3), out)
    picture = (out == 255).all(axis=0)
    assert picture.sum() == height * width
    assert (out[:, ~picture] == np.array([1, 2, 3])[:, np.newaxis]).all()
    assert picture[(SIDE - height) // 2, (SIDE - width) // 2]


def test_strided_targets_are_filled() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (37, 61, 3), np.uint8)
    base, dense = np.zeros((5, 3, SIDE, 2 * SIDE), np.uint8), np.empty((5, 3, SIDE, SIDE), np.uint8)
    for write in (lambda out: tiles.grid(picture, 2, 2, out), lambda out: tiles.anyres(picture, 2, 2, out)):
        write(base[..., ::2])
        write(dense)
        np.testing.assert_array_equal(base[..., ::2], dense)
        assert not base[..., 1::2].any()
