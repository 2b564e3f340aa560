"""Which way up, in which proportions and where a picture lies in its target."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhelix.errors import MediaError
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.media import probe_file
from libhelix.media.geometry import (
    MOST_PIXELS,
    Unfit,
    contain_size,
    cover_size,
    pixel_aspect,
    placed,
    put,
    turn_of,
    turned,
    upright,
)
from libhelix.recipe import Part, Rng, Sample, VideoInfo, shown_size
from libhelix.recipes import Clip, Image
from tests.clips import make_clip

sides = st.integers(1, 3000)
sizes = st.tuples(sides, sides)


# ---- sizes ---------------------------------------------------------------------------------------------


@given(sizes, sizes)
def test_a_cropped_picture_covers_and_a_letterboxed_one_lies_within(
    shown: tuple[int, int], target: tuple[int, int]
) -> None:
    (h0, w0), (h, w) = shown, target
    sh, sw = cover_size(h0, w0, target)
    assert (sh == h and sw >= w) or (sw == w and sh >= h)
    ch, cw = contain_size(h0, w0, target)
    assert (ch == h and 1 <= cw <= w) or (cw == w and 1 <= ch <= h)
    for high, wide in ((sh, sw), (ch, cw)):
        # One side is exact, the other is off by half a pixel, or kept from vanishing.
        exact = Fraction(w0 * high, h0) if high == h else None
        other = Fraction(h0 * wide, w0) if wide == w else None
        off = [abs(e - s) for e, s in ((exact, wide), (other, high)) if e is not None]
        assert min(off) <= Fraction(1, 2) or min(high, wide) == 1 or (high, wide) == target


@given(sizes, sizes, st.sampled_from(["crop", "letterbox", "stretch"]))
def test_a_picture_lies_in_the_middle_of_its_target(
    shown: tuple[int, int], target: tuple[int, int], fit: Any
) -> None:
    try:
        place = placed(shown, target, fit)
    except Unfit:
        covering = cover_size(*shown, target)
        assert fit == "crop"
        assert covering[0] * covering[1] > MOST_PIXELS
        return
    room = [t - s for t, s in zip(target, place.scaled)]
    # What is over is shared out evenly; an odd pixel goes to the end.
    assert place.top == (room[0] // 2 if room[0] >= 0 else -(-room[0] // 2))
    assert place.left == (room[1] // 2 if room[1] >= 0 else -(-room[1] // 2))


@given(st.tuples(st.integers(1, 9), st.integers(1, 9)), st.tuples(st.integers(1, 9), st.integers(1, 9)))
def test_what_a_picture_leaves_is_grey(scaled: tuple[int, int], target: tuple[int, int]) -> None:
    (sh, sw), (h, w) = scaled, target
    image = np.arange(sh * sw * 3, dtype=np.uint8).reshape(sh, sw, 3) % 200
    out = np.full((h, w, 3), 222, np.uint8)
    top = (h - sh) // 2 if h >= sh else -((sh - h) // 2)
    left = (w - sw) // 2 if w >= sw else -((sw - w) // 2)
    put(image, out, type(placed((1, 1), (1, 1), "crop"))(scaled, top, left), 201)
    for y in range(h):
        for x in range(w):
            inside = 0 <= y - top < sh and 0 <= x - left < sw
            assert (out[y, x] == (image[y - top, x - left] if inside else 201)).all()


def test_a_picture_too_narrow_to_cover_is_refused_and_can_be_letterboxed() -> None:
    with pytest.raises(Unfit, match="letterbox"):
        placed((1, 100_000), (224, 224), "crop")
    assert placed((1, 100_000), (224, 224), "letterbox").scaled == (1, 224)
    assert placed((1, MOST_PIXELS), (4, 4), "stretch").scaled == (4, 4)


# ---- which way up ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
@pytest.mark.parametrize("mirrored", [False, True])
def test_orientation_mirrors_and_then_turns_clockwise(rotation: int, mirrored: bool) -> None:
    image = np.arange(12).reshape(2, 2, 3)
    flipped = image[:, ::-1] if mirrored else image
    expected = np.rot90(flipped, -(rotation // 90))
    info = probe_like(rotation, mirrored)
    np.testing.assert_array_equal(upright(image, info.orientation), expected)
    assert turned((3, 5), info.orientation) == ((5, 3) if rotation % 180 else (3, 5))


def probe_like(rotation: int, mirrored: bool, sar: tuple[int, int] = (1, 1)) -> VideoInfo:
    return VideoInfo(
        codec="h264", stream=0, width=40, height=30, rotation=rotation, mirrored=mirrored, sar=sar, frames=1,
        fps=1.0, duration_s=1.0, time_base=(1, 1), start_pts=0, pts_step=1,
    )  # fmt: skip


MATRICES = {
    "as it is": ((1, 0, 0, 1), 1),
    "mirrored": ((-1, 0, 0, 1), 2),
    "180": ((-1, 0, 0, -1), 3),
    "upside down": ((1, 0, 0, -1), 4),
    "transposed": ((0, 1, 1, 0), 5),
    "90": ((0, 1, -1, 0), 6),
    "transversed": ((0, -1, -1, 0), 7),
    "270": ((0, -1, 1, 0), 8),
}
"""(a, b, c, d) of x' = a*x + c*y, y' = b*x + d*y, and EXIF's number for it."""


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("scale", [1, 0x10000, 0x8000])
def test_a_display_matrix_is_an_orientation(name: str, scale: int) -> None:
    (a, b, c, d), orientation = MATRICES[name]
    rotation, mirrored = turn_of([v * scale for v in (a, b, 0, c, d, 0, 0, 0, 1)])
    assert probe_like(rotation, mirrored).orientation == orientation


