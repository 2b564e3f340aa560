"""Pixels of a decoded frame, made to fit a target, written once at their final address.

There is one route from a frame to RGB (libswscale, area averaging with full chroma) and it is always taken:
other routes differ in bits, and a sample must not depend on who decoded it. Scaled pictures come as three
planes, which takes half of what packed pixels take, also where they are packed afterwards.

Matrix and range are those the frame is tagged with. Without tags they are BT.601 and limited, whatever the
size, as in FFmpeg and all that is made of it (players guess BT.709 for large pictures); grey is full range.
Primaries and transfer curves are not converted.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from functools import lru_cache
from typing import Any, Literal

import av
import av.error
import numpy as np
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter

from libhelix.media import geometry
from libhelix.media.container import reason
from libhelix.media.geometry import Fit, Size, Unfit
from libhelix.recipe import VideoInfo, shown_size

Order = Literal["HWC", "CHW"]

_SWS_AREA = 0x20
_SWS_FULL_CHR_H_INT = 0x2000
# PyAV before 17 has no name for the second flag, but every version passes a plain integer on to libswscale.
_SCALER = _SWS_AREA | _SWS_FULL_CHR_H_INT

_MATRICES = frozenset({1, 4, 5, 6, 7, 9})
"""Of AVColorSpace: BT.709, FCC, BT.601 of 625 and of 525 lines, SMPTE 240M, BT.2020."""
_UNSAID = frozenset({0, 2, 3})
"""RGB, which YUV is not; unspecified; and what VP9 calls reserved."""
_LIMITED = 1  # AVCOL_RANGE_MPEG
_FROM_LIMITED = np.clip((np.arange(256) - 16) * 255 / 219 + 0.5, 0, 255).astype(np.uint8)

_MOST_SCALERS = 32
_local = threading.local()
_FOLLOWS_TAGS = int(av.__version__.split(".")[0]) >= 17
"""Whether `reformat` follows a frame's tags. Since then it also takes `threads`, and starts some where it is
not told."""


def write_frame(
    frame: av.VideoFrame,
    info: VideoInfo,
    out: np.ndarray,
    order: Order = "HWC",
    *,
    fit: Fit = "crop",
    grey: int = 0,
) -> None:
    """`write_picture` for a frame of this video, by the frame's own size: a stream that changes its
    resolution still fills `out`."""
    shown = shown_size(frame.height, frame.width, info.rotation, info.sar)
    write_picture(frame, out, order, shown=shown, orientation=info.orientation, fit=fit, grey=grey)


def write_picture(
    frame: av.VideoFrame,
    out: np.ndarray,
    order: Order = "HWC",
    *,
    shown: Size | None = None,
    orientation: int = 1,
    fit: Fit = "crop",
    grey: int = 0,
) -> None:
    """Scale, turn upright by EXIF's `orientation`, and copy a frame to `out`: uint8 [h, w, 3] or [3, h, w].

    `shown` is its size as shown; by default its own, turned. Scaling happens before turning, in the frame's
    own orientation. Transparency is laid on white. Raises Unfit where it cannot be converted.
    """
    out = channels_last(out, order)
    shown = shown or geometry.turned((frame.height, frame.width), orientation)
    place = geometry.placed(shown, out.shape[:2], fit)
    height, width = geometry.turned(place.scaled, orientation)
    parts = _rgb(flat(frame), height, width, planes=out.strides[2] != 1)
    for at, part in enumerate(parts):
        channels = out[:, :, at : at + part.shape[2]]
        geometry.put(geometry.upright(part, orientation), channels, place, grey)


def channels_last(out: np.ndarray, order: Order) -> np.ndarray:
    """A target as [h, w, 3]; a view."""
    return out if order == "HWC" else out.transpose(1, 2, 0)


def rgb(frame: av.VideoFrame, height: int, width: int) -> np.ndarray:
    """The frame as uint8 [height, width, 3]; a view of a frame of its own, or an array."""
    parts = _rgb(frame, height, width, planes=False)
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)


def _rgb(frame: av.VideoFrame, height: int, width: int, *, planes: bool) -> list[np.ndarray]:
    """The frame as [height, width, 3], or as three planes [height, width, 1]; views of a frame of their own.

    What libswscale converts without its scaler has the same bits either way, and comes as it is wanted.
    """
    if _is_special(frame, height, width) and not (planes and _in_planes(frame, width)):
        parts = [_packed(_reformat(frame, height, width, "rgb24"), 3)]
    else:
        scaled = _reformat(frame, height, width, "gbrp")
        parts = [rows(scaled, plane)[:, :width, None] for plane in (2, 0, 1)]
    if frame.color_range == _LIMITED and _is_grey(frame.format.name):
        # libswscale takes all grey for full range, whatever its tag.
        return [_FROM_LIMITED[part] for part in parts]
    return parts


def _is_special(frame: av.VideoFrame, height: int, width: int) -> bool:
    """Whether libswscale converts the frame to packed RGB of this size without its scaler."""
    if (height, width) != (frame.height, frame.width):
        return False
    return _is_exact(frame.format.name) or (_is_subsampled(frame.format.name) and height % 2 == 0)


def _in_planes(frame: av.VideoFrame, width: int) -> bool:
    # FFmpeg 8 leaves the last columns of planes unwritten where they do not fill a block of eight.
    return _is_subsampled(frame.format.name) and width % 16 == 0


def _is_subsampled(name: str) -> bool:
    return name in ("yuv420p", "yuvj420p", "yuv422p", "yuvj422p")


@lru_cache(maxsize=64)
def _is_exact(name: str) -> bool:
    """Whether pixels of a format become RGB by being moved."""
    return name == "gray" or (_is_rgb(name) and all(c.bits == 8 for c in av.VideoFormat(name).components))


@lru_cache(maxsize=64)
def _is_rgb(name: str) -> bool:
    return name == "pal8" or av.VideoFormat(name).is_rgb


def _is_grey(name: str) -> bool:
    return name.startswith(("gray", "mono", "ya8", "ya16"))


def _packed(frame: av.VideoFrame, channels: int) -> np.ndarray:
    return rows(frame)[:, : frame.width * channels].reshape(frame.height, frame.width, channels)


def rows(frame: av.VideoFrame, plane: int = 0) -> np.ndarray:
    """The bytes of a plane as high as the frame, [height, bytes per line]; a view that keeps it alive."""
    values: Any = frame.planes[plane]
    line, height = values.line_size, frame.height
    return np.frombuffer(values, np.uint8)[: line * height].reshape(height, line)


def wrap(image: np.ndarray) -> av.VideoFrame:
    """An image [h, w, 3] as a frame over the same memory."""
    return av.VideoFrame.from_numpy_buffer(np.ascontiguousarray(image), format="rgb24")


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
    try:
        return scaler.reformat(
            frame, width, height, pixel_format, interpolation=_SCALER, **_colours_of(frame)
        )
    except av.error.FFmpegError as e:
        raise _unfit(frame, reason(e)) from e


def _colours_of(frame: av.VideoFrame) -> dict[str, Any]:
    """What `reformat` has to be told about a frame's matrix and range, and of threads."""
    name, matrix = frame.format.name, int(frame.colorspace)
    if _is_grey(name) or _is_rgb(name):
        return {"threads": 1} if _FOLLOWS_TAGS else {}
    if matrix in _UNSAID:
        matrix = int(Colorspace.ITU601)
    if matrix not in _MATRICES:
        raise _unfit(frame, "no such formula")
    if _FOLLOWS_TAGS:
        said = int(frame.colorspace) == matrix
        return {"threads": 1} if said else {"threads": 1, "src_colorspace": Colorspace.ITU601}
    full = frame.color_range == ColorRange.JPEG or name.startswith("yuvj")
    return {
        # By the number 5 it would mean: as before.
        "src_colorspace": 6 if matrix == 5 else matrix,
        # Unused on the way to RGB; but it must be another for the first to be looked at.
        "dst_colorspace": Colorspace.ITU709 if matrix != Colorspace.ITU709 else Colorspace.ITU601,
        "src_color_range": ColorRange.JPEG if full else ColorRange.MPEG,
    }


