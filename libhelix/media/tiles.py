"""Pictures as the tiles that vision towers take: scaled to a grid and cut, or padded to a square.

Pictures are uint8 RGB [h, w, 3], upright, in their own size; what is written is uint8 [3, side, side], one
after the other. `resize` "exact" is Pillow's BICUBIC, as in the code that the models were trained with;
"fast" is libswscale's area filter, for frames of videos in the same pass that makes them RGB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import av
import numpy as np

from libhelix.errors import MediaError
from libhelix.media import image, pixels, sampler
from libhelix.media.resample import bicubic
from libhelix.recipe import Item

Array = np.ndarray[Any, np.dtype[Any]]
Resize = Literal["exact", "fast"]


def picture_of(item: Item) -> Array:
    """An image, upright and in its own size. Raises MediaError as `image.decode` does."""
    if item.image is None:
        raise MediaError(f"{item.path}: indexed without an image header; run helixctl index again")
    picture = np.empty((*item.image.display_size, 3), np.uint8)
    image.decode(item, picture)
    return picture


def frames(item: Item, chosen: Sequence[int], out: Array, resize: Resize, threads: int = 1) -> None:
    """Write frames of a video, each as `whole` does, to `out` [len(chosen), 3, side, side].

    Raises MediaError as `sampler.decode` does.
    """
    if item.video is None:
        raise MediaError(f"{item.path}: indexed without a demux scan; run helixctl index again")
    info, side = item.video, out.shape[-1]
    size = (side, side) if resize == "fast" else info.display_size
    shown = np.empty((*size, 3), np.uint8)
    places: dict[int, list[int]] = {}
    for at, frame in enumerate(chosen):
        places.setdefault(frame, []).append(at)

    def put(frame: int, picture: Any) -> None:
        first, *others = places[frame]
        pixels.write_frame(picture, info, shown, fit="stretch")
        whole(shown, out[first], resize)
        for at in others:
            out[at] = out[first]

    sampler.decode(item, list(places), put, threads=threads)


def whole(picture: Array, out: Array, resize: Resize) -> None:
    """Write the picture, whatever its aspect, to fill `out` [3, side, side]."""
    _, height, width = out.shape
    np.copyto(out, _scaled(picture, height, width, resize).transpose(2, 0, 1))


def grid(picture: Array, columns: int, rows: int, out: Array, resize: Resize, first: int = 0) -> None:
    """Write the tiles [first, first + len(out)) of a picture scaled to fill `columns` x `rows` of them.

    They go row by row; behind the last comes the whole picture, the thumbnail. `out`: [n, 3, side, side].
    """
    side = out.shape[-1]
    last = first + len(out)
    cut = min(last, columns * rows)
    if first < cut:
        scaled = _scaled(picture, rows * side, columns * side, resize)
        cut_out(scaled, columns, out[: cut - first], first)
    if last > columns * rows:
        whole(picture, out[-1], resize)


def anyres(picture: Array, rows: int, columns: int, out: Array, resize: Resize) -> None:
    """Write the whole picture, then `rows` x `columns` crops of it: scaled with its aspect kept, and centred
    on black. `out`: [1 + rows * columns, 3, side, side].

    Source: transformers, image_processing_llava_onevision.py (`get_image_patches`).
    """
    side = out.shape[-1]
    whole(picture, out[0], resize)
    high, wide = rows * side, columns * side
    height, width = _inside(picture.shape[0], picture.shape[1], high, wide)
    canvas = np.zeros((high, wide, 3), np.uint8)
    top, left = (high - height) // 2, (wide - width) // 2
    canvas[top : top + height, left : left + width] = _scaled(picture, height, width, resize)
    cut_out(canvas, columns, out[1:])


def square(picture: Array, colour: tuple[int, int, int], out: Array, resize: Resize) -> None:
    """Write the picture, centred on a square of a colour, scaled to `out` [3, side, side].

    Source: transformers, image_processing_llava_onevision.py (`pad_to_square`).
    """
    height, width = picture.shape[:2]
    longest = max(height, width)
    if height != width:
        canvas = np.empty((longest, longest, 3), np.uint8)
        canvas[:] = colour
        top, left = (longest - height) // 2, (longest - width) // 2
        canvas[top : top + height, left : left + width] = picture
        picture = canvas
    whole(picture, out, resize)


def cut_out(scaled: Array, columns: int, out: Array, first: int = 0) -> None:
    """Write the tiles [first, first + len(out)) of a picture that is whole tiles wide, row by row."""
    side = out.shape[-1]
    for at, tile in enumerate(out, first):
        top, left = at // columns * side, at % columns * side
        np.copyto(tile, scaled[top : top + side, left : left + side].transpose(2, 0, 1))


def _scaled(picture: Array, height: int, width: int, resize: Resize) -> Array:
    if resize == "exact":
        return bicubic(picture, height, width)
    if picture.shape[:2] == (height, width):
        return picture
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
    return pixels.rgb(frame, height, width)


def _inside(height: int, width: int, high: int, wide: int) -> tuple[int, int]:
    """The largest size with the aspect of height x width inside high x wide, as transformers rounds it."""
    by_width, by_height = wide / width, high / height
    if by_width < by_height:
        return min(math.ceil(height * by_width), high), wide
    return high, min(math.ceil(width * by_height), wide)
