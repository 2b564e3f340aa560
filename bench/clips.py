"""Synthetic clips: what they show, how long they are, and how they are encoded.

A clip shows a striped texture that drifts across its stripes; the class is the direction, one of four. A
single frame tells the direction, so a model of a few convolutions learns it in tens of steps. The noise in
the texture gives decoders something to do.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path

import av
import msgspec
import numpy as np
import numpy.typing as npt
from av.video.stream import VideoStream
from rich.progress import Progress

from bench.interrupts import shielded_children

FPS = 24
DIRECTIONS = ((1, 0), (1, 1), (0, 1), (1, -1))
"""(x, y) drift of class 0..3; the stripes lie across it."""

SIZES = ((256, 144), (424, 240), (640, 360), (848, 480), (1280, 720))
"""(width, height) of the clips, small to large."""

ENCODERS = {"h264": "libx264", "hevc": "libx265", "vp9": "libvpx-vp9", "mpeg4": "mpeg4", "av1": "libsvtav1"}
_OPTIONS = {
    "libx264": {"preset": "ultrafast", "crf": "26", "bf": "2"},
    "libx265": {"preset": "ultrafast", "crf": "30", "x265-params": "log-level=none:pools=none"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8", "crf": "36", "b": "0"},
    "mpeg4": {"qscale": "6"},
    "libsvtav1": {"preset": "12", "crf": "42", "svtav1-params": "lp=1"},
}
_SUFFIX = {"vp9": ".webm"}


class ClipPlan(msgspec.Struct, frozen=True):
    """One clip to encode. `name` is its path below the folder of clips, class first.

    gop   frames from key frame to key frame, at most
    crf   the quality, by the codec's own scale; None: the encoder's of `_OPTIONS`
    preset   how much the encoder tries, as crf
    """

    name: str
    codec: str
    width: int
    height: int
    frames: int
    direction: int
    seed: int
    gop: int = 2 * FPS
    """Frames from one key frame to the next."""
    crf: int | None = None
    preset: str | None = None


def plan_clips(
    count: int, codecs: tuple[str, ...], *, median_s: float = 2.0, longest_s: float = 40.0, seed: int = 0
) -> list[ClipPlan]:
    """`count` clips, equal at every call. Lengths are lognormal (sigma 1), at most `longest_s`; one clip is
    `longest_s` long, so that the tail is there in a small set too. Classes, codecs and sizes are balanced."""
    draws = random.Random(seed)
    sizes = [SIZES[i % len(SIZES)] for i in range(count)]
    draws.shuffle(sizes)
    sizes[0] = SIZES[2]  # the longest clip in the middle size: it should be long, not slow to make
    plans = []
    for i in range(count):
        duration_s = longest_s if i == 0 else min(longest_s, median_s * math.exp(draws.gauss(0.0, 1.0)))
        codec = codecs[i // len(DIRECTIONS) % len(codecs)]
        direction = i % len(DIRECTIONS)
        width, height = sizes[i]
        plans.append(
            ClipPlan(
                name=f"class{direction}/clip{i:03d}-{codec}-{height}p{_SUFFIX.get(codec, '.mp4')}",
                codec=codec,
                width=width,
                height=height,
                frames=max(FPS // 4, round(duration_s * FPS)),
                direction=direction,
                seed=draws.getrandbits(32),
            )
        )
    return plans


def encodable(codecs: tuple[str, ...] = tuple(ENCODERS)) -> tuple[str, ...]:
    """The codecs among `codecs` for which this build of PyAV has the encoder."""
    return tuple(c for c in codecs if ENCODERS[c] in av.codecs_available)


def texture(plan: ClipPlan) -> npt.NDArray[np.uint8]:
    """The luma that drifts: [2 * height, 2 * width], periodic in height and width."""
    rng = np.random.default_rng(plan.seed)
    across, down = DIRECTIONS[plan.direction]
    stripes = int(rng.integers(3, 6))  # over the height; as many to a length in x, so that diagonals are
    cycles_x = across * round(stripes * plan.width / plan.height)
    y, x = np.ogrid[0 : plan.height, 0 : plan.width]
    phase = cycles_x * x / plan.width + down * stripes * y / plan.height
    tile = 128.0 + 70.0 * np.sin(2 * math.pi * phase) + rng.normal(0.0, 6.0, (plan.height, plan.width))
    return np.tile(np.clip(tile, 16, 235).astype(np.uint8), (2, 2))


@contextlib.contextmanager
def keeping_scheduling_policy() -> Iterator[None]:
    """Give this thread its scheduling policy back afterwards: SVT-AV1, where it may, puts the thread that
    opens an encoder under SCHED_FIFO at the highest priority, and all that is started later inherits it."""
    policy, param = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, param)


def encode(plan: ClipPlan, folder: Path) -> Path:
    """Write the clip below `folder`, whole or not at all; an existing one is kept. One encoder thread."""
    path = folder / plan.name
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{os.getpid()}-{path.name}")
    name = "webm" if path.suffix == ".webm" else "mp4"
    try:
        with keeping_scheduling_policy(), av.open(str(partial), "w", format=name) as out:
            options = dict(_OPTIONS[ENCODERS[plan.codec]])
            options |= {} if plan.crf is None else {"crf": str(plan.crf)}
            options |= {} if plan.preset is None else {"preset": plan.preset}
            stream = out.add_stream(ENCODERS[plan.codec], rate=FPS, options=options)
            assert isinstance(stream, VideoStream), f"{plan.codec} gave a {stream.type} stream"
            stream.width, stream.height, stream.pix_fmt = plan.width, plan.height, "yuv420p"
            stream.codec_context.gop_size = plan.gop
            stream.codec_context.thread_count = 1
            stream.codec_context.time_base = Fraction(1, FPS)
            for frame in _frames(plan):
                out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _frames(plan: ClipPlan) -> Iterator[av.VideoFrame]:
    width, height = plan.width, plan.height
    luma = texture(plan)
    rng = np.random.default_rng(plan.seed + 1)
    step_px = height * float(rng.uniform(0.2, 0.6)) / FPS
    across, down = DIRECTIONS[plan.direction]
    picture = np.empty((height * 3 // 2, width), np.uint8)  # planar 4:2:0: luma, then both chromas
    picture[height : height * 5 // 4] = rng.integers(96, 160)
    picture[height * 5 // 4 :] = rng.integers(96, 160)
    for i in range(plan.frames):
        left, top = round(-across * i * step_px) % width, round(-down * i * step_px) % height
        picture[:height] = luma[top : top + height, left : left + width]
        frame = av.VideoFrame.from_ndarray(picture, format="yuv420p")
        frame.pts, frame.time_base = i, Fraction(1, FPS)
        yield frame


def default_cache() -> Path:
    """$HELIX_CACHE, or ~/.cache/helix."""
    return Path(os.environ.get("HELIX_CACHE") or Path.home() / ".cache" / "helix")


def encode_all(plans: Sequence[ClipPlan], folder: Path, progress: Progress, jobs: int = 0) -> None:
    """Encode what is missing below `folder`, the slow ones first, so that the cores finish together.

    `jobs` = 0 uses all own cores.
    """
    missing = [p for p in plans if not (folder / p.name).exists()]
    if not missing:
        return
    task = progress.add_task("encoding clips", total=sum(_pixels(p) for p in missing))
    order = sorted(missing, key=_pixels, reverse=True)
    jobs = jobs or len(os.sched_getaffinity(0))
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_quiet_encoders)
    try:
        with shielded_children():
            running = {pool.submit(encode, plan, folder): plan for plan in order}
        for done in as_completed(running):
            done.result()
            progress.advance(task, _pixels(running[done]))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _pixels(plan: ClipPlan) -> int:
    return plan.frames * plan.width * plan.height


def _quiet_encoders() -> None:
    os.environ["SVT_LOG"] = "1"  # errors only; SVT-AV1 greets on stderr otherwise
