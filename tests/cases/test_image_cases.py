"""Images that broke other loaders, rebuilt in many sizes, and what we answer. Pillow is the oracle.

| case | what we answer |
|---|---|
| I01 EXIF orientation 1..8 | as ImageOps.exif_transpose; in JPEG, PNG (eXIf) and WebP (EXIF) |
| I02 CMYK, YCCK JPEG | read as Adobe writes them, inverted: Pillow's RGB, to the bit |
| I03 16-bit PNG | v >> 8 |
| I06 truncated JPEG | MediaError "truncated"; cut and closed again, MediaError too |
| I07 decompression bomb | refused from the header, every format |
| I09 ICC profile | not applied; `helixctl lint` names profiles other than sRGB |
| I10 L, LA, 1-bit | three channels; 1-bit is 0 or 255 |
| I11 RGBA | laid on white |
| I12 animated GIF, WebP, PNG | the first picture; of a GIF, a Clip gets the film (test_video_cases.py) |
| I14 HTML, empty | MediaError; the index leaves it out and names it |
| I17 chroma subsampling, odd sizes | libjpeg-turbo, to the bit |
| I19 PNG named .jpg, WebP named .png | by magic |
| I20 lossless WebP with alpha | laid on white |
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pil
from PIL import ImageCms, ImageOps

from libhelix.errors import MediaError
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.media import image, probe_file
from libhelix.media.examine import examine

SIZES = [(120, 160), (121, 161), (33, 7), (1, 1), (8, 200)]


def load(path: Path, size: tuple[int, int] | None = None) -> np.ndarray:
    item = probe_file(path)
    assert item.image is not None
    out = np.full((*(size or item.image.display_size), 3), 77, np.uint8)
    image.decode(item, out)
    return out


def shade(size: tuple[int, int], channels: int, seed: int = 0) -> np.ndarray:
    """Smooth in large pictures, rich in small ones; [h, w, channels]."""
    small = np.random.default_rng(seed).integers(0, 256, (9, 9, channels), dtype=np.uint8)
    planes = [
        Pil.fromarray(small[:, :, c]).resize(size[::-1], Pil.Resampling.BICUBIC) for c in range(channels)
    ]
    return np.stack([np.asarray(plane) for plane in planes], 2)


def on_white(picture: Pil.Image) -> np.ndarray:
    """RGBA as the formula has it, within a level of rounding."""
    rgba = np.asarray(picture.convert("RGBA")).astype(float)
    alpha = rgba[..., 3:] / 255
    return np.asarray(rgba[..., :3] * alpha + 255 * (1 - alpha))


# ---- I01 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
@pytest.mark.parametrize("size", [(120, 160), (33, 7)])
def test_i01_exif_orientation(size: tuple[int, int], suffix: str, orientation: int, tmp_path: Path) -> None:
    exif = Pil.Exif()
    exif[0x112] = orientation
    path = tmp_path / f"a.{suffix}"
    more: dict[str, Any] = {"lossless": True} if suffix == "webp" else {}
    Pil.fromarray(shade(size, 3)).save(path, exif=exif, **more)
    expected = np.asarray(ImageOps.exif_transpose(Pil.open(path)))
    assert expected.shape[:2] == (size if orientation <= 4 else size[::-1])
    info = probe_file(path).image
    assert info is not None
    assert (info.orientation, info.display_size) == (orientation, expected.shape[:2])
    np.testing.assert_array_equal(load(path), expected)


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_i01_an_orientation_without_sense_is_none(value: int, tmp_path: Path) -> None:
    exif = Pil.Exif()
    exif[0x112] = value
    Pil.fromarray(shade((20, 30), 3)).save(tmp_path / "a.jpg", exif=exif)
    info = probe_file(tmp_path / "a.jpg").image
    assert info is not None
    assert info.orientation == 1


# ---- I02 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_i02_cmyk_is_what_pillow_makes_of_it(size: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Pil.fromarray(shade(size, 4), "CMYK").save(path, quality=92)
    np.testing.assert_array_equal(load(path), np.asarray(Pil.open(path).convert("RGB")))


def test_i02_patches_have_the_colours_that_were_meant(tmp_path: Path) -> None:
    inks = np.zeros((64, 256, 4), np.uint8)
    for at, ink in enumerate(((255, 0, 0, 0), (0, 255, 0, 0), (0, 0, 255, 0), (0, 0, 0, 128))):
        inks[:, 64 * at : 64 * at + 64] = ink
    Pil.fromarray(inks, "CMYK").save(tmp_path / "a.jpg", quality=95)
    got = load(tmp_path / "a.jpg")[32, 32::64].astype(int)
    expected = [(0, 255, 255), (255, 0, 255), (255, 255, 0), (127, 127, 127)]
    assert np.abs(got - expected).max() <= 4


# ---- I03, I10, I11, I20 -------------------------------------------------------------------------------


def write_png(path: Path, size: tuple[int, int], depth: int, colour: int, samples: bytes) -> Path:
    """Rows of a PNG that Pillow does not write, such as RGB of 16 bits."""
    h, w = size
    line = len(samples) // h
    raw = b"".join(b"\0" + samples[i * line : (i + 1) * line] for i in range(h))
    body = b"\x89PNG\r\n\x1a\n"
    for name, content in (
        (b"IHDR", struct.pack(">IIBBBBB", w, h, depth, colour, 0, 0, 0)),
        (b"IDAT", zlib.compress(raw)),
        (b"IEND", b""),
    ):
        body += struct.pack(">I", len(content)) + name + content
        body += struct.pack(">I", zlib.crc32(name + content))
    path.write_bytes(body)
    return path


@pytest.mark.parametrize("size", [(64, 64), (5, 13)])
@pytest.mark.parametrize(("colour", "channels"), [(0, 1), (2, 3)])
def test_i03_sixteen_bits_keep_their_upper_byte(
    colour: int, channels: int, size: tuple[int, int], tmp_path: Path
) -> None:
    h, w = size
    ramp = (np.arange(h * w * channels, dtype=np.uint32) * 37 % 65536).astype(">u2").reshape(h, w, channels)
    path = write_png(tmp_path / "a.png", size, 16, colour, ramp.tobytes())
    expected = np.broadcast_to(ramp >> 8, (h, w, 3))
    np.testing.assert_array_equal(load(path), expected)


@pytest.mark.parametrize(("colour", "channels"), [(4, 2), (6, 4)])
def test_i03_sixteen_bits_with_transparency_are_laid_on_white(
    colour: int, channels: int, tmp_path: Path
) -> None:
    samples = np.random.default_rng(3).integers(0, 65536, (9, 11, channels)).astype(">u2")
    path = write_png(tmp_path / "a.png", (9, 11), 16, colour, samples.tobytes())
    upper = (samples >> 8).astype(float)
    alpha = upper[..., -1:] / 255
    expected = np.broadcast_to(upper[..., :-1] * alpha + 255 * (1 - alpha), (9, 11, 3))
    assert np.abs(load(path) - expected).max() <= 0.51


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["L", "1", "P"])
def test_i10_grey_bits_and_palettes_have_three_channels(
    mode: str, size: tuple[int, int], tmp_path: Path
) -> None:
    Pil.fromarray(shade(size, 3)).convert(mode).save(tmp_path / "a.png")
    got = load(tmp_path / "a.png")
    np.testing.assert_array_equal(got, np.asarray(Pil.open(tmp_path / "a.png").convert("RGB")))
    if mode == "1":
        assert set(np.unique(got)) <= {0, 255}


@pytest.mark.parametrize("size", SIZES)
def test_i10_grey_jpegs_have_three_channels(size: tuple[int, int], tmp_path: Path) -> None:
    Pil.fromarray(shade(size, 1)[:, :, 0]).save(tmp_path / "a.jpg")
    np.testing.assert_array_equal(
        load(tmp_path / "a.jpg"), np.asarray(Pil.open(tmp_path / "a.jpg").convert("RGB"))
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "mode"), [("a.png", "LA"), ("a.png", "RGBA"), ("a.webp", "RGBA")])
def test_i11_i20_transparency_is_laid_on_white(
    name: str, mode: str, size: tuple[int, int], tmp_path: Path
) -> None:
    channels = len(mode)
    path = tmp_path / name
    Pil.fromarray(shade(size, channels), mode).save(path, lossless=True, exact=True)
    assert np.abs(load(path) - on_white(Pil.open(path))).max() <= 0.51


def test_i11_what_lies_under_transparency_is_not_seen(tmp_path: Path) -> None:
    hidden = np.zeros((40, 40, 4), np.uint8)
    hidden[..., 0] = 255
    hidden[:20, :, 3] = 255
    for name in ("a.png", "a.webp"):
        Pil.fromarray(hidden).save(tmp_path / name, lossless=True, exact=True)
        got = load(tmp_path / name)
        assert (got[:20] == (255, 0, 0)).all()
        assert (got[20:] == 255).all()


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_i11_a_palette_with_transparent_colours_is_laid_on_white(bits: int, tmp_path: Path) -> None:
    colours = 2**bits
    indices = np.random.default_rng(bits).integers(0, colours, (30, 41), dtype=np.uint8)
    picture = Pil.fromarray(indices, "P")
    picture.putpalette(np.random.default_rng(9).integers(0, 256, colours * 3, dtype=np.uint8).tobytes())
    opacity = bytes(np.random.default_rng(8).integers(0, 256, colours, dtype=np.uint8))
    picture.save(tmp_path / "a.png", bits=bits, transparency=opacity)
    assert np.abs(load(tmp_path / "a.png") - on_white(Pil.open(tmp_path / "a.png"))).max() <= 0.51


# ---- I06, I07, I14 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.6, 0.95, 0.9999])
def test_i06_a_truncated_jpeg_is_refused(part: float, progressive: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    noise = np.random.default_rng(1).integers(0, 255, (200, 200, 3), dtype=np.uint8)
    Pil.fromarray(noise).save(path, progressive=progressive)
    body = path.read_bytes()
    for cut in (body[: int(len(body) * part)], body[: int(len(body) * part)] + b"\xff\xd9"):
        path.write_bytes(cut)
        if cut[-2:] == b"\xff\xd9" and part > 0.99:
            continue  # nothing but the end was lost
        for size in ((200, 200), (50, 50), (20, 20)):
            with pytest.raises(MediaError, match="truncated or broken"):
                load(path, size)


@pytest.mark.parametrize("suffix", ["png", "gif", "bmp", "webp", "jpg"])
def test_i07_bombs_are_refused_from_the_header(suffix: str, tmp_path: Path) -> None:
    side = 60000
    bodies = {
        "png": b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I4sIIBBBBB", 13, b"IHDR", side, side, 8, 2, 0, 0, 0)
        + bytes(9),
        "gif": b"GIF89a" + struct.pack("<HH", side, side) + bytes(9),
        "bmp": b"BM" + bytes(12) + struct.pack("<Iii", 40, side, -side) + bytes(40),
        "webp": b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + (side - 1).to_bytes(3, "little") * 2,
        "jpg": b"\xff\xd8\xff\xc0" + struct.pack(">HBHHB", 17, 8, side, side, 3) + bytes(9),
    }
    path = tmp_path / f"bomb.{suffix}"
    path.write_bytes(bodies[suffix])
    with pytest.raises(MediaError, match="60000x60000 exceeds 178956970 pixels"):
        probe_file(path)


@pytest.mark.parametrize("body", [b"", b"<html><body>404 Not Found</body></html>", b"\xff\xd8\xff", b"GIF8"])
def test_i14_what_is_no_image_is_left_out_by_name(body: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(body)
    Pil.fromarray(shade((20, 30), 3)).save(tmp_path / "good.jpg")
    with pytest.raises(MediaError, match=r"bad\.jpg"):
        probe_file(tmp_path / "bad.jpg")
    report = build([tmp_path], tmp_path / "x.arrow")
    assert [path for path, _ in report.refused] == [str(tmp_path / "bad.jpg")]
    assert [sample.key for sample in Index.open(tmp_path / "x.arrow")] == ["good.jpg"]


# ---- I09 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_i09_profiles_are_not_applied_and_lint_names_them(suffix: str, tmp_path: Path) -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    other = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    picture = Pil.fromarray(shade((40, 50), 3))
    found = {}
    for name, profile in (("none", b""), ("srgb", srgb), ("other", other)):
        path = tmp_path / f"{name}.{suffix}"
        more: dict[str, Any] = {"lossless": True} if suffix == "webp" else {}
        picture.save(path, icc_profile=profile, **more)
        found[name] = load(path), examine(probe_file(path))
    np.testing.assert_array_equal(found["none"][0], found["srgb"][0])
    np.testing.assert_array_equal(found["none"][0], found["other"][0])
    assert found["none"][1] == found["srgb"][1] == []
    assert found["other"][1] is not None
    (finding,) = found["other"][1]
    assert finding.grade == "odd"
    assert "colour profile" in finding.text


# ---- I12, I17, I19 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["gif", "webp", "png"])
def test_i12_of_an_animation_the_first_picture_is_taken(suffix: str, tmp_path: Path) -> None:
    frames = [Pil.new("RGBA", (60, 40), (0, 0, 0, 0)) for _ in range(4)]
    for at, frame in enumerate(frames):
        frame.paste((200, 30, 40 * at, 255), (10 + at, 8, 30 + at, 28))
    path = tmp_path / f"a.{suffix}"
    more: dict[str, Any] = {"lossless": True} if suffix == "webp" else {}
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=100, **more)
    with Pil.open(path) as first:
        assert first.n_frames == 4
        expected = on_white(first)
    assert np.abs(load(path) - expected).max() <= 0.51


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_i17_jpegs_are_those_of_libjpeg_turbo(
    progressive: bool, subsampling: int, size: tuple[int, int], tmp_path: Path
) -> None:
    path = tmp_path / "a.jpg"
    noise = np.random.default_rng(7).integers(0, 255, (*size, 3), dtype=np.uint8)
    for picture in (shade(size, 3), noise):
        Pil.fromarray(picture).save(path, subsampling=subsampling, progressive=progressive, quality=85)
        np.testing.assert_array_equal(load(path), np.asarray(Pil.open(path)))


@pytest.mark.parametrize(
    ("right", "wrong"), [("png", "jpg"), ("webp", "png"), ("jpg", "webp"), ("gif", "mp4")]
)
def test_i19_the_suffix_does_not_matter(right: str, wrong: str, tmp_path: Path) -> None:
    Pil.fromarray(shade((120, 160), 3)).save(tmp_path / f"a.{right}")
    expected = load(tmp_path / f"a.{right}")
    (tmp_path / f"a.{right}").rename(tmp_path / f"b.{wrong}")
    np.testing.assert_array_equal(load(tmp_path / f"b.{wrong}"), expected)
