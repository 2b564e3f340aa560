"""Images: pixels at their final address, whole or refused. Odd ones are in tests/cases."""

from __future__ import annotations

import contextlib
import io
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pil
from PIL import ImageOps

from libhelix.errors import MediaError
from libhelix.media import image, probe_file
from libhelix.media.geometry import cover_size, shrink_of
from libhelix.media.headers import image as image_header
from libhelix.media.image_cost import decode_cost_us
from libhelix.media.pixels import Order
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


def test_a_jpeg_that_lost_its_place_is_refused_and_one_that_is_padded_is_not(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    path = save(tmp_path / "a.jpg", noise)
    body = path.read_bytes()
    expected = load(path)
    for padding in (b"\0", b"\0\0\0\0", bytes(9)):
        path.write_bytes(body[:-2] + padding + b"\xff\xd9")
        np.testing.assert_array_equal(load(path), expected)
    path.write_bytes(body[:2000] + bytes(100) + body[2100:])
    with pytest.raises(MediaError, match="extraneous bytes"):
        load(path)


def test_what_follows_a_jpeg_is_not_read(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jpg", COLOUR)
    expected = load(path)
    path.write_bytes(path.read_bytes() + b"\0\0\0\x18ftypmp42" + bytes(500))
    np.testing.assert_array_equal(load(path), expected)


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


# ---- headers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preview_bytes", [100, 200_000])
def test_headers_of_any_length_are_passed_over(preview_bytes: int, tmp_path: Path) -> None:
    """Phones put previews before the size of a JPEG, editors text before the orientation of a PNG."""
    exif = Pil.Exif()
    exif[0x112] = 6
    jpg, png = (save(tmp_path / f"a.{suffix}", COLOUR, exif=exif) for suffix in ("jpg", "png"))
    before = {jpg: load(jpg), png: load(png)}
    body = jpg.read_bytes()
    segment = b"\xff\xe5" + struct.pack(">H", 40_002) + bytes(40_000)
    jpg.write_bytes(body[:2] + segment * (preview_bytes // 40_000 + 1) + body[2:])
    body = png.read_bytes()
    text = b"tEXt" + b"Comment\0" + b"x" * preview_bytes
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    png.write_bytes(body[:33] + chunk + body[33:])
    for path, expected in before.items():
        info = probe_file(path).image
        assert info is not None
        assert (info.display_size, info.orientation) == ((80, 60), 6)
        np.testing.assert_array_equal(load(path), expected)


def test_few_bytes_are_read_of_a_header(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (800, 800, 3), dtype=np.uint8)

    class Counted(io.FileIO):
        taken = 0

        def read(self, size: int | None = -1, /) -> bytes:
            got = super().read(size)
            Counted.taken += len(got or b"")
            return got or b""

    for suffix in ("jpg", "png", "webp", "bmp"):
        path = save(tmp_path / f"a.{suffix}", noise)
        with Counted(path) as file:
            assert image_header.read(file, 0, path.stat().st_size, str(path)).height == 800
    assert Counted.taken <= 4 * 16384


@given(
    body=st.binary(max_size=200), codec=st.sampled_from([b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a"])
)
def test_headers_of_noise_say_something_or_are_refused(body: bytes, codec: bytes) -> None:
    with contextlib.suppress(MediaError):
        info = image_header.probe_body(codec + body, "noise")
        assert 0 < info.width * info.height <= 178_956_970


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFFFFF])
def test_a_length_that_is_a_lie_takes_no_memory(length: int, tmp_path: Path) -> None:
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 5, 5, 8, 2, 0, 0, 0) + bytes(4)
    png += struct.pack(">I", length) + b"eXIf" + bytes(20)
    flags = b"\x2c\0\0\0"
    webp = b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0" + flags + b"\4\0\0" * 2
    webp += b"ICCP" + struct.pack("<I", length) + bytes(20)
    for name, body in (("a.png", png), ("a.webp", webp)):
        path = tmp_path / name
        path.write_bytes(body)
        tracemalloc.start()
        info = image_header.probe(path)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (info.width, info.height) == (5, 5)
        assert most < 4 << 20


@pytest.mark.parametrize("lossless", [True, False])
@pytest.mark.parametrize("at", [(0, 0), (6, 14)])
def test_an_animation_may_begin_with_a_part_of_its_canvas(
    at: tuple[int, int], lossless: bool, tmp_path: Path
) -> None:
    shape = np.full((20, 30, 4), (30, 160, 60, 255), np.uint8)
    shape[:, 15:, 3] = 100
    buffer = io.BytesIO()
    Pil.fromarray(shape).save(buffer, "webp", lossless=lossless, exact=True, quality=90)
    body = buffer.getvalue()
    chunks = body[30:] if body[12:16] == b"VP8X" else body[12:]

    def u24(n: int) -> bytes:
        return n.to_bytes(3, "little")

    frame = u24(at[1] // 2) + u24(at[0] // 2) + u24(29) + u24(19) + u24(100) + b"\0" + chunks
    made = b"VP8X\x0a\0\0\0\x12\0\0\0" + u24(63) + u24(47) + b"ANIM\6\0\0\0" + bytes(6)
    made += (b"ANMF" + struct.pack("<I", len(frame)) + frame) * 2
    path = tmp_path / "a.webp"
    path.write_bytes(b"RIFF" + struct.pack("<I", len(made) + 4) + b"WEBP" + made)
    with Pil.open(path) as oracle:
        rgba = np.asarray(oracle.convert("RGBA")).astype(float)
    expected = rgba[..., :3] * rgba[..., 3:] / 255 + 255 - rgba[..., 3:]
    got = load(path)
    assert got.shape == (48, 64, 3)
    assert np.abs(got - expected).max() <= (0.51 if lossless else 4)
    path.write_bytes(path.read_bytes()[:-60])
    np.testing.assert_array_equal(load(path), got)  # the second picture is cut off
    path.write_bytes(path.read_bytes()[: 44 + 40])
    with pytest.raises(MediaError, match=r"a\.webp: broken webp"):
        load(path)


# ---- JPEGs that are scaled -------------------------------------------------------------------------------


def photo(size: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Detail at all scales, as photographs have it."""
    draws = np.random.default_rng(seed)
    total = np.zeros((*size, 3))
    for octave in (4, 16, 64, 256):
        small = draws.integers(0, 256, (octave, octave, 3), dtype=np.uint8)
        total += np.asarray(Pil.fromarray(small).resize(size[::-1], Pil.Resampling.BICUBIC)) * octave**-0.6
    low, high = total.min(), total.max()
    return np.asarray((total - low) * 255 / (high - low), np.uint8)


def averaged(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Exact means over areas, as floats."""
    for axis, m in enumerate(size):
        n = image.shape[axis]
        edges = np.concatenate(
            [np.zeros((1, *np.delete(image.shape, axis))), np.moveaxis(image, axis, 0).cumsum(0)]
        )
        at = np.linspace(0, n, m + 1)
        low = np.minimum(at.astype(int), n - 1)
        part = (at - low).reshape(-1, *[1] * (image.ndim - 1))
        total = edges[low] * (1 - part) + edges[low + 1] * part
        image = np.moveaxis(np.diff(total, axis=0) * m / n, 0, axis)
    return image


def decibels(got: np.ndarray, expected: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / ((got - expected) ** 2).mean()))


@pytest.mark.parametrize("subsampling", [0, 2])
@pytest.mark.parametrize(
    ("target", "shrink"), [((400, 600), 1), ((250, 375), 2), ((120, 180), 4), ((60, 90), 8)]
)
def test_scaled_decoding_is_near_exact_averaging(
    target: tuple[int, int], shrink: int, subsampling: int, tmp_path: Path
) -> None:
    path = save(tmp_path / "a.jpg", photo((1000, 1500)), quality=90, subsampling=subsampling)
    assert shrink_of((1000, 1500), target) == shrink
    exact = averaged(load(path).astype(float), target)
    # For comparison: Pillow's bicubic differs from area averaging by 40 to 50 dB on photographs.
    assert decibels(load(path, target), exact) > (55 if shrink == 1 else 43)


@given(
    st.tuples(st.integers(1, 5000), st.integers(1, 5000)), st.tuples(st.integers(1, 900), st.integers(1, 900))
)
def test_shrinking_leaves_twice_what_is_wanted(stored: tuple[int, int], scaled: tuple[int, int]) -> None:
    shrink = shrink_of(stored, scaled)
    left = [-(-side // shrink) for side in stored]
    assert shrink == 1 or all(a >= 2 * b for a, b in zip(left, scaled))
    if shrink < 8:
        assert any(-(-a // (2 * shrink)) < 2 * b for a, b in zip(stored, scaled))


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_scaled_decoding_keeps_the_place_of_things(mode: str, orientation: int, tmp_path: Path) -> None:
    """Sides that 8 does not divide are rounded up in decoding: the picture must not move by it."""
    exif = Pil.Exif()
    exif[0x112] = orientation
    path = save(tmp_path / "a.jpg", photo((805, 1203)), mode, quality=95, exif=exif)
    with Pil.open(path) as opened:
        whole = np.asarray(ImageOps.exif_transpose(opened).convert("RGB")).astype(float)
    for target in ((50, 50), (90, 60)):
        h, w = cover_size(whole.shape[0], whole.shape[1], target)
        covered = averaged(whole, (h, w))
        top, left = (h - target[0]) // 2, (w - target[1]) // 2
        expected = covered[top : top + target[0], left : left + target[1]]
        assert decibels(load(path, target), expected) > 35


def test_costs_follow_bytes_pixels_and_shrinking(tmp_path: Path) -> None:
    large = save(tmp_path / "large.jpg", photo((1000, 1500)))
    small = save(tmp_path / "small.jpg", photo((250, 375)))
    png = save(tmp_path / "large.png", photo((1000, 1500)))

    def cost(path: Path, *size: int) -> int:
        return decode_cost_us(probe_file(path), (size[0], size[1]), "crop")

    assert cost(small, 64, 64) < cost(large, 64, 64) < cost(large, 1000, 1500) < cost(large, 900, 1400)
    assert cost(large, 1000, 1500) < cost(png, 1000, 1500)
    thread = save(tmp_path / "thread.png", np.zeros((1, 20_000, 3), np.uint8))
    with pytest.raises(MediaError, match=r"thread\.png: 20000x1 scaled to cover"):
        cost(thread, 224, 224)


@pytest.mark.parametrize("suffix", ["tif", "ppm", "pgm"])
def test_stills_of_formats_that_are_not_read_name_the_cure(tmp_path: Path, suffix: str) -> None:
    Pil.new("L" if suffix == "pgm" else "RGB", (20, 10)).save(tmp_path / f"a.{suffix}")
    with pytest.raises(MediaError, match="TIFF and PNM images are not read; convert it to PNG"):
        probe_file(tmp_path / f"a.{suffix}")


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1"])
def test_bitmaps_have_the_pixels_that_pillow_gives_them(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.bmp"
    Pil.fromarray(photo((24, 36))).convert(mode).save(path)
    body = bytearray(path.read_bytes())
    if mode == "RGBA":
        assert body[28] == 32
        body[30:34] = bytes(4)  # no masks: a fourth byte that means nothing, and is 0 in most files
        at = int.from_bytes(body[10:14], "little")
        body[at + 3 :: 4] = bytes(len(body[at + 3 :: 4]))
        path.write_bytes(body)
    with Pil.open(path) as expected:
        assert np.array_equal(load(path), np.asarray(expected.convert("RGB")))
