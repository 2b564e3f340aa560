"""Pixels of a decoded frame, cropped to fill a target, written once at their final address.

There is one route from a frame to RGB (libswscale, area averaging with full chroma) and it is always taken:
other routes differ in bits, and a sample must not depend on who decoded it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Literal

import av
import numpy as np
from av.video.reformatter import VideoReformatter

Order = Literal["HWC", "CHW"]

_SWS_AREA = 0x20
_SWS_FULL_CHR_H_INT = 0x2000
# PyAV before 17 has no name for the second flag, but every version passes a plain integer on to libswscale.
_SCALER = _SWS_AREA | _SWS_FULL_CHR_H_INT

_MOST_SCALERS = 32
_local = threading.local()
_has_threads = [True]
"""Whether `reformat` takes `threads` (PyAV from 17 on; older ones never start any)."""


def cover_size(height: int, width: int, target: tuple[int, int]) -> tuple[int, int]:
    """The size to which a picture is scaled so that it covers `target` = (h, w) with its aspect kept.

    With (H0, W0) the picture as displayed: where h*W0 >= w*H0 the height binds, and the size is
    (h, max(w, W0*h/H0)); else it is (max(h, H0*w/W0), w). Quotients round half up, in integers only. The
    crop then begins at ((sh - h) // 2, (sw - w) // 2). The sample aspect ratio is ignored.
    """
    h, w = target
    if h * width >= w * height:
        return h, max(w, (2 * width * h + height) // (2 * height))
    return max(h, (2 * height * w + width) // (2 * width)), w


def centre(image: np.ndarray, target: tuple[int, int]) -> np.ndarray:
    """The middle [h, w, C] of an image that covers `target`; a view."""
    h, w = target
    top, left = (image.shape[0] - h) // 2, (image.shape[1] - w) // 2
    return image[top : top + h, left : left + w]


def rgb(frame: av.VideoFrame, height: int, width: int, pixel_format: str = "rgb24") -> np.ndarray:
    """The frame as uint8 [height, width, 3] (4 for "rgba"); a view of a frame of its own."""
    scaled = _reformat(frame, height, width, pixel_format)
    channels = 4 if pixel_format == "rgba" else 3
    return rows(scaled)[:, : width * channels].reshape(height, width, channels)


def rows(frame: av.VideoFrame) -> np.ndarray:
    """The bytes of a one-plane frame, [height, bytes per line]; a view that keeps the frame alive."""
    plane: Any = frame.planes[0]
    line, height = plane.line_size, frame.height
    return np.frombuffer(plane, np.uint8)[: line * height].reshape(height, line)


def _reformat(frame: av.VideoFrame, height: int, width: int, pixel_format: str) -> av.VideoFrame:
    # A scaler costs 0.3 ms to set up and belongs to one thread. Few geometries are alive at a time.
    scalers: OrderedDict[Any, VideoReformatter] | None = getattr(_local, "scalers", None)
    if scalers is None:
        scalers = _local.scalers = OrderedDict()
    key = (frame.width, frame.height, frame.format.name, height, width, pixel_format)
    scaler = scalers.pop(key, None) or VideoReformatter()
    scalers[key] = scaler
    if len(scalers) > _MOST_SCALERS:
        scalers.popitem(last=False)
    if _has_threads[0]:
        try:
            return scaler.reformat(frame, width, height, pixel_format, interpolation=_SCALER, threads=1)
        except TypeError:
            _has_threads[0] = False
    return scaler.reformat(frame, width, height, pixel_format, interpolation=_SCALER)


def write(image: np.ndarray, out: np.ndarray, order: Order) -> None:
    """Copy an image [h, w, 3] to `out`, [h, w, 3] or [3, h, w]; `out` may be strided."""
    np.copyto(out, image if order == "HWC" else image.transpose(2, 0, 1))


def target_size(out: np.ndarray, order: Order) -> tuple[int, int]:
    """(h, w) of an `out` array for one picture."""
    h, w = (out.shape[0], out.shape[1]) if order == "HWC" else (out.shape[1], out.shape[2])
    return int(h), int(w)


def write_frame(frame: av.VideoFrame, rotation: int, out: np.ndarray, order: Order = "HWC") -> None:
    """Scale, turn clockwise by `rotation` degrees, crop and copy a frame to `out` (uint8, one copy).

    Scaling happens before turning, in the frame's own orientation, and by the frame's own size: a stream
    that changes its resolution still fills `out`.
    """
    target = target_size(out, order)
    if rotation % 180:
        width, height = cover_size(frame.width, frame.height, target)
    else:
        height, width = cover_size(frame.height, frame.width, target)
    image = rgb(frame, height, width)
    if rotation:
        image = np.rot90(image, -(rotation // 90))
    write(centre(image, target), out, order)
