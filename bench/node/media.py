"""Files of the workloads: made once, kept in the cache. What files show does not matter, their sizes do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path

import av
import msgspec
import numpy as np
from rich.progress import Progress

from bench.clips import ClipPlan, texture
from bench.interrupts import shielded_children

RATE = 16_000


class ImagePlan(msgspec.Struct, frozen=True):
    """A JPEG or PNG, by the suffix of `name`, its path below the folder."""

    name: str
    width: int
    height: int
    seed: int


class SoundPlan(msgspec.Struct, frozen=True):
    """A FLAC or Opus file, by the suffix."""

    name: str
    seconds: float
    seed: int


class TextPlan(msgspec.Struct, frozen=True):
    """A text of so many tokens, of four bytes each."""

    name: str
    tokens: int


class LinkPlan(msgspec.Struct, frozen=True):
    """Another name of a file that is made, `of`."""

    name: str
    of: str


Small = ImagePlan | SoundPlan | TextPlan | LinkPlan
Plan = ClipPlan | Small


def make(plans: Sequence[Small], folder: Path, progress: Progress) -> None:
    """Make what is missing below `folder`, whole files or none."""
    missing = [p for p in plans if not (folder / p.name).exists()]
    if not missing:
        return
    task = progress.add_task("making files", total=len(missing))
    pool = ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn"))
    try:
        with shielded_children():
            jobs = [pool.submit(_make, missing[i : i + 8], folder) for i in range(0, len(missing), 8)]
        for job in jobs:
            progress.advance(task, job.result())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _make(plans: Sequence[Small], folder: Path) -> int:
    for plan in plans:
        path = folder / plan.name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{os.getpid()}-{path.name}")
        try:
            match plan:
                case ImagePlan():
                    _image(plan, partial)
                case SoundPlan():
                    _sound(plan, partial)
                case TextPlan(tokens=tokens):
                    partial.write_text("lo, " * tokens)
                case LinkPlan(of=of):
                    os.link(folder / of, partial)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    return len(plans)


def _image(plan: ImagePlan, path: Path) -> None:
    from PIL import Image

    # Large images are small ones, tiled: only the size counts, and textures take long to compute.
    width, height = min(plan.width, 512), min(plan.height, 512)
    luma = texture(ClipPlan("", "", width, height, frames=1, direction=1, seed=plan.seed))[:height, :width]
    tiles = (-(-plan.height // height), -(-plan.width // width))
    whole = np.tile(luma, tiles)[: plan.height, : plan.width]
    Image.fromarray(np.stack([whole, whole[:, ::-1], whole[::-1]], 2)).save(path)


def _sound(plan: SoundPlan, path: Path) -> None:
    flac = path.suffix == ".flac"
    with av.open(str(path), "w", format="flac" if flac else "ogg") as out:
        stream = out.add_stream("flac" if flac else "libopus", rate=RATE, layout="mono")
        for frame in _blocks(plan):
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def _blocks(plan: SoundPlan) -> Iterator[av.AudioFrame]:
    rng, block = np.random.default_rng(plan.seed), RATE // 10
    for i in range(max(1, round(plan.seconds * 10))):
        t = (i * block + np.arange(block)) / RATE
        tone = np.sin(2 * np.pi * rng.choice((220, 330, 440)) * t) * 9000 + rng.normal(0, 300, block)
        frame = av.AudioFrame.from_ndarray(tone.astype(np.int16).reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, i * block, Fraction(1, RATE)
        yield frame
