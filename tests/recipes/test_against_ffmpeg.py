"""On real files: frames, sizes, rotation, durations and pixels are those of Debian's ffprobe and ffmpeg."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest

from libhelix.errors import MediaError
from libhelix.index.read import Index
from libhelix.media import image, pixels, sampler
from libhelix.recipe import Item
from tests.recipes.test_real_media import BAD, index

__all__ = ["index"]  # a fixture

pytestmark = pytest.mark.skipif(
    not (shutil.which("ffprobe") and shutil.which("ffmpeg")), reason="the oracle, ffmpeg, is not installed"
)
MOST_FRAMES = 400
"""Longer ones take too long."""
MOST_ERROR = 1.5
"""Mean absolute difference, in levels."""
SHARP = {
    "video/tc_h264_10bits.mp4": 4.0,
    "video/tc_h265_10bits.mp4": 4.0,
    "video/tc_testsrc2_odd_height_and_width_mpeg2.mp4": 4.0,
}
"""Test patterns of 200 x 200 and 121 x 81 pixels, all sharp edges of pure colours: where exactly a colour
ends differs by up to half a pixel."""
WAYS = ("bicubic", "area+full_chroma_int")
"""ffmpeg's default, and as we do: where colours end sharply, half as many samples of colour as of light leave
it open where. Of one of them a picture must be."""


def _ffprobe(item: Item) -> dict[str, Any] | None:
    """What ffprobe says of the picture; None where this version reads nothing."""
    args = ["-v", "error", "-count_frames", "-select_streams", str(item.video.stream if item.video else 0)]
    shown = "stream=codec_name,width,height,nb_read_frames,duration"
    args += ["-show_entries", f"{shown}:stream_side_data=rotation", "-of", "json", item.path]
    found = subprocess.run(["ffprobe", *args], capture_output=True, text=True, timeout=120, check=False)
    streams = json.loads(found.stdout or "{}").get("streams", [])
    return streams[0] if streams and "nb_read_frames" in streams[0] else None


def _ffmpeg(item: Item, stream: int, frames: list[int], size: tuple[int, int], way: str) -> np.ndarray | None:
    """These frames as ffmpeg converts them, as stored: not turned, not stretched."""
    chosen = "+".join(f"eq(n\\,{n})" for n in frames)
    command = ["ffmpeg", "-v", "error", "-noautorotate", "-i", item.path, "-map", f"0:{stream}"]
    command += ["-vf", f"select='{chosen}'", "-vsync", "0", "-sws_flags", way]
    command += ["-pix_fmt", "rgb24", "-f", "rawvideo", "-frames:v", str(len(frames)), "-"]
    found = subprocess.run(command, capture_output=True, timeout=240, check=False)
    wanted = len(frames) * size[0] * size[1] * 3
    if len(found.stdout) != wanted:
        return None
    return np.frombuffer(found.stdout, np.uint8).reshape(len(frames), *size, 3)


def _stored(item: Item, frames: list[int]) -> np.ndarray:
    """Our frames, as stored."""
    assert item.video is not None
    out = np.empty((len(frames), item.video.height, item.video.width, 3), np.uint8)
    place = {frame: i for i, frame in enumerate(frames)}

    def put(frame: int, picture: Any) -> None:
        out[place[frame]] = pixels.rgb(picture, item.video.height, item.video.width)  # type: ignore[union-attr]

    sampler.decode(item, frames, put)
    return out


def test_frames_sizes_rotation_and_durations(index: Index) -> None:
    compared = 0
    for sample in index:
        item = sample.items[0]
        if item.video is None or sample.key in BAD or item.video.frames > MOST_FRAMES:
            continue
        info, told = item.video, _ffprobe(item)
        if told is None:
            continue  # an older FFmpeg lacks the decoder
        assert info.frames == int(told["nb_read_frames"]), sample.key
        assert (info.width, info.height) == (told["width"], told["height"]), sample.key
        turned = [side["rotation"] for side in told.get("side_data_list", ()) if "rotation" in side]
        if not info.mirrored:  # of those the matrix can be told in two ways
            assert info.rotation == (-int(turned[0]) % 360 if turned else 0), sample.key
        if "duration" in told:
            frame_s = 1.5 / info.fps  # some count from 0, and some do not know the last frame's
            assert info.duration_s == pytest.approx(float(told["duration"]), abs=frame_s), sample.key
        compared += 1
    assert compared >= 20


def test_pixels_of_videos(index: Index) -> None:
    errors: dict[str, float] = {}
    for sample in index:
        item = sample.items[0]
        if item.video is None or sample.key in BAD or item.video.frames > MOST_FRAMES:
            continue
        frames = sorted({0, min(50, item.video.frames - 1)})
        ours = _stored(item, frames)
        for way in WAYS:
            theirs = _ffmpeg(item, item.video.stream, frames, ours.shape[1:3], way)
            if theirs is None:
                break
            error = float(np.abs(ours.astype(np.int16) - theirs).mean(axis=(1, 2, 3)).max())
            errors[sample.key] = min(error, errors.get(sample.key, error))
            if error <= MOST_ERROR:
                break
    assert len(errors) >= 20
    assert {k: error for k, error in errors.items() if error > SHARP.get(k, MOST_ERROR)} == {}


def test_pixels_of_images(index: Index) -> None:
    errors: dict[str, float] = {}
    for sample in index:
        item = sample.items[0]
        # JPEG is decoded by libjpeg-turbo and held against Pillow: ffmpeg spreads colours otherwise.
        if item.image is None or item.image.codec == "jpeg" or sample.key in BAD:
            continue
        size = item.image.display_size
        out = np.empty((*size, 3), np.uint8)
        try:
            image.decode(item, out)
        except MediaError:
            continue
        for way in WAYS:
            theirs = _image_by_ffmpeg(item, way)
            if theirs is None:
                break
            error = float(np.abs(out.astype(np.int16) - theirs).mean())
            errors[sample.key] = min(error, errors.get(sample.key, error))
    assert len(errors) >= 20
    assert {key: error for key, error in errors.items() if error > MOST_ERROR} == {}


def _image_by_ffmpeg(item: Item, way: str) -> np.ndarray | None:
    """The picture without alpha and as stored; None where it is turned, transparent, or not read."""
    assert item.image is not None
    command = ["ffprobe", "-v", "error", "-show_entries", "stream=pix_fmt", "-of", "csv=p=0", item.path]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    form = told.stdout.strip().splitlines()[0] if told.stdout.strip() else "none"
    if (
        item.image.orientation != 1
        or form in ("none", "pal8")
        or any(a in form for a in ("ya", "rgba", "bgra"))
    ):
        return None
    if "16" in form or "48" in form or "yuva" in form or "argb" in form:
        return None
    height, width = item.image.display_size
    command = ["ffmpeg", "-v", "error", "-i", item.path, "-frames:v", "1"]
    command += ["-sws_flags", way, "-pix_fmt", "rgb24", "-f", "rawvideo", "-"]
    found = subprocess.run(command, capture_output=True, timeout=60, check=False)
    if len(found.stdout) != height * width * 3:
        return None
    return np.frombuffer(found.stdout, np.uint8).reshape(height, width, 3)
