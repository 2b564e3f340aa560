"""InternVL: tiles, tokens and frames.

Sources: internvl_chat/internvl/train/dataset.py (`dynamic_preprocess`, `get_frame_indices`) and
internvl_chat_finetune.py of InternVL; transformers models/got_ocr2/image_processing_got_ocr2.py and
models/internvl/video_processing_internvl.py, where named. The training code draws a video's frame count at
random while it decodes; here the caller draws it (`describe` has the random numbers) and passes it.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

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

TILE_PIXELS = 448
TILE_TOKENS = 256


class TileCounts(msgspec.Struct, frozen=True):
    """A grid of `columns` x `rows` tiles, and `tiles` with the thumbnail; `tokens` is 256 a tile.

    A start and an end token around the image are not counted (transformers counts both).
    """

    columns: int
    rows: int
    tiles: int

    @property
    def tokens(self) -> int:
        """Vision tokens that the language model sees."""
        return self.tiles * TILE_TOKENS


def tile_grid(
    height: int, width: int, *, min_tiles: int = 1, max_tiles: int = 12, tile: int = TILE_PIXELS
) -> tuple[int, int]:
    """(columns, rows) with min_tiles <= columns * rows <= max_tiles whose ratio is nearest to width / height.

    Of grids as near, a larger one where width * height > 0.5 * tile^2 * columns * rows, else the first.
    Source: `find_closest_aspect_ratio`. Raises MediaError for no pixels.
    """
    check_picture(height, width)
    check_setting("min_tiles", min_tiles)
    if max_tiles < min_tiles:
        raise UsageError(f"max_tiles={max_tiles} is below min_tiles={min_tiles}")
    aspect, area = width / height, width * height
    best, nearest = (1, 1), math.inf
    for columns, rows in _grids(min_tiles, max_tiles):
        distance = abs(aspect - columns / rows)
        as_near_and_fits = distance == nearest and area > 0.5 * tile * tile * columns * rows
        if distance < nearest or as_near_and_fits:
            best, nearest = (columns, rows), distance
    return best


def image(
    height: int,
    width: int,
    *,
    min_tiles: int = 1,
    max_tiles: int = 12,
    tile: int = TILE_PIXELS,
    thumbnail: bool = True,
) -> TileCounts:
    """The tiles of an image: its grid, and one more for the thumbnail if there are several.

    For one of n images in a sample the training code passes `max_tiles` = max(1, max_dynamic_patch // n).
    Source: `dynamic_preprocess`. Raises MediaError for no pixels.
    """
    columns, rows = tile_grid(height, width, min_tiles=min_tiles, max_tiles=max_tiles, tile=tile)
    n = columns * rows
    return TileCounts(columns, rows, n + 1 if thumbnail and n > 1 else n)


def video_tokens(frames: int) -> int:
    """Vision tokens of a video: one tile of 256 a frame. Texts such as "Frame1: " are not counted."""
    check_frames(frames)
    return frames * TILE_TOKENS


def middle_frames(total: int, count: int) -> tuple[int, ...]:
    """The middle frames of `count` stretches of `total` frames; of a shorter video all, then its last again.

    Frame i is (e[i] + e[i + 1] - 1) // 2 with e = int(linspace(0, total, n + 1)), n = min(count, total).
    Source: `get_frame_indices` with sample="middle".
    """
    edges = _edges(total, count)
    return _padded([(a + b - 1) // 2 for a, b in pairwise(edges)], count)


def random_ranges(total: int, count: int) -> tuple[range, ...]:
    """Ranges of which the training code draws one frame each, and repeats the last up to `count` frames.

    The last frame of a stretch is never drawn. Where a range is empty the code draws min(count, total)
    frames of the whole video instead, without repetition, and sorts them.
    Source: `get_frame_indices` with sample="rand".
    """
    edges = _edges(total, count)
    return tuple(range(a, b - 1) for a, b in pairwise(edges))


def frames_at_rate(total: int, fps: float, rate: float, max_frames: int | None = None) -> tuple[int, ...]:
    """Frames `rate` times a second, from 1 / (2 * rate) seconds on, cut after `max_frames`.

    Frame i is round((1 / (2 * rate) + i / rate) * fps), kept if below `total`.
    Source: `get_frame_indices` with sample="fpsX". Raises MediaError where no frame is left.
    """
    check_frames(total)
    check_rate(fps)
    check_target_rate(rate)
    gap = 1 / rate
    begin, end = gap / 2, total / fps + gap / 2
    # numpy.arange adds multiples of the difference between its first two elements.
    step = begin + gap - begin
    times = [begin + i * step for i in range(math.ceil((end - begin) / gap))]
    frames = [i for i in (round(time * fps) for time in times) if i < total]
    if not frames:
        raise MediaError(f"a video of {total} frames has none at {rate} per second; leave it out")
    return tuple(frames[:max_frames])


def evaluation_frames(total: int, count: int) -> tuple[int, ...]:
    """The frames of the model card: int(s / 2 + round(s * i)) with s = (total - 1) / count."""
    check_frames(total)
    check_setting("count", count)
    stretch = (total - 1) / count
    return tuple(int(stretch / 2 + round(stretch * i)) for i in range(count))


def transformers_frames(total: int, count: int) -> tuple[int, ...]:
    """The frames of transformers: torch.arange(t / n / 2, t, t / n).int() for t frames of which n are taken.

    At a rate, n is int(t / fps * rate). Source: `InternVLVideoProcessor.sample_frames`. Raises MediaError
    where n is above t.
    """
    check_frames(total)
    check_setting("count", count)
    if count > total:
        raise MediaError(f"{count} frames cannot be sampled of a video of {total}; leave it out")
    step = total / count
    return tuple(int(float32(step / 2 + i * step)) for i in range(count))


@lru_cache(maxsize=16)
def _grids(min_tiles: int, max_tiles: int) -> tuple[tuple[int, int], ...]:
    sides = range(1, max_tiles + 1)
    grids = [(c, r) for c in sides for r in sides if min_tiles <= c * r <= max_tiles]
    return tuple(sorted(grids, key=lambda grid: grid[0] * grid[1]))


def _edges(total: int, count: int) -> list[int]:
    check_frames(total)
    check_setting("count", count)
    return [int(edge) for edge in linspace(total, min(count, total) + 1)]


def _padded(frames: list[int], count: int) -> tuple[int, ...]:
    return (*frames, *[frames[-1]] * (count - len(frames)))
