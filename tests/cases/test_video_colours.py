"""V11, V12 and V15: patches of pure colours come back, whatever the matrix, range, depth and layout."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from libhelix.errors import MediaError
from libhelix.media import probe_items
from libhelix.media.pixels import flat, rgb, write_picture
from libhelix.media.sampler import decode
from libhelix.recipe import Part, Rng, Sample
from libhelix.recipes import Clip
from tests.clips import picture, read_number

PURE = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)]
BETWEEN = [(40, 40, 40), (220, 180, 90), (60, 120, 200)]
"""Pure colours are clipped where full range is taken for limited, and then look right."""
PATCHES = np.array(PURE + BETWEEN, float)
WEIGHTS = {"601": (0.299, 0.114), "709": (0.2126, 0.0722), "2020": (0.2627, 0.0593)}
"""What red and blue weigh in brightness."""
MATRIX_TAGS = {"601": (5, 6), "709": (1,), "2020": (9,)}
UNTAGGED = 2
LIMITED, FULL = 1, 2
TOLERANCE = 6


def planes(matrix: str, full: bool, bits: int, size: tuple[int, int]) -> list[np.ndarray]:
    """The patches side by side as Y, Cb, Cr at full resolution, by the standards' formulae."""
    red, blue = WEIGHTS[matrix]
    r, g, b = (PATCHES / 255).T
    y = red * r + (1 - red - blue) * g + blue * b
    cb, cr = (b - y) / (2 * (1 - blue)), (r - y) / (2 * (1 - red))
    unit, most = 1 << (bits - 8), (1 << bits) - 1
    if full:
        values = [most * y, 128 * unit + most * cb, 128 * unit + most * cr]
    else:
        values = [(16 + 219 * y) * unit, (128 + 224 * cb) * unit, (128 + 224 * cr) * unit]
    h, w = size
    columns = np.arange(w) * len(PATCHES) // w
    kind = np.uint8 if bits == 8 else np.uint16
    return [np.tile(np.clip(np.rint(v), 0, most).astype(kind)[columns], (h, 1)) for v in values]


def frame_of(matrix: str, full: bool, pixel_format: str, size: tuple[int, int]) -> av.VideoFrame:
    """The patches as a frame of this format, without tags."""
    fmt = av.VideoFormat(pixel_format)
    frame = av.VideoFrame(size[1], size[0], pixel_format)
    for plane, values in zip(frame.planes, planes(matrix, full, fmt.components[0].bits, size)):
        ratio_y, ratio_x = size[0] // plane.height, size[1] // plane.width
        lines = np.zeros((plane.height, plane.line_size), np.uint8)
        small = np.ascontiguousarray(values[::ratio_y, ::ratio_x])
        lines[:, : small.shape[1] * small.itemsize] = small.view(np.uint8).reshape(plane.height, -1)
        plane.update(lines.tobytes())
    return frame


