"""LLaVA-OneVision: tiles and tokens of anyres_max_9, of several images and of video; LLaVA-Video's frames.

Source of the tokens: transformers models/llava_onevision/processing_llava_onevision.py and
image_processing_utils.py (`select_best_resolution`). LLaVA-NeXT's llava/model/llava_arch.py truncates where
transformers first rounds to 7 digits, and can keep fewer rows or columns.
"""

from __future__ import annotations

import math

import msgspec

from libhelix.errors import UsageError
from libhelix.plan.counts._numbers import (
    check_frames,
    check_picture,
    check_rate,
    check_setting,
    check_target_rate,
    linspace,
)

CROP_PIXELS = 384
SIDE = 27
"""Patches along each side of a crop."""
CROP_TOKENS = SIDE * SIDE
FRAME_TOKENS = math.ceil(SIDE / 2) ** 2
MOST_SIDE = 6
"""Crops along each side of the largest grid."""


class AnyresCounts(msgspec.Struct, frozen=True):
    """A grid of `rows` x `columns` crops, of which `kept` = (h, w) patches remain after unpadding.

    The vision tower sees `crops`, the language model `tokens`: 729 of the whole image, h * w, and a newline
    token for each of h rows.
    """

    rows: int
    columns: int
    kept: tuple[int, int]

    @property
    def crops(self) -> int:
        """Crops of 384x384 pixels, the whole image among them."""
        return self.rows * self.columns + 1

    @property
    def tokens(self) -> int:
        """Vision tokens that the language model sees."""
        h, w = self.kept
        return CROP_TOKENS + h * w + h


def anyres(height: int, width: int, max_crops: int = 9) -> AnyresCounts:
    """The counts of a single image under anyres_max_<max_crops>.

    The grid, up to 6x6, has most pixels of the image, then least waste. The patches are cut to the image's
    aspect; with r = sqrt(h * w / (max_crops * 27^2)) > 1.1 they become (int(h // r), int(w // r)).
    Raises MediaError for no pixels.
    """
    check_picture(height, width)
    check_setting("max_crops", max_crops)
    rows, columns = _best_grid(height, width)
    h, w = SIDE * rows, SIDE * columns
    if width / height > w / h:
        h -= (h - int(round(height * (w / width), 7))) // 2 * 2
    else:
        w -= (w - int(round(width * (h / height), 7))) // 2 * 2
    ratio = math.sqrt(h * w / (max_crops * CROP_TOKENS))
    if ratio > 1.1:
        h, w = int(h // ratio), int(w // ratio)
    return AnyresCounts(rows, columns, (h, w))


def several_images(images: int) -> int:
    """Tokens of a sample of several images, whatever their sizes: 729 and a newline token each."""
    check_setting("images", images)
    return images * (CROP_TOKENS + 1)


def video_tokens(frames: int) -> int:
    """Tokens of a video: 196 a frame and one newline token."""
    check_frames(frames)
    return frames * FRAME_TOKENS + 1


def frame_indices(
    total: int, fps: float, *, rate: float = 1, max_frames: int | None = None, always_max: bool = False
) -> tuple[int, ...]:
    """Every round(fps / rate)-th frame; of more than `max_frames`, that many from the first to the last.

    `always_max` takes `max_frames` of every video (force_sample there). The latter are
    int(linspace(0, total - 1, max_frames)), and repeat frames of a shorter video.
    Source: `process_video_with_decord` in llava/utils.py of LLaVA-NeXT, where max_frames is frames_upbound.
    Raises UsageError where `rate` is so high that the stride rounds to 0.
    """
    check_frames(total)
    check_rate(fps)
    check_target_rate(rate)
    stride = round(fps / rate)
    if stride == 0:
        raise UsageError(f"rate={rate} is more than twice the video's {fps} frames per second; lower it")
    picked = range(0, total, stride)
    if max_frames is None:
        return tuple(picked)
    check_setting("max_frames", max_frames)
    if len(picked) <= max_frames and not always_max:
        return tuple(picked)
    return tuple(int(x) for x in linspace(total - 1, max_frames))


def _best_grid(height: int, width: int) -> tuple[int, int]:
    area, best, score = height * width, (1, 1), (-1, 0)
    for rows in range(1, MOST_SIDE + 1):
        for columns in range(1, MOST_SIDE + 1):
            h, w = rows * CROP_PIXELS, columns * CROP_PIXELS
            scale = min(w / width, h / height)
            useful = min(int(width * scale) * int(height * scale), area)
            if (useful, useful - h * w) > score:
                best, score = (rows, columns), (useful, useful - h * w)
    return best
