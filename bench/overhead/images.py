"""Small JPEGs with something to decode, made once and cached."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.codeccontext import VideoCodecContext
from rich.progress import Progress

from bench.samples import write_index

IMAGES_VERSION = "1"
"""Raise it when the images change: figures of different versions must not be compared."""

SIDES_PX = (88, 96, 104, 112)
PER_FOLDER = 1024


def prepare_images(count: int, cache: Path, scratch: Path, progress: Progress) -> Path:
    """An index of `count` images, in the folder `scratch`; images that the cache lacks are made."""
    folder = cache / "bench" / f"images-{IMAGES_VERSION}-{count}"
    missing = [(n, path) for n in range(count) if not (path := _path(folder, n)).exists()]
    if missing:
        task = progress.add_task("making images", total=len(missing))
        for number, path in missing:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{os.getpid()}-{path.name}")
            partial.write_bytes(jpeg(number))
            os.replace(partial, path)
            progress.advance(task)
    return write_index(folder, scratch / "images.arrow")


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number // PER_FOLDER:03d}" / f"{number:06d}.jpg"


def jpeg(number: int) -> bytes:
    """Image `number`, about 100 x 100: a slope, and noise of which a photograph has as much."""
    draws = np.random.default_rng(number)
    height, width = (int(s) for s in draws.choice(SIDES_PX, 2))
    picture = np.empty((height * 3 // 2, width), np.uint8)  # planar 4:2:0
    y, x = np.ogrid[0:height, 0:width]
    luma = 128 + 50 * np.sin(y / 9 + number) + 40 * np.cos(x / 7) + draws.normal(0, 8, (height, width))
    picture[:height] = np.clip(luma, 0, 255)
    picture[height:] = draws.integers(96, 160)
    frame = av.VideoFrame.from_ndarray(picture, format="yuvj420p")
    codec = av.CodecContext.create("mjpeg", "w")
    assert isinstance(codec, VideoCodecContext), "mjpeg codes pictures"
    codec.width, codec.height, codec.pix_fmt = width, height, "yuvj420p"
    codec.options = {"qmin": "3", "qmax": "3"}
    codec.time_base = frame.time_base = Fraction(1, 25)
    frame.pts = 0
    return b"".join(bytes(p) for p in (*codec.encode(frame), *codec.encode(None)))
