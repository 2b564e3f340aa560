"""What is indexed: clips, sounds and small images; and trees of many names of a few files."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from rich.progress import Progress

from bench.clips import encodable, encode_all, plan_clips
from bench.overhead.images import jpeg

FILES_VERSION = "1"
"""Raise it when the files change: figures of different versions must not be compared."""
CODECS = ("h264", "hevc", "av1", "mpeg4")
SOUNDS = {"wav": "pcm_s16le", "flac": "flac", "m4a": "aac"}
"""Encoders by suffix."""
SOUND_S = 20
IMAGES = 16
RATE = 44_100
_PER_FOLDER = 1000


def prepare_clips(count: int, longest_s: float, cache: Path, progress: Progress) -> list[Path]:
    """Clips in mp4, of 2 s in the median and one of `longest_s`; what the cache lacks is encoded."""
    folder = cache / "bench" / f"index-{FILES_VERSION}-{count}-{longest_s:g}"
    plans = plan_clips(count, encodable(CODECS), longest_s=longest_s, seed=1)
    encode_all(plans, folder, progress)
    return [folder / plan.name for plan in plans]


def prepare_sounds(folder: Path) -> list[Path]:
    """A sound of 20 s in every format."""
    folder.mkdir()
    t = np.arange(SOUND_S * RATE) / RATE
    noise = np.random.default_rng(1).normal(0, 0.02, (2, len(t)))
    sound = np.stack([np.sin(440 * t), np.sin(660 * t)]) * 0.3 + noise
    return [_encode(folder / f"sound.{suffix}", codec, sound) for suffix, codec in SOUNDS.items()]


def _encode(path: Path, codec: str, sound: Any) -> Path:
    with av.open(str(path), "w") as out:
        stream: Any = out.add_stream(codec, rate=RATE, layout="stereo")
        stream.codec_context.open()
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound, np.float32), "fltp", "stereo")
        frame.sample_rate, frame.pts, frame.time_base = RATE, 0, Fraction(1, RATE)
        size = stream.codec_context.frame_size or 4096
        pieces = av.AudioResampler(stream.codec_context.format.name, "stereo", RATE, frame_size=size)
        for piece in (*pieces.resample(frame), *pieces.resample(None)):
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))
    return path


def prepare_images(folder: Path) -> list[Path]:
    """Small JPEGs."""
    folder.mkdir()
    paths = [folder / f"{number}.jpg" for number in range(IMAGES)]
    for number, path in enumerate(paths):
        path.write_bytes(jpeg(number))
    return paths


def make_tree(folder: Path, files: list[Path], count: int) -> Path:
    """A tree of `count` names, hard links to these files in turn."""
    for i in range(count):
        if i % _PER_FOLDER == 0:
            below = folder / f"{i // _PER_FOLDER:04d}"
            below.mkdir(parents=True)
        source = files[i % len(files)]
        os.link(source, below / f"{i:06d}{source.suffix}")
    return folder
