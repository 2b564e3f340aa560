"""Which frames of a video a model family is trained on: every family's rule under its own name.

`total` frames, `fps` on average. Rules are integers and double precision as numpy computes it, so that all
machines choose the same. Qwen's rules are in libhelix/plan/counts/qwen.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

from libhelix.errors import MediaError, UsageError
from libhelix.plan.counts._numbers import (
    check_frames,
    check_rate,
    check_setting,
    check_target_rate,
    float32,
    linspace,
)

Frames = tuple[int, ...]


def _between(first: int, last: int, n: int) -> Frames:
    """numpy.linspace(first, last, n, dtype=int)."""
    return tuple(math.floor(first + x) for x in linspace(last - first, n))


def llava_video(
    total: int, fps: float, *, rate: float = 1.0, bound: int | None = None, force: bool = False
) -> Frames:
    """Every round(fps / rate)-th frame; of more than `bound`, or if `force`, that many evenly from the first
    to the last.

    Source: LLaVA-NeXT, `process_video_with_decord`; a stride of 0, with which it crashes, is 1 here.
    """
    check_frames(total)
    check_rate(fps)
    check_target_rate(rate)
    chosen = tuple(range(0, total, max(1, round(fps / rate))))
    if bound is not None:
        check_setting("bound", bound)
        if len(chosen) > bound or force:
            return _between(0, total - 1, bound)
    return chosen


def internvl(total: int, n: int, draw: Callable[[int, int], int] | None = None) -> Frames:
    """One frame of each of min(n, total) equal stretches: its middle, or where `draw(low, high)` gives an
    integer in [low, high), that one; the last is repeated up to n.

    Source: InternVL, `get_frame_indices` ("middle" and "rand"), which draws from [low, high - 1].
    """
    check_frames(total)
    check_setting("n", n)
    edges = [math.floor(x) for x in linspace(total, min(n, total) + 1)]
    chosen = [
        (low + high - 1) // 2 if draw is None or high - 1 <= low else draw(low, high)
        for low, high in pairwise(edges)
    ]
    return tuple(chosen + [chosen[-1]] * (n - len(chosen)))


def internvl_at_rate(total: int, fps: float, rate: float) -> Frames:
    """The frames at (k + 1/2) / rate seconds, rounded half to even. Source: InternVL, "fps<rate>"."""
    check_frames(total)
    check_rate(fps)
    check_target_rate(rate)
    step = 1 / rate
    begin, end = step / 2, total / fps + step / 2
    count = max(0, math.ceil((end - begin) / step))
    step = begin + step - begin  # numpy.arange goes by the difference of its first two numbers
    chosen = (round((begin + k * step) * fps) for k in range(count))
    return tuple(frame for frame in chosen if frame < total) or (0,)


def internvl_eval(total: int, n: int, first: int = 0) -> Frames:
    """The middle of n equal stretches from `first` to the last frame. Source: InternVL, `get_index`."""
    check_frames(total)
    check_setting("n", n)
    stretch = (total - 1 - first) / n
    return tuple(int(first + stretch / 2 + round(stretch * i)) for i in range(n))


def internvl_processor(total: int, n: int) -> Frames:
    """torch.arange(total / n / 2, total, total / n).int(). Source: transformers, `InternVLVideoProcessor`."""
    check_frames(total)
    check_setting("n", n)
    step = total / n
    count = math.ceil((total - step / 2) / step)
    return tuple(min(int(float32(step / 2 + i * step)), total - 1) for i in range(count))


Resample = Literal["musubi", "diffsynth", "open-sora-plan", "open-sora"]


def at_rate(total: int, fps: float, rate: float, rule: Resample) -> Frames:
    """The frames that stand for a video at another rate, as the trainers of video diffusion models take them.

    musubi          frame j where int of the accumulated rate / fps grows, from the first frame on
    diffsynth       round(k / rate * fps), at most the last, for all k / rate below the duration
    open-sora-plan  every fps / rate-th, cut to whole frames; all where rates differ by less than 0.1
    open-sora       every ceil(fps / rate)-th
    """
    check_frames(total)
    check_rate(fps)
    check_target_rate(rate)
    if rule == "musubi":
        found, reached, accumulated = [], -1, 0.0
        for frame in range(total):
            if int(accumulated) > reached:
                found.append(frame)
                reached = int(accumulated)
            accumulated += rate / fps
        return tuple(found)
    if rule == "diffsynth":
        return tuple(min(round(k / rate * fps), total - 1) for k in range(max(1, int(total / fps * rate))))
    if rule == "open-sora-plan":
        interval = 1.0 if abs(fps - rate) < 0.1 else max(1.0, fps / rate)
        return tuple(int(k * interval) for k in range(math.ceil(total / interval)) if k * interval < total)
    if rule == "open-sora":
        return tuple(range(0, total, max(1, math.ceil(fps / rate))))
    raise UsageError(f"rule={rule!r} must be musubi, diffsynth, open-sora-plan or open-sora")


def whole_groups(frames: int, group: int = 4) -> int:
    """The most frames of these that are group * k + 1: 4k + 1 for Wan, HunyuanVideo and Open-Sora, 8k + 1 for
    LTX. Source: musubi-tuner, DiffSynth."""
    check_frames(frames)
    check_setting("group", group)
    return (frames - 1) // group * group + 1


Where = Literal["head", "chunk", "slide", "uniform"]


def clips(total: int, n: int, where: Where, *, stride: int = 1, count: int = 1) -> tuple[Frames, ...]:
    """Clips of n frames one after the other: the first; side by side; every `stride` frames; `count` evenly.

    Source: musubi-tuner (head, chunk, slide, uniform). Raises MediaError where the video has no n frames.
    """
    check_frames(total)
    check_setting("n", n)
    if total < n:
        raise MediaError(f"a video of {total} frames has no clip of {n}; leave it out or ask for fewer")
    if where == "head":
        begins: Frames = (0,)
    elif where == "chunk":
        begins = tuple(range(0, total - n + 1, n))
    elif where == "slide":
        check_setting("stride", stride)
        begins = tuple(range(0, total - n + 1, stride))
    elif where == "uniform":
        check_setting("count", count)
        begins = _between(0, total - n, count)
    else:
        raise UsageError(f"where={where!r} must be head, chunk, slide or uniform")
    return tuple(tuple(range(begin, begin + n)) for begin in begins)
