"""Pictures in the order in which vision towers of the Qwen family read them: patch after patch.

A row is a patch of two frames: [3 channels, 2 frames, patch, patch]. Rows follow in blocks of 2 x 2 patches,
which become one token: block after block, in a block row after row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import av
import numpy as np

from libhelix.media import image as images
from libhelix.media import pixels
from libhelix.media.resample import bicubic
from libhelix.media.sampler import decode
from libhelix.recipe import Item, VideoInfo, shown_size

Resize = Literal["exact", "fast"]
"""How a picture gets its size: Pillow's bicubic filter over the picture as it is, or, faster and less like
what the models' processors do, libswscale's area filter in the same pass that makes it RGB."""
_MERGE = 2
_FRAMES = 2
_CHANNELS = 3


class Shape(NamedTuple):
    """Of one frame pair: pixels, and pixels along the side of a patch."""

    height: int
    width: int
    patch: int

    @property
    def rows(self) -> int:
        """Patches of a frame pair."""
        return self.height * self.width // self.patch**2


def write_image(item: Item, rows: np.ndarray, shape: Shape, resize: Resize) -> None:
    """Decode an image into its patches, [patches, 6 * patch^2], as two equal frames."""
    put(_shown_image(item, shape, resize), rows, shape, slice(0, _FRAMES))


def write_stills(
    stills: Sequence[Item],
    places: Mapping[int, Sequence[int]],
    rows: np.ndarray,
    shape: Shape,
    resize: Resize,
) -> None:
    """`write_frames` of a video whose frames are images."""
    for frame, mine in places.items():
        _put_frame(_shown_image(stills[frame], shape, resize), mine, rows, shape)


def _shown_image(item: Item, shape: Shape, resize: Resize) -> np.ndarray:
    """An image, upright and of its size."""
    assert item.image is not None
    native = np.empty((*item.image.display_size, 3), np.uint8)
    images.decode(item, native)
    if resize == "exact":
        return bicubic(native, shape.height, shape.width)
    return pixels.rgb(av.VideoFrame.from_ndarray(native, format="rgb24"), shape.height, shape.width)


def write_frames(
    item: Item,
    places: Mapping[int, Sequence[int]],
    rows: np.ndarray,
    shape: Shape,
    resize: Resize,
    threads: int,
) -> None:
    """Decode frames of a video into the patches of its frame pairs, one pair after the other in `rows`.

    `places`: by number of the frame, which of the pairs' frames it is: 2 p and 2 p + 1 are those of pair p.
    """
    info = item.video
    assert info is not None, "frames are of a video"

    def write(frame: int, picture: Any) -> None:
        _put_frame(_shown(picture, info, shape, resize), places[frame], rows, shape)

    decode(item, list(places), write, threads=threads)


def _put_frame(shown: np.ndarray, places: Sequence[int], rows: np.ndarray, shape: Shape) -> None:
    for place in places:
        pair, half = divmod(place, _FRAMES)
        put(shown, rows[pair * shape.rows : (pair + 1) * shape.rows], shape, slice(half, half + 1))


def put(image: np.ndarray, rows: np.ndarray, shape: Shape, halves: slice) -> None:
    """Write an image [height, width, 3] into these frames of the pair whose patches `rows` are."""
    p, down, across = shape.patch, shape.height // shape.patch // _MERGE, shape.width // shape.patch // _MERGE
    target = rows if rows.strides[1] == 1 else np.empty(rows.shape, np.uint8)
    if target is not rows:
        target[...] = rows
    # A line of a patch is moved as one element: byte by byte it takes four times as long.
    line = np.dtype((np.void, p))
    source = np.ascontiguousarray(image.transpose(2, 0, 1)).view(line)
    source = source.reshape(_CHANNELS, down, _MERGE, p, across, _MERGE).transpose(1, 4, 2, 5, 0, 3)
    lines = target.view(line).reshape(down, across, _MERGE, _MERGE, _CHANNELS, _FRAMES, p)
    lines[..., halves, :] = source[..., None, :]
    if target is not rows:
        rows[...] = target


def _shown(picture: Any, info: VideoInfo, shape: Shape, resize: Resize) -> np.ndarray:
    """A frame of a video, upright and of its size."""
    if resize == "exact":
        native = np.empty((*shown_size(picture.height, picture.width, info.rotation, info.sar), 3), np.uint8)
        pixels.write_frame(picture, info, native)
        return bicubic(native, shape.height, shape.width)
    scaled = np.empty((shape.height, shape.width, 3), np.uint8)
    pixels.write_frame(picture, info, scaled, fit="stretch")
    return scaled