def _unfit(frame: av.VideoFrame, why: str) -> Unfit:
    return Unfit(
        f"its pixels ({frame.format.name}, colour matrix {int(frame.colorspace)}) cannot be converted to RGB "
        f"({why}); encode it again as yuv420p with BT.709"
    )


# ---- what has transparency, or more than 8 bits ------------------------------------------------------


def flat(frame: av.VideoFrame) -> av.VideoFrame:
    """The frame without transparency (laid on white); of grey and RGB samples of 16 bits the upper byte."""
    name = frame.format.name
    wide = _wide(name)
    if wide is not None:
        image = _upper_byte(frame, *wide)
        if image.shape[2] == 1 and frame.color_range == _LIMITED:
            image = _FROM_LIMITED[image]
    elif _has_alpha(name):
        image = _packed(_reformat(frame, frame.height, frame.width, "rgba"), 4)
        if _is_exact(name) and image[:, :, 3].min() == 255:
            return frame
    else:
        return frame
    if image.shape[2] in (2, 4):
        image = on_white(image)
    if image.shape[2] == 1:
        image = np.repeat(image, 3, axis=2)
    return wrap(image)


def on_white(image: np.ndarray) -> np.ndarray:
    """An image whose last channel is its opacity, laid on white: (c * a + 255 * (255 - a)) / 255, rounded."""
    alpha = image[:, :, -1:].astype(np.uint16)
    colour = image[:, :, :-1].astype(np.uint16)
    return ((colour * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


@lru_cache(maxsize=64)
def _has_alpha(name: str) -> bool:
    return name == "pal8" or any(c.is_alpha for c in av.VideoFormat(name).components)


@lru_cache(maxsize=64)
def _wide(name: str) -> tuple[int, str] | None:
    """(channels, byte order) of one-plane samples of 16 bits."""
    found = re.fullmatch(r"(gray|ya|rgb|rgba)(16|48|64)(be|le)", name)
    return ({"gray": 1, "ya": 2, "rgb": 3, "rgba": 4}[found[1]], found[3]) if found else None


def _upper_byte(frame: av.VideoFrame, channels: int, endian: str) -> np.ndarray:
    # libswscale would dither or round; v >> 8 is the rule people can check.
    lines = rows(frame)[:, : frame.width * channels * 2]
    return lines.reshape(frame.height, frame.width, channels, 2)[..., 0 if endian == "be" else 1]
