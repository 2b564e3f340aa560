"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: sizes after resizing, ViT patches, language tokens and frames.

Two published codes prepare their inputs and differ; `policy` names one:

"qwen-vl-utils"   qwen_vl_utils/vision_process.py (0.0.14), which the published training code uses
"transformers"    models/qwen2_vl/image_processing_qwen2_vl.py, .../video_processing_qwen2_vl.py and
                  models/qwen3_vl/video_processing_qwen3_vl.py (5.24); Qwen2.5-VL uses the code of Qwen2-VL

Their defaults are those of the code. A checkpoint carries its own limits (`size` in its preprocessor
configurations): pass them as `min_pixels` and `max_pixels`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from libhelix.errors import MediaError, UsageError
from libhelix.plan.counts._numbers import (
    check_frames,
    check_picture,
    check_rate,
    check_setting,
    check_target_rate,
    float32,
    linspace,
)

Model = Literal["qwen2-vl", "qwen2.5-vl", "qwen3-vl"]
Policy = Literal["qwen-vl-utils", "transformers"]

MERGE = 2
"""Patches along each side of a token."""
TEMPORAL = 2
"""Frames in a patch."""
MOST_ASPECT = 200

_PATCH: dict[str, int] = {"qwen2-vl": 14, "qwen2.5-vl": 14, "qwen3-vl": 16}
_FRAME_TOKENS = (128, 768)
_VIDEO_TOKENS = 128_000


class VisionCounts(msgspec.Struct, frozen=True):
    """`height` and `width` in pixels after resizing; `grid` = (frame pairs, patch rows, patch columns).

    `patches` is the product of the grid, `tokens` a quarter of it. A start and an end token around the
    vision tokens are not counted.
    """

    height: int
    width: int
    grid: tuple[int, int, int]

    @property
    def patches(self) -> int:
        """Patches that the vision tower sees."""
        return math.prod(self.grid)

    @property
    def tokens(self) -> int:
        """Vision tokens that the language model sees."""
        return self.patches // MERGE**2


def factor(model: Model) -> int:
    """Pixels along each side of a token: 28, or 32 for Qwen3-VL."""
    if model not in _PATCH:
        raise UsageError(f"model={model!r} must be one of {', '.join(_PATCH)}")
    return _PATCH[model] * MERGE


def smart_resize(
    height: int, width: int, factor: int, min_pixels: int, max_pixels: float, policy: Policy
) -> tuple[int, int]:
    """(height, width) after resizing: multiples of `factor`, min_pixels <= area <= max_pixels, same aspect.

    Each side is round(x / f) * f, half to even. Over max_pixels it is floor(x / b / f) * f with b =
    sqrt(h * w / max); under min_pixels ceil(x * b / f) * f with b = sqrt(min / (h * w)). "qwen-vl-utils"
    raises a side to f before it compares, "transformers" after it shrank. The area can pass max_pixels
    where a side is f and where a picture is enlarged.

    Source: `smart_resize` of both codes. Raises MediaError for no pixels, an aspect ratio above 200 and a
    side that becomes 0.
    """
    _check_policy(policy)
    check_picture(height, width)
    _check_limits(min_pixels, max_pixels)
    _check_aspect(height, width)
    h, w = _near(height, factor), _near(width, factor)
    if policy == "qwen-vl-utils":
        h, w = max(factor, h), max(factor, w)
    if h * w > max_pixels:
        h, w = _shrunk(height, width, factor, math.sqrt(height * width / max_pixels))
        if policy == "transformers":
            h, w = max(factor, h), max(factor, w)
    elif h * w < min_pixels:
        h, w = _grown(height, width, factor, math.sqrt(min_pixels / (height * width)))
    if h == 0 or w == 0:
        raise MediaError(
            f"a picture of {width}x{height} pixels has no row of patches left within {max_pixels:.0f} "
            "pixels; raise max_pixels or leave it out"
        )
    return h, w