@pytest.mark.parametrize("name", MATRICES)
def test_a_film_is_shown_as_its_matrix_says(name: str, tmp_path: Path) -> None:
    matrix, orientation = MATRICES[name]
    plain = make_clip(tmp_path / "plain.mp4", 3, first_number=1365, size=(48, 96))
    path = tmp_path / "a.mp4"
    path.write_bytes(plain.read_bytes())
    patch_matrix(path, matrix)
    info = probe_file(path).video
    assert info is not None
    assert info.orientation == orientation
    assert info.display_size == ((48, 96) if orientation <= 4 else (96, 48))
    expected = upright(filled(Clip(frames=1, size=(48, 96)), plain), orientation)
    np.testing.assert_array_equal(filled(Clip(frames=1, size=info.display_size), path), expected)
    build([path], tmp_path / "x.arrow")
    assert Index.open(tmp_path / "x.arrow")[0].items[0].video == info


def patch_matrix(path: Path, matrix: tuple[int, int, int, int]) -> None:
    body = bytearray(path.read_bytes())
    at = body.index(b"tkhd") + 4
    a, b, c, d = (v * 0x10000 for v in matrix)
    struct.pack_into(">9i", body, at + (52 if body[at] == 1 else 40), a, b, 0, c, d, 0, 0, 0, 0x40000000)
    path.write_bytes(body)


def filled(recipe: Clip | Image, path: Path) -> np.ndarray:
    """The first picture that a recipe makes of a file."""
    sample = Sample(0, path.name, (probe_file(path),))
    desc = recipe.describe(sample, Rng(0, 0, 0))
    (field,) = desc.fields
    out = np.full(field.shape, 77, np.uint8)
    recipe.fill(sample, desc, Part(0, desc.units, desc.units), {field.name: out})
    return out[0] if isinstance(recipe, Clip) else out


# ---- pixels that are no squares ----------------------------------------------------------------------


