"""The files of `bench media`: made once, kept in the cache. A class is several pieces of work of one kind."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from rich.progress import Progress

from bench.clips import ClipPlan, encodable, encode_all, texture
from bench.media.requests import Work

VERSION = "1"
"""Raise it when the files change: figures of different versions must not be compared."""
SECONDS = 10
FPS = 24
VIDEO_SIZES = ((640, 360), (1280, 720))
_GOPS = {"h264": (30, 250), "hevc": (48,), "vp9": (48,), "av1": (48,), "mpeg4": (48,)}
_FRAMES = {"h264": (8, 32)}
_PRESETS = {"h264": "medium"}
"""As most films are encoded; B-frames that nothing refers to are what can be skipped."""
_IMAGE_SIZES = {"vga": (640, 480), "1080p": (1920, 1080)}
_SOUNDS = {"wav": "pcm_s16le", "flac": "flac", "mp3": "libmp3lame", "m4a": "aac"}
RATE = 44_100
SOUND_SECONDS = 30


def classes(cache: Path, only: str, progress: Progress) -> dict[str, list[Work]]:
    """Work by class, of those whose names begin with `only`. Files that are missing are made."""
    folder = cache / "bench" / f"media-{VERSION}"
    return {**_videos(folder, only, progress), **_images(folder, only), **_sounds(folder, only)}


def _videos(folder: Path, only: str, progress: Progress) -> dict[str, list[Work]]:
    plans: dict[tuple[str, int], list[ClipPlan]] = {}
    labels = {
        (codec, gop, n): f"{codec}_gop{gop}_{n}_frames"
        for codec in encodable(tuple(_GOPS))
        for gop in _GOPS[codec]
        for n in _FRAMES.get(codec, (8,))
    }
    labels = {of: label for of, label in labels.items() if label.startswith(only)}
    for codec, gop, _ in labels:
        if (codec, gop) not in plans:
            suffix = ".webm" if codec == "vp9" else ".mp4"
            plans[codec, gop] = [
                ClipPlan(
                    name=f"{codec}-gop{gop}-{height}p{suffix}",
                    codec=codec,
                    width=width,
                    height=height,
                    frames=SECONDS * FPS,
                    direction=1,
                    seed=height + gop,
                    gop=gop,
                    preset=_PRESETS.get(codec),
                )
                for width, height in VIDEO_SIZES
            ]
    encode_all([plan for some in plans.values() for plan in some], folder, progress)
    return {
        label: [
            Work(
                "video",
                str(folder / plan.name),
                tuple((2 * i + 1) * plan.frames // (2 * n) for i in range(n)),
            )
            for plan in plans[codec, gop]
        ]
        for (codec, gop, n), label in labels.items()
    }


def _images(folder: Path, only: str) -> dict[str, list[Work]]:
    from PIL import Image

    how: dict[str, tuple[str, dict[str, object]]] = {
        "jpeg": ("jpg", {"quality": 90}),
        "jpeg_progressive": ("jpg", {"quality": 90, "progressive": True}),
        "png": ("png", {}),
        "webp": ("webp", {"quality": 85}),
    }
    found: dict[str, list[Work]] = {}
    for kind, (suffix, options) in how.items():
        for name, (width, height) in _IMAGE_SIZES.items():
            if not f"{kind}_{name}".startswith(only):
                continue
            path = folder / f"{kind}-{name}.{suffix}"
            if not path.exists():
                plan = ClipPlan("", "", width, height, frames=1, direction=1, seed=width)
                luma = texture(plan)[:height, :width]
                colour = np.stack([luma, np.roll(luma, 40, 1), luma[::-1]], 2)
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = path.with_name(f".{os.getpid()}-{path.name}")
                Image.fromarray(colour).save(partial, **options)  # type: ignore[arg-type]
                partial.rename(path)
            found[f"{kind}_{name}"] = [Work("image", str(path))]
    return found


def _sounds(folder: Path, only: str) -> dict[str, list[Work]]:
    found = {}
    for suffix, codec in _SOUNDS.items():
        if not suffix.startswith(only):
            continue
        path = folder / f"sound.{suffix}"
        if not path.exists():
            _encode_sound(path, codec)
        found[suffix] = [Work("sound", str(path))]
    return found


def _encode_sound(path: Path, codec: str) -> None:
    partial = path.with_name(f".{os.getpid()}-{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(partial), "w", format={"m4a": "ipod"}.get(path.suffix[1:], path.suffix[1:])) as out:
        stream = out.add_stream(codec, rate=RATE, layout="stereo")
        for frame in _tones():
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    partial.rename(path)


def _tones() -> Iterator[av.AudioFrame]:
    draws = random.Random(0)
    block = RATE // 10
    for i in range(10 * SOUND_SECONDS):
        t = (i * block + np.arange(block)) / RATE
        left, right = (np.sin(2 * np.pi * draws.choice((220, 330, 440, 880)) * t) for _ in range(2))
        both = (np.stack([left, right], 1) * 12_000).astype(np.int16).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(both, format="s16", layout="stereo")
        frame.sample_rate, frame.pts, frame.time_base = RATE, i * block, Fraction(1, RATE)
        yield frame
