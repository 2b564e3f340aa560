"""Tiles show what they should: places are told by colours, scaling by a picture whose pixels are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from libhelix.media import probe_file, tiles
from libhelix.media.tiles import Array
from tests.clips import make_clip
from tests.reference import decode_all

Image = pytest.importorskip("PIL.Image", reason="tiles are scaled by Pillow")

SIDE = 8
RESIZES: tuple[tiles.Resize, ...] = ("exact", "fast")


def blocks(rows: int, columns: int, side: int = SIDE) -> Array:
    """A picture whose tile (r, c) has the colour (20 r, 20 c, 200)."""
    made = np.full((rows * side, columns * side, 3), 200, np.uint8)
    made[..., 0] = (np.arange(rows * side) // side * 20)[:, np.newaxis]
    made[..., 1] = np.arange(columns * side) // side * 20
    return made


@pytest.mark.parametrize("resize", RESIZES)
def test_tiles_go_row_by_row_and_the_thumbnail_comes_last(resize: tiles.Resize) -> None:
    out = np.empty((7, 3, SIDE, SIDE), np.uint8)
    tiles.grid(blocks(2, 3), 3, 2, out, resize)
    for at in range(6):
        assert (out[at] == np.array([at // 3 * 20, at % 3 * 20, 200])[:, None, None]).all()
    assert out[6, 0, 0, 0] < out[6, 0, -1, 0]
    assert out[6, 1, 0, 0] < out[6, 1, 0, -1]
    assert (out[6, 2] == 200).all()


@pytest.mark.parametrize(("first", "last"), [(0, 2), (2, 6), (3, 7), (6, 7), (5, 6)])
def test_some_of_the_tiles_equal_those_of_all(first: int, last: int) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (37, 61, 3), np.uint8)
    everything = np.empty((7, 3, SIDE, SIDE), np.uint8)
    tiles.grid(picture, 3, 2, everything, "exact")
    some = np.empty((last - first, 3, SIDE, SIDE), np.uint8)
    tiles.grid(picture, 3, 2, some, "exact", first)
    np.testing.assert_array_equal(some, everything[first:last])


def test_a_lone_tile_is_the_whole_picture_and_has_no_thumbnail() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (30, 20, 3), np.uint8)
    one, other = np.empty((1, 3, SIDE, SIDE), np.uint8), np.empty((3, SIDE, SIDE), np.uint8)
    tiles.grid(picture, 1, 1, one, "exact")
    tiles.whole(picture, other, "exact")
    np.testing.assert_array_equal(one[0], other)


@pytest.mark.parametrize("resize", RESIZES)
def test_crops_keep_the_aspect_and_lie_on_black(resize: tiles.Resize) -> None:
    out = np.full((3, 3, SIDE, SIDE), 99, np.uint8)
    tiles.anyres(np.full((10, 40, 3), 255, np.uint8), 1, 2, out, resize)
    assert (out[0] == 255).all()
    # 16 x 8 pixels for a picture of 4:1: 4 rows of it, with 2 of black above and below.
    for crop in out[1:]:
        assert (crop[:, 2:6] == 255).all()
        assert not crop[:, :2].any()
        assert not crop[:, 6:].any()


@pytest.mark.parametrize(("height", "width"), [(4, 8), (8, 4), (8, 8)])
def test_a_square_is_padded_with_its_colour(height: int, width: int) -> None:
    out = np.empty((3, SIDE, SIDE), np.uint8)
    tiles.square(np.full((height, width, 3), 255, np.uint8), (1, 2, 3), out, "exact")
    picture = (out == 255).all(axis=0)
    assert picture.sum() == height * width
    assert (out[:, ~picture] == np.array([1, 2, 3])[:, np.newaxis]).all()
    assert picture[(SIDE - height) // 2, (SIDE - width) // 2]


def test_strided_targets_are_filled() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (37, 61, 3), np.uint8)
    base, dense = np.zeros((5, 3, SIDE, 2 * SIDE), np.uint8), np.empty((5, 3, SIDE, SIDE), np.uint8)
    for write in (tiles.grid, tiles.anyres):
        write(picture, 2, 2, base[..., ::2], "exact")
        write(picture, 2, 2, dense, "exact")
        np.testing.assert_array_equal(base[..., ::2], dense)
        assert not base[..., 1::2].any()


@pytest.mark.parametrize("rotation", [0, 90, 270])
def test_frames_of_a_video_are_whole_pictures_upright(rotation: int, tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "a.mp4", 20, size=(96, 192), rotation=rotation)
    item = probe_file(clip)
    decoded = decode_all(clip)
    out = {one: np.empty((4, 3, 64, 64), np.uint8) for one in RESIZES}
    for resize, frames in out.items():
        tiles.frames(item, (3, 7, 7, 15), frames, resize)
    for at, number in enumerate((3, 7, 7, 15)):
        upright = np.rot90(decoded[number].to_ndarray(format="rgb24"), -(rotation // 90))
        bicubic = Image.Resampling.BICUBIC
        along_rows = Image.fromarray(upright).resize((64, len(upright)), bicubic)
        scaled = along_rows.resize((64, 64), bicubic)
        np.testing.assert_array_equal(out["exact"][at], np.asarray(scaled).transpose(2, 0, 1))
    near = np.abs(out["exact"].astype(int) - out["fast"].astype(int))
    assert 0 < near.mean() < 8