def disc(path: Path, sar: Fraction, size: tuple[int, int] = (96, 96)) -> Path:
    """A film of a white disc that is round as it is stored; shown, it is `sar` times as wide as high."""
    h, w = size
    y, x = np.mgrid[0:h, 0:w]
    white = ((y - h / 2 + 0.5) ** 2 + (x - w / 2 + 0.5) ** 2 < (min(h, w) * 0.4) ** 2) * np.uint8(255)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=25, options={"crf": "10", "preset": "veryfast"})
        stream.height, stream.width, stream.pix_fmt = h, w, "yuv420p"
        stream.codec_context.sample_aspect_ratio = sar
        for i in range(3):
            frame = av.VideoFrame.from_ndarray(np.repeat(white[:, :, None], 3, 2), format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def extent(image: np.ndarray) -> tuple[int, int]:
    """(height, width) of what is bright."""
    bright = image.mean(axis=2) > 128
    return int(bright.any(axis=1).sum()), int(bright.any(axis=0).sum())


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts"])
@pytest.mark.parametrize("sar", [Fraction(2), Fraction(1, 2), Fraction(64, 45), Fraction(10, 11)])
def test_sample_aspect_ratio_is_honoured(sar: Fraction, name: str, tmp_path: Path) -> None:
    path = disc(tmp_path / name, sar)
    info = probe_file(path).video
    assert info is not None
    width = round(96 * sar)
    assert abs(info.display_size[1] - width) <= 1
    high, wide = extent(filled(Clip(frames=1, size=(96, width)), path))
    assert abs(wide / high - sar) < 0.06
    boxed = filled(Clip(frames=1, size=(200, 200), fit="letterbox", grey=90), path)
    high, wide = extent(boxed)
    assert abs(wide / high - sar) < 0.06
    high, wide = extent(filled(Clip(frames=1, size=(96, 96), fit="stretch"), path))
    assert abs(wide / high - 1) < 0.06
    assert (boxed[0, 0] == 90).all() or (boxed[100, 0] == 90).all()


def test_the_width_as_stored_is_changed_and_then_turned() -> None:
    assert shown_size(576, 720, 0, (64, 45)) == (576, 1024)
    assert shown_size(480, 720, 0, (10, 11)) == (480, 655)
    assert shown_size(480, 720, 90, (10, 11)) == (655, 480)
    assert shown_size(10, 5, 0, (1, 2)) == (10, 3)
    assert shown_size(10, 1, 0, (1, 9)) == (10, 1)
    assert probe_like(90, True, (2, 1)).display_size == (80, 30)


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        (None, (1, 1)),
        (Fraction(0), (1, 1)),
        (Fraction(64, 45), (64, 45)),
        (Fraction(10), (10, 1)),
        (Fraction(11), (1, 1)),
        (Fraction(1, 200), (1, 1)),
    ],
)
def test_a_ratio_far_from_square_is_damage(said: Fraction | None, taken: tuple[int, int]) -> None:
    assert pixel_aspect(said) == taken


# ---- fit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["HWC", "CHW"])
def test_an_image_is_cropped_letterboxed_or_stretched(order: Any, tmp_path: Path) -> None:
    from PIL import Image as Pil

    wide = np.full((40, 120, 3), (10, 200, 30), np.uint8)
    wide[:, 40:80] = (250, 20, 240)
    path = tmp_path / "a.png"
    Pil.fromarray(wide).save(path)

    def made(**fit: Any) -> np.ndarray:
        got = filled(Image(size=(60, 60), order=order, **fit), path).astype(int)
        return got if order == "HWC" else got.transpose(1, 2, 0)

    def near(got: np.ndarray, expected: Any) -> bool:
        return bool((np.abs(got - expected) <= 3).all())

    assert near(made()[:, 2:58], (250, 20, 240))
    boxed = made(fit="letterbox", grey=128)
    assert (boxed[:20] == 128).all()
    assert (boxed[40:] == 128).all()
    assert near(boxed[20:40, :19], (10, 200, 30))
    assert near(boxed[20:40, 21:39], (250, 20, 240))
    assert near(made(fit="stretch")[:, 21:39], (250, 20, 240))
    assert (made(fit="letterbox")[0] == 0).all()


def test_a_clip_fits_the_same_in_parts(tmp_path: Path) -> None:
    sample = Sample(0, "a", (probe_file(make_clip(tmp_path / "a.mp4", 30, gop=6, rotation=90)),))
    for fit in ("crop", "letterbox", "stretch"):
        recipe = Clip(frames=8, size=(70, 50), fit=fit)
        desc = recipe.describe(sample, Rng(0, 0, 0))
        whole, parts = (np.full((8, 70, 50, 3), value, np.uint8) for value in (7, 8))
        recipe.fill(sample, desc, Part(0, 8, 8), {"video": whole})
        for a, b in zip((0, *desc.cuts), (*desc.cuts, 8)):
            recipe.fill(sample, desc, Part(a, b, 8), {"video": parts[a:b]})
        np.testing.assert_array_equal(whole, parts)


@pytest.mark.parametrize(
    "wrong",
    [{"fit": "cover"}, {"fit": "letterbox", "grey": 256}, {"fit": "letterbox", "grey": 0.5}, {"grey": 5}],
)
@pytest.mark.parametrize("recipe", [Image, lambda **fit: Clip(frames=1, **fit)])
def test_a_fit_without_sense_is_refused(recipe: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"(Image|Clip)\((fit|grey)="):
        recipe(**wrong)


def test_a_file_that_cannot_cover_is_named(tmp_path: Path) -> None:
    from PIL import Image as Pil

    path = tmp_path / "thread.png"
    Pil.new("L", (20_000, 1)).save(path)
    with pytest.raises(MediaError, match=r"thread\.png: 20000x1 scaled to cover"):
        filled(Image(size=(224, 224)), path)
    assert filled(Image(size=(224, 224), fit="letterbox"), path).shape == (224, 224, 3)