def check(frame: av.VideoFrame, sizes: tuple[tuple[int, int], ...]) -> None:
    for size in sizes:
        out = np.zeros((*size, 3), np.uint8)
        write_picture(frame, out, fit="stretch")
        middles = out[size[0] // 2, (2 * np.arange(len(PATCHES)) + 1) * size[1] // (2 * len(PATCHES))]
        assert np.abs(middles.astype(float) - PATCHES).max() <= TOLERANCE, (size, middles.tolist())


SIZE = (48, 96)
SIZES = (SIZE, (24, 48), (72, 200), (31, 61))


@pytest.mark.parametrize(
    "pixel_format", ["yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv422p10le", "yuv444p12le"]
)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("matrix", WEIGHTS)
def test_v12_tags_of_matrix_and_range_are_followed(matrix: str, full: bool, pixel_format: str) -> None:
    for tag in MATRIX_TAGS[matrix]:
        frame = frame_of(matrix, full, pixel_format, SIZE)
        frame.colorspace, frame.color_range = tag, FULL if full else LIMITED
        check(frame, SIZES)


@pytest.mark.parametrize("size", [SIZE, (720, 1280), (1080, 1920)])
@pytest.mark.parametrize("tag", [UNTAGGED, 3])
def test_v12_without_tags_it_is_bt601_limited_whatever_the_size(tag: int, size: tuple[int, int]) -> None:
    frame = frame_of("601", False, "yuv420p", size)
    frame.colorspace = tag
    check(frame, (size, SIZE))


def test_v12_the_deprecated_formats_are_full_range() -> None:
    check(frame_of("601", True, "yuvj420p", SIZE), SIZES)


@pytest.mark.parametrize("tag", [8, 10, 14])
def test_v12_a_matrix_that_cannot_be_undone_is_refused_by_name(tag: int, tmp_path: Path) -> None:
    """YCgCo, constant luminance, ICtCp: other colours would be wrong without anybody noticing."""
    path = encode(tmp_path / "a.mkv", [frame_of("709", False, "yuv444p", SIZE)], "ffv1", tag, LIMITED)
    sample = Sample(0, "a", probe_items(path))
    recipe = Clip(frames=1, size=SIZE)
    desc = recipe.describe(sample, Rng(0, 0, 0))
    with pytest.raises(MediaError, match=rf"a\.mkv: its pixels \(yuv444p, colour matrix {tag}\) cannot"):
        recipe.fill(sample, desc, Part(0, 1, 1), {"video": np.zeros((1, *SIZE, 3), np.uint8)})


def encode(path: Path, frames: list[av.VideoFrame], encoder: str, matrix: int, pixel_range: int) -> Path:
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(encoder, rate=25)
        stream.height, stream.width, stream.pix_fmt = frames[0].height, frames[0].width, frames[0].format.name
        stream.codec_context.colorspace, stream.codec_context.color_range = matrix, pixel_range
        stream.codec_context.thread_count = 1
        if encoder == "libx264":
            stream.options = {"crf": "1", "preset": "veryfast"}
        for i, frame in enumerate(frames):
            frame.pts, frame.time_base = i, Fraction(1, 25)
            frame.colorspace, frame.color_range = matrix, pixel_range
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(("name", "encoder"), [("a.mp4", "libx264"), ("a.mkv", "ffv1")])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("matrix", WEIGHTS)
def test_v12_files_keep_their_colours(
    matrix: str, full: bool, name: str, encoder: str, tmp_path: Path
) -> None:
    tag, pixel_range = MATRIX_TAGS[matrix][0], FULL if full else LIMITED
    frames = [frame_of(matrix, full, "yuv444p", SIZE) for _ in range(2)]
    path = encode(tmp_path / name, frames, encoder, tag, pixel_range)
    decode(probe_items(path)[0], [0, 1], lambda _, frame: check(frame, SIZES))


def test_v12_an_untagged_file_is_bt601(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.mp4", [frame_of("601", False, "yuv420p", SIZE)], "libx264", UNTAGGED, 0)
    decode(probe_items(path)[0], [0], lambda _, frame: check(frame, SIZES))


def test_every_pixel_counts_when_rgb_is_scaled() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, 0::2, 0] = stripes[:, 1::2, 2] = 250
    out = np.zeros((16, 16, 3), np.uint8)
    write_picture(av.VideoFrame.from_ndarray(stripes, format="rgb24"), out)
    assert np.abs(out.astype(int) - (125, 0, 125)).max() <= 2


@pytest.mark.parametrize("size", [(48, 96), (93, 187), (17, 31), (64, 65), (64, 66), (64, 68), (63, 80)])
@pytest.mark.parametrize(
    "pixel_format",
    [
        "yuv420p",
        "yuvj420p",
        "yuv422p",
        "yuv444p",
        "nv12",
        "yuv420p10le",
        "gray",
        "rgb24",
        "bgr0",
        "gbrp",
        "rgba",
    ],
)
def test_both_orders_have_the_same_bits(pixel_format: str, size: tuple[int, int]) -> None:
    noise = np.random.default_rng(4).integers(0, 256, (*size, 3), dtype=np.uint8)
    frame = av.VideoFrame.from_ndarray(noise, format="rgb24").reformat(format=pixel_format)
    for matrix in (1, 2) if pixel_format.startswith("yuv") else (2,):
        frame.colorspace = matrix
        for h, w in (size, (30, 60), (101, 203)):
            last, first = np.zeros((h, w, 3), np.uint8), np.zeros((3, h, w), np.uint8)
            write_picture(frame, last, "HWC", fit="stretch")
            write_picture(frame, first, "CHW", fit="stretch")
            np.testing.assert_array_equal(last, first.transpose(1, 2, 0))
            np.testing.assert_array_equal(last, rgb(flat(frame), h, w))


@pytest.mark.parametrize("gop", [3, 12])
def test_v11_ten_bits_are_exact(gop: int, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        options = {
            "preset": "ultrafast",
            "crf": "20",
            "x265-params": f"keyint={gop}:log-level=none:pools=none",
        }
        stream: Any = container.add_stream("libx265", rate=25, options=options)
        stream.height, stream.width, stream.pix_fmt = 96, 192, "yuv420p10le"
        for i in range(24):
            frame = av.VideoFrame.from_ndarray(picture(i, (96, 192)), format="rgb24").reformat(
                format="yuv420p10le"
            )
            frame.pts, frame.time_base = i, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    item = probe_items(path)[0]
    assert item.video is not None
    assert item.video.frames == 24
    for pick in (list(range(24)), [17], [3, 11, 23]):
        seen: dict[int, int] = {}

        def put(number: int, frame: Any, seen: dict[int, int] = seen) -> None:
            assert frame.format.name == "yuv420p10le"
            out = np.zeros((96, 192, 3), np.uint8)
            write_picture(frame, out)
            # A deep picture is scaled to 8 bits, not cut: it is as bright as the one it was made of.
            assert abs(out.mean() - picture(number, (96, 192)).mean()) < 4
            seen[number] = read_number(out)

        decode(item, pick, put)
        assert seen == {i: i for i in pick}


# ---- grey, transparency, palettes ----------------------------------------------------------------------


@pytest.mark.parametrize("size", [SIZE, (20, 30)])
def test_v15_grey_has_three_equal_channels(size: tuple[int, int]) -> None:
    ramp = np.tile(np.linspace(0, 255, SIZE[1]).astype(np.uint8), (SIZE[0], 1))
    frame = av.VideoFrame.from_ndarray(ramp, format="gray")
    out = np.zeros((*size, 3), np.uint8)
    write_picture(frame, out)
    assert (out[..., :1] == out).all()
    if size == SIZE:
        np.testing.assert_array_equal(out[..., 0], ramp)


def test_v15_grey_of_limited_range_is_widened() -> None:
    ramp = np.tile(np.array([16, 126, 235, 0, 255], np.uint8), (8, 2))
    frame = av.VideoFrame.from_ndarray(ramp, format="gray")
    frame.color_range = LIMITED
    out = np.zeros((8, 10, 3), np.uint8)
    write_picture(frame, out)
    np.testing.assert_array_equal(out[0, :5, 0], [0, 128, 255, 0, 255])


def test_v15_a_grey_file(tmp_path: Path) -> None:
    grey = [
        av.VideoFrame.from_ndarray(picture(i, (96, 192))[..., 0].copy(), format="gray") for i in range(12)
    ]
    item = probe_items(encode(tmp_path / "a.mkv", grey, "ffv1", UNTAGGED, 0))[0]
    assert item.video is not None
    assert item.video.frames == 12

    def put(number: int, frame: Any) -> None:
        out = np.zeros((96, 192, 3), np.uint8)
        write_picture(frame, out)
        expected = picture(number, (96, 192))[..., :1]
        np.testing.assert_array_equal(out, np.broadcast_to(expected, out.shape))

    decode(item, range(12), put)


@pytest.mark.parametrize(
    ("encoder", "pixel_format"),
    [("png", "rgba"), ("ffv1", "bgra"), ("ffv1", "yuva420p"), ("ffv1", "yuva444p10le")],
)
def test_transparent_videos_are_laid_on_white(encoder: str, pixel_format: str, tmp_path: Path) -> None:
    image = np.zeros((48, 96, 4), np.uint8)
    image[..., 0] = 200
    image[:, 48:, 3] = 255
    image[:, 24:48, 3] = 128
    frame = av.VideoFrame.from_ndarray(image, format="rgba").reformat(format=pixel_format)
    name = "a.mov" if encoder == "png" else "a.mkv"
    item = probe_items(encode(tmp_path / name, [frame], encoder, UNTAGGED, 0))[0]
    seen = []

    def put(_: int, one: Any) -> None:
        assert one.format.name == pixel_format
        for size in ((48, 96), (24, 48)):
            out = np.zeros((*size, 3), np.uint8)
            write_picture(one, out)
            seen.append(out[size[0] // 2, [size[1] // 8, size[1] * 3 // 8, size[1] * 3 // 4]].astype(int))

    decode(item, [0], put)
    for got in seen:
        assert np.abs(got - [(255, 255, 255), (227, 127, 127), (200, 0, 0)]).max() <= TOLERANCE


def test_palettes_have_their_colours(tmp_path: Path) -> None:
    indices = np.tile(np.arange(len(PATCHES), dtype=np.uint8).repeat(12), (48, 1))
    palette = np.full((256, 4), 255, np.uint8)
    palette[: len(PATCHES), 1:] = PATCHES  # A, R, G, B
    frame = av.VideoFrame.from_ndarray((indices, palette), format="pal8")  # type: ignore[arg-type]
    check(flat(frame), (SIZE, (24, 48)))
    item = probe_items(encode(tmp_path / "a.mov", [frame], "png", UNTAGGED, 0))[0]
    decode(item, [0], lambda _, one: check(one, (SIZE, (24, 48))))
