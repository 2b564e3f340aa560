"""Pictures and videos of a conversation as rows of one field: tiles, crops and frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from libhelix.errors import MediaError
from libhelix.plan.counts import internvl
from libhelix.recipe import Item, Part, Rng, Sample, VideoInfo, merge_segments
from libhelix.recipes.image import Image

Array = np.ndarray[Any, np.dtype[Any]]

Resize = Literal["exact", "fast"]
_SCALED_US_PER_MPX: dict[Resize, tuple[int, int]] = {"exact": (6000, 12_000), "fast": (1500, 5000)}
"""To scale a picture, by a million of its own pixels, and of those it becomes."""


class Piece(NamedTuple):
    """A picture or a video, and the rows that it becomes: tiles of a grid and its thumbnail, or frames."""

    item: Item
    rows: int
    grid: tuple[int, int] = (0, 0)
    """(columns, rows) of a picture."""
    frames: tuple[int, ...] = ()
    """Of a video, one for each row."""

    @property
    def codec(self) -> str:
        """By which predictions of its cost are corrected."""
        info = self.item.video or self.item.image
        return info.codec if info is not None else ""


def segments(pieces: Sequence[Piece], side: int, resize: Resize) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where the rows of some pieces may be cut, and the microseconds between: pieces begin there, and the
    key-frame groups of videos. `side` is that of a row's square."""
    from libhelix.media.video import group_cuts

    cuts: list[int] = []
    us: list[int] = []
    at = 0
    for piece in pieces:
        cuts.extend([at] if at else [])
        if piece.item.video is not None:
            cuts.extend(at + cut for cut in group_cuts(piece.item.video, piece.frames))
        us.extend(_us(piece, side, resize))
        at += piece.rows
    return merge_segments(cuts, us or [0])


def _us(piece: Piece, side: int, resize: Resize) -> tuple[int, ...]:
    from libhelix.media.video import decode_cost_us, group_cuts

    info = piece.item.video
    if info is None:
        image = piece.item.image
        assert image is not None
        read = image.width * image.height * min(piece.rows, 2)  # once more for the thumbnail
        return (image_us(piece.item) + _scaling(read, piece.rows * side * side, resize),)
    pixels = info.width * info.height
    bounds = (0, *group_cuts(info, piece.frames), len(piece.frames))
    return tuple(
        us + len(set(piece.frames[a:b])) * _scaling(pixels, side * side, resize)
        for a, b, us in zip(bounds, bounds[1:], decode_cost_us(info, piece.frames, 0))
    )


def image_us(item: Item) -> int:
    """Microseconds to decode an image."""
    (us,) = Image().describe(Sample(0, item.path, (item,)), Rng(0, 0, 0)).segment_us
    return us


def _scaling(read: int, written: int, resize: Resize) -> int:
    of_read, of_written = _SCALED_US_PER_MPX[resize]
    return (read * of_read + written * of_written) // 1_000_000


def write_rows(pieces: Iterable[Piece], part: Part, out: Array, resize: Resize) -> None:
    """Write the part's rows of all pieces to `out`, uint8 [part's rows, 3, side, side]."""
    from libhelix.media import tiles

    at = 0
    for piece in pieces:
        begin, end = max(part.begin, at), min(part.end, at + piece.rows)
        if begin < end:
            rows = out[begin - part.begin : end - part.begin]
            if piece.frames:
                chosen = piece.frames[begin - at : end - at]
                tiles.frames(piece.item, chosen, rows, resize, part.threads)
            else:
                tiles.grid(tiles.picture_of(piece.item), *piece.grid, rows, resize, begin - at)
        at += piece.rows


def random_frames(total: int, count: int, rng: Rng) -> tuple[int, ...]:
    """InternVL's "rand": a frame of each of `count` stretches, the last again for a shorter video.

    Where a stretch leaves no choice, frames of the whole video without repetition, in order.
    """
    ranges = internvl.random_ranges(total, count)
    if all(ranges):
        chosen = [rng.integers(one.start, one.stop) for one in ranges]
    else:
        pool = list(range(total))
        for at in range(len(ranges)):
            other = rng.integers(at, total)
            pool[at], pool[other] = pool[other], pool[at]
        chosen = sorted(pool[: len(ranges)])
    return (*chosen, *[chosen[-1]] * (count - len(chosen)))


def film_of(item: Item) -> VideoInfo:
    """What is known of a video. Raises MediaError where it was not scanned."""
    if item.video is None:
        raise MediaError(f"{item.path}: indexed without a demux scan; run helixctl index again")
    return item.video


def image_of(item: Item) -> tuple[int, int]:
    """(height, width) of an image as it is seen. Raises MediaError where its header was not indexed."""
    if item.image is None:
        raise MediaError(f"{item.path}: indexed without an image header; run helixctl index again")
    return item.image.display_size