def image(
    height: int,
    width: int,
    *,
    model: Model = "qwen2.5-vl",
    policy: Policy = "qwen-vl-utils",
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> VisionCounts:
    """The counts of an image: grid (1, h / patch, w / patch) of the resized size.

    Limits in pixels; by default 4 to 16,384 tokens ("qwen-vl-utils": `fetch_image`), or 56^2 to 28^2 * 1280
    pixels ("transformers": `get_number_of_image_patches`). Errors as for `smart_resize`.
    """
    f = factor(model)
    low, high = (4 * f * f, 16384 * f * f) if policy == "qwen-vl-utils" else (56 * 56, 28 * 28 * 1280)
    size = smart_resize(height, width, f, _or(min_pixels, low), _or(max_pixels, high), policy)
    return _counts(1, size, f)


def video(
    height: int,
    width: int,
    frames: int,
    *,
    model: Model = "qwen2.5-vl",
    policy: Policy = "qwen-vl-utils",
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    total_pixels: float | None = None,
    cap_pixels_per_frame: bool = False,
) -> VisionCounts:
    """The counts of a video of so many sampled frames: grid (ceil(frames / 2), h / patch, w / patch).

    "qwen-vl-utils" (`fetch_video`): pixels of a frame from min_pixels = 128 f^2 to max(min(768 f^2,
    total_pixels / frames * 2), int(1.05 * min_pixels)) with total_pixels = 0.9 * 128,000 f^2; `max_pixels`
    can only lower that.

    "transformers" (`resize`, `get_num_of_video_patches`): pixels of a frame from 128 f^2 to 768 f^2 for
    Qwen2-VL and Qwen2.5-VL; of the whole video for Qwen3-VL, of which two frames are the least.
    `cap_pixels_per_frame` is the option of that name: shares of the budget as in qwen-vl-utils.

    Errors as for `smart_resize`; UsageError for an option that the policy does not have.
    """
    _check_policy(policy)
    check_frames(frames)
    check_picture(height, width)
    f = factor(model)
    low, high = (_or(given, n * f * f) for given, n in zip((min_pixels, max_pixels), _FRAME_TOKENS))
    if policy == "qwen-vl-utils":
        if cap_pixels_per_frame:
            raise UsageError('cap_pixels_per_frame= needs policy="transformers"; qwen-vl-utils always caps')
        total = _VIDEO_TOKENS * f * f * 0.9 if total_pixels is None else total_pixels
        check_setting("total_pixels", total)
        cap = max(min(_FRAME_TOKENS[1] * f * f, total / frames * TEMPORAL), int(low * 1.05))
        cap = cap if max_pixels is None else min(cap, max_pixels)
        return _counts(frames, smart_resize(height, width, f, low, cap, policy), f)
    if total_pixels is not None:
        raise UsageError('total_pixels= needs policy="qwen-vl-utils"')
    if model == "qwen3-vl":
        if cap_pixels_per_frame:
            share = min(_FRAME_TOKENS[1] * f * f, high // frames)
            high = max(share, int(low * 1.05)) * frames
        return _counts(frames, _resize_all(frames, height, width, f, low, high), f)
    if cap_pixels_per_frame:
        high = max(min(high, int(_VIDEO_TOKENS * f * f * 0.9) * TEMPORAL // frames), int(low * 1.05))
    return _counts(frames, smart_resize(height, width, f, low, high, policy), f)


def frame_count(
    total: int,
    fps: float,
    *,
    frames: int | None = None,
    rate: float = 2.0,
    min_frames: int = 4,
    max_frames: int = 768,
    model: Model = "qwen2.5-vl",
    policy: Policy = "qwen-vl-utils",
) -> int:
    """How many of a video's `total` frames at `fps` are sampled: at `rate` a second, or `frames` in all.

    "qwen-vl-utils" (`smart_nframes`): floor2(min(max(total / fps * rate, ceil2(min_frames)),
    floor2(max_frames), total)), where floor2 and ceil2 go to even numbers; round2(frames) if given.
    "transformers" (`sample_frames`): the same with min_frames as it is for Qwen2-VL and Qwen2.5-VL, and
    min(max(int(total / fps * rate), min_frames), max_frames, total) for Qwen3-VL, where `frames` stays.

    Raises MediaError for a video without frames or rate, or with too few frames for one pair.
    """
    _check_policy(policy)
    factor(model)
    check_frames(total)
    check_rate(fps)
    check_target_rate(rate)
    check_setting("min_frames", min_frames)
    check_setting("max_frames", max_frames, TEMPORAL)
    if frames is not None:
        check_setting("frames", frames)
    wanted = total / fps * rate
    if policy == "transformers" and model == "qwen3-vl":
        return min(max(int(wanted), min_frames), max_frames, total) if frames is None else frames
    if frames is not None:
        n = round(frames / TEMPORAL) * TEMPORAL
    else:
        least = min_frames if policy == "transformers" else math.ceil(min_frames / TEMPORAL) * TEMPORAL
        most = max_frames // TEMPORAL * TEMPORAL
        n = math.floor(min(max(wanted, least), most, total) / TEMPORAL) * TEMPORAL
    if not TEMPORAL <= n <= total:
        raise MediaError(f"{n} frames cannot be sampled of a video of {total}; leave it out or ask for fewer")
    return n


def frame_indices(
    total: int,
    count: int,
    *,
    first: int = 0,
    model: Model = "qwen2.5-vl",
    policy: Policy = "qwen-vl-utils",
) -> tuple[int, ...]:
    """Which frames are sampled: `count` of the `total` from `first` on (see `clip_range`), ascending.

    "qwen-vl-utils": torch.linspace(first, first + total - 1, count).round(), single precision.
    "transformers" (`sample_frames`), `first` = 0: torch.arange(0, total, total / count).int() for Qwen2-VL
    and Qwen2.5-VL, numpy.linspace(0, total - 1, count).round() for Qwen3-VL. Where arange returns one index
    more, `total` itself, because total / (total / count) rounds up, that frame does not exist and is left
    out here.
    """
    _check_policy(policy)
    factor(model)
    check_frames(total)
    check_setting("count", count)
    if policy == "qwen-vl-utils":
        return _linspace32(first, first + total - 1, count)
    if first:
        raise UsageError('first= needs policy="qwen-vl-utils"; transformers samples whole videos')
    if model == "qwen3-vl":
        return tuple(round(x) for x in linspace(total - 1, count))
    if count > total:
        raise MediaError(f"{count} frames cannot be sampled of a video of {total}; leave it out")
    step = total / count
    return tuple(int(float32(i * step)) for i in range(count))


def clip_range(total: int, fps: float, begin_s: float | None, end_s: float | None) -> tuple[int, int]:
    """(first frame, frames) of a clip given in seconds: from ceil(begin * fps) to floor(end * fps), included.

    Times are clamped to [0, total / fps], the last frame to total - 1. Source: qwen_vl_utils
    `calculate_video_frame_range`. Raises MediaError where fewer than two frames are left.
    """
    check_frames(total)
    check_rate(fps)
    duration = total / fps
    first = 0 if begin_s is None else math.ceil(max(0.0, min(begin_s, duration)) * fps)
    last = total - 1
    if end_s is not None:
        last = min(math.floor(max(0.0, min(end_s, duration)) * fps), last)
    if first >= last and (begin_s, end_s) != (None, None):
        raise MediaError(
            f"the clip from {begin_s} to {end_s} seconds has no two frames of {total} at {fps} frames per "
            "second; correct its times or leave it out"
        )
    return first, last - first + 1


def timestamp_texts(indices: Sequence[int], fps: float) -> tuple[str, ...]:
    """What Qwen3-VL reads before each frame pair, such as "<1.5 seconds>": the mean time of its two frames.

    `indices` count frames of the source video, at `fps`; an odd last frame makes a pair with itself.
    Source: transformers models/qwen3_vl/processing_qwen3_vl.py.
    """
    check_frames(len(indices))
    check_rate(fps)
    times = [i / fps for i in [*indices, indices[-1]]]
    return tuple(f"<{(times[i] + times[i + 1]) / 2:.1f} seconds>" for i in range(0, len(indices), TEMPORAL))


def timed_tokens(counts: VisionCounts, texts: Sequence[str], token_count: Callable[[str], int]) -> int:
    """All tokens of a Qwen3-VL video: vision tokens, a start and an end token per frame pair, and the texts.

    `texts` are those of `timestamp_texts`; `token_count` tells how many tokens the model's tokenizer makes
    of one. Raises UsageError unless there is one text per frame pair.
    """
    if len(texts) != counts.grid[0]:
        raise UsageError(f"{len(texts)} timestamps for {counts.grid[0]} frame pairs; pass one text per pair")
    return counts.tokens + 2 * len(texts) + sum(token_count(text) for text in texts)


def _resize_all(frames: int, height: int, width: int, f: int, low: int, high: int) -> tuple[int, int]:
    if frames < TEMPORAL:
        raise MediaError(f"Qwen3-VL takes {TEMPORAL} frames or more, this video has {frames}; leave it out")
    _check_limits(low, high)
    if height < f or width < f:
        scale = max(f / height, f / width)
        height, width = int(height * scale), int(width * scale)
        check_picture(height, width)
    _check_aspect(height, width)
    h, w = _near(height, f), _near(width, f)
    pixels = round(frames / TEMPORAL) * TEMPORAL * h * w
    if pixels > high:
        h, w = _shrunk(height, width, f, math.sqrt(frames * height * width / high))
        return max(f, h), max(f, w)
    if pixels < low:
        return _grown(height, width, f, math.sqrt(low / (frames * height * width)))
    return h, w


def _counts(frames: int, size: tuple[int, int], f: int) -> VisionCounts:
    patch, (h, w) = f // MERGE, size
    return VisionCounts(h, w, (-(-frames // TEMPORAL), h // patch, w // patch))


def _near(side: int, f: int) -> int:
    return round(side / f) * f


# Divided and multiplied one after the other, as the published code does: another order rounds otherwise.
def _shrunk(height: int, width: int, f: int, beta: float) -> tuple[int, int]:
    return math.floor(height / beta / f) * f, math.floor(width / beta / f) * f


def _grown(height: int, width: int, f: int, beta: float) -> tuple[int, int]:
    return math.ceil(height * beta / f) * f, math.ceil(width * beta / f) * f


def _linspace32(first: int, last: int, n: int) -> tuple[int, ...]:
    # torch rounds once to single precision per element, from the nearer end.
    if n == 1:
        return (first,)
    step = float32((last - first) / (n - 1))
    half = n // 2
    return tuple(
        round(float32(first + step * i if i < half else last - step * (n - 1 - i))) for i in range(n)
    )


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def _check_policy(policy: Policy) -> None:
    if policy not in ("qwen-vl-utils", "transformers"):
        raise UsageError(f'policy={policy!r} must be "qwen-vl-utils" or "transformers"')


def _check_limits(min_pixels: float, max_pixels: float) -> None:
    check_setting("min_pixels", min_pixels)
    if max_pixels < min_pixels:
        raise UsageError(f"max_pixels={max_pixels:.0f} is below min_pixels={min_pixels:.0f}")


def _check_aspect(height: int, width: int) -> None:
    if max(height, width) / min(height, width) > MOST_ASPECT:
        raise MediaError(
            f"a picture of {width}x{height} pixels has an aspect ratio above {MOST_ASPECT}; leave it out"
        )
