"""Images: any format by its content, upright, on white, whole or refused."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pil
from PIL import ImageOps

from libhelix.errors import MediaError
from libhelix.media import image, probe_file
from libhelix.media.pixels import Order, cover_size
from libhelix.recipe import Item
from tests.clips import picture


def load(path: Path, size: tuple[int, int] | None = None, order: Order = "HWC") -> np.ndarray:
    item = probe_file(path)
    assert item.image is not None
    h, w = size or item.image.display_size
    out = np.zeros((h, w, 3) if order == "HWC" else (3, h, w), np.uint8)
    image.decode(item, out, order)
    return out


def save(path: Path, array: np.ndarray, mode: str | None = None, **options: Any) -> Path:
    picture = Pil.fromarray(array)
    (picture.convert(mode) if mode else picture).save(path, **options)
    return path


COLOUR = picture(1365, (60, 80))


@pytest.mark.parametrize(
    ("name", "options"),
    [("a.png", {}), ("a.bmp", {}), ("a.webp", {"lossless": True}), ("progressive.png", {"interlace": 1})],
)
def test_lossless_formats_give_the_pixels(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    np.testing.assert_array_equal(load(save(tmp_path / name, COLOUR, **options)), COLOUR)


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_rows": 1}]
)
def test_jpeg_is_close_to_pillow(options: dict[str, Any], tmp_path: Path) -> None:
    path = save(tmp_path / "a.jpg", COLOUR, quality=95, **options)
    expected = np.asarray(Pil.open(path).convert("RGB")).astype(int)
    assert np.abs(load(path) - expected).mean() < 3


def test_the_first_picture_of_a_gif_is_shown(tmp_path: Path) -> None:
    frames = [Pil.new("RGB", (32, 16), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    got = load(tmp_path / "a.gif")
    assert got.shape == (16, 32, 3)
    assert (got == [255, 0, 0]).all()


def test_the_suffix_does_not_matter(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", COLOUR).rename(tmp_path / "a.jpg")
    np.testing.assert_array_equal(load(path), COLOUR)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int, tmp_path: Path) -> None:
    exif = Pil.Exif()
    exif[0x112] = orientation
    path = save(tmp_path / "a.jpg", COLOUR, exif=exif, subsampling=0, quality=95)
    expected = np.asarray(ImageOps.exif_transpose(Pil.open(path))).astype(int)
    item = probe_file(path)
    assert item.image is not None
    assert item.image.orientation == orientation
    assert item.image.display_size == expected.shape[:2]
    assert np.abs(load(path) - expected).mean() < 3


@pytest.mark.parametrize("name", ["a.png", "a.webp"])
def test_transparency_is_laid_on_white(name: str, tmp_path: Path) -> None:
    alpha = np.broadcast_to(np.linspace(0, 255, 80).astype(np.uint8)[None, :, None], (60, 80, 1))
    path = save(tmp_path / name, np.concatenate([COLOUR, alpha], 2), lossless=True, exact=True)
    a = alpha.astype(float) / 255
    assert np.abs(load(path) - (COLOUR * a + 255 * (1 - a))).max() <= 1


def test_a_palette_with_a_transparent_colour_is_laid_on_white(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Pil.new("P", (8, 8), 0).save(path, transparency=0)
    assert (load(path) == 255).all()


@pytest.mark.parametrize("mode", ["L", "1"])
def test_grey_becomes_three_channels(mode: str, tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", COLOUR, mode)
    expected = np.asarray(Pil.open(path).convert("L"))
    np.testing.assert_array_equal(load(path), np.repeat(expected[:, :, None], 3, 2))


def test_sixteen_bits_keep_their_upper_byte(tmp_path: Path) -> None:
    deep = (np.arange(64 * 64, dtype=np.uint16) * 16).reshape(64, 64)
    path = save(tmp_path / "a.png", deep)
    np.testing.assert_array_equal(load(path), np.repeat((deep >> 8)[:, :, None], 3, 2))


def test_crop_to_fill_keeps_the_middle(tmp_path: Path) -> None:
    wide = np.zeros((40, 120, 3), np.uint8)
    wide[:, 40:80] = 255
    assert (load(save(tmp_path / "a.png", wide), (40, 40)) == 255).all()


def test_channels_first_and_strided_targets(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", COLOUR)
    np.testing.assert_array_equal(load(path, order="CHW"), COLOUR.transpose(2, 0, 1))
    wide = np.zeros((60, 160, 3), np.uint8)
    image.decode(probe_file(path), wide[:, ::2])
    np.testing.assert_array_equal(wide[:, ::2], COLOUR)
    assert not wide[:, 1::2].any()


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "gif", "bmp"])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_truncated_files_are_refused(suffix: str, part: float, tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    path = save(tmp_path / f"a.{suffix}", noise)
    body = path.read_bytes()
    path.write_bytes(body[: int(len(body) * part)])
    with pytest.raises(MediaError, match=r"truncated|broken") as caught:
        load(path, (32, 32))
    assert str(path) in str(caught.value)


def test_a_jpeg_cut_and_closed_again_is_refused(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    path = save(tmp_path / "a.jpg", noise)
    path.write_bytes(path.read_bytes()[:2000] + b"\xff\xd9")
    with pytest.raises(MediaError, match="broken"):
        load(path)


def test_what_follows_a_jpeg_is_not_read(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jpg", COLOUR)
    expected = load(path)
    path.write_bytes(path.read_bytes() + b"\0\0\0\x18ftypmp42" + bytes(500))
    np.testing.assert_array_equal(load(path), expected)


def test_bombs_are_refused_from_the_header(tmp_path: Path) -> None:
    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    path = tmp_path / "bomb.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk)
    with pytest.raises(MediaError, match="60000x60000"):
        probe_file(path)


def test_avif_is_not_taken_for_a_video(tmp_path: Path) -> None:
    path = tmp_path / "a.avif"
    path.write_bytes(b"\0\0\0\x1cftypavif" + bytes(100))
    with pytest.raises(MediaError, match="AVIF"):
        probe_file(path)


def test_an_image_inside_a_larger_file(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Pil.fromarray(COLOUR).save(buffer, "png")
    shard = tmp_path / "shard.tar"
    shard.write_bytes(b"z" * 99 + buffer.getvalue() + b"z" * 50)
    size = len(buffer.getvalue())
    item = Item(kind="image", path=str(shard), offset=99, size=size, mtime_ns=shard.stat().st_mtime_ns)
    out = np.zeros_like(COLOUR)
    image.decode(item, out)
    np.testing.assert_array_equal(out, COLOUR)


@pytest.mark.parametrize(
    ("picture_size", "target", "expected"),
    [
        ((720, 1280), (224, 224), (224, 398)),
        ((1280, 720), (224, 224), (398, 224)),
        ((100, 100), (50, 50), (50, 50)),
        ((3, 7), (1, 1), (1, 2)),
        ((1000, 1), (4, 4), (4000, 4)),
        ((5, 3), (10, 7), (12, 7)),
    ],
)
def test_cover_size(
    picture_size: tuple[int, int], target: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert cover_size(*picture_size, target) == expected
