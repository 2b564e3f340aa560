"""Images: pixels by libjpeg-turbo (JPEG) and FFmpeg's decoders (the rest), nothing by the file's suffix.

Orientation is applied, transparency is laid on white, grey becomes three channels, 16-bit samples keep
their upper byte; of an animation the first picture is taken, and colour profiles are not applied. Truncated
files are refused instead of being filled with whatever the decoder left.
"""

from __future__ import annotations

import io
import struct
from typing import Any

import av
import av.error
import numpy as np

from libhelix.errors import MediaError
from libhelix.media import geometry, jpeg, pixels
from libhelix.media.container import reason
from libhelix.media.geometry import Fit, Size, Unfit
from libhelix.media.geometry import upright as upright
from libhelix.media.headers.boxes import Source
from libhelix.media.headers.image import probe as probe
from libhelix.media.headers.image import probe_body, webp_chunks
from libhelix.media.headers.image import probe_range as probe_range
from libhelix.media.headers.image import sniff as sniff
from libhelix.recipe import ImageInfo, Item

_UNCOMPRESSED = b"\0\0\0\0"
_CODECS = {"png": "png", "webp": "webp", "bmp": "bmp"}


def decode(
    item: Item, out: np.ndarray, order: pixels.Order = "HWC", *, fit: Fit = "crop", grey: int = 0
) -> None:
    """Write the image to `out`: uint8 [h, w, 3] or [3, h, w], possibly strided.

    Raises MediaError where the file changed, is truncated, or cannot be decoded without error.
    """
    with item.open() as file:
        body = file.read(item.size)
    info = probe_body(body, item.path)
    target = pixels.channels_last(out, order)
    try:
        if info.codec == "jpeg":
            _decode_jpeg(body, info, item.path, target, fit, grey)
            return
        frame = _picture(body, info.codec, item.path)
        pixels.write_picture(frame, target, orientation=info.orientation, fit=fit, grey=grey)
    except Unfit as e:
        raise MediaError(f"{item.path}: {e}") from e


def _decode_jpeg(body: bytes, info: ImageInfo, path: str, out: np.ndarray, fit: Fit, grey: int) -> None:
    shown, target = info.display_size, out.shape[:2]
    if shown == target and info.orientation == 1 and out.flags.c_contiguous:
        jpeg.decode(body, path, out)
        return
    scaled = geometry.turned(geometry.placed(shown, target, fit).scaled, info.orientation)
    shrink = geometry.shrink_of((info.height, info.width), scaled)
    frame = pixels.wrap(jpeg.decode(body, path, shrink=shrink))
    pixels.write_picture(frame, out, shown=shown, orientation=info.orientation, fit=fit, grey=grey)


def _picture(body: bytes, codec: str, path: str) -> av.VideoFrame:
    if codec == "gif" and not _gif_has_picture(body):
        raise MediaError(f"{path}: truncated GIF; fetch it again or leave it out")
    try:
        if codec == "webp" and (first := _first_of_animation(body)) is not None:
            return _on_canvas(*first)
        frames = _decode_gif(body) if codec == "gif" else _decode_still(body, _CODECS[codec])
    except (av.error.FFmpegError, ValueError) as e:
        raise MediaError(f"{path}: broken {codec} ({reason(e)}); fetch it again or leave it out") from e
    if not frames or frames[0].is_corrupt:
        raise MediaError(f"{path}: truncated or broken {codec}; fetch it again or leave it out")
    return frames[0]


def _decode_still(body: bytes, codec: str) -> list[av.VideoFrame]:
    context: Any = av.CodecContext.create(codec, "r")
    context.options = {"err_detect": "explode"}
    context.thread_count = 1
    frames = list(context.decode(av.Packet(body)) or context.decode(None))
    if codec == "bmp" and frames and frames[0].format.name == "bgra" and body[30:34] == _UNCOMPRESSED:
        return [frames[0].reformat(format="bgr24")]  # the fourth byte means nothing then, and is mostly 0
    return frames


# ---- WebP ---------------------------------------------------------------------------------------------


def _first_of_animation(body: bytes) -> tuple[Size, tuple[int, int], bytes] | None:
    """(size of the canvas, (top, left), a still WebP) of an animation's first picture; None for a still."""
    if body[12:16] != b"VP8X" or not body[20] & 0x02:
        return None
    canvas = int.from_bytes(body[27:30], "little") + 1, int.from_bytes(body[24:27], "little") + 1
    for name, begin, length in webp_chunks(Source(body, 0, len(body))):
        if name == b"ANMF" and length > 16 and begin + length <= len(body):
            left, top = (2 * int.from_bytes(body[begin + i : begin + i + 3], "little") for i in (0, 3))
            size = body[begin + 6 : begin + 12]
            content = body[begin + 16 : begin + length]
            if content[:4] == b"ALPH":
                content = b"VP8X" + struct.pack("<I", 10) + b"\x10\0\0\0" + size + content
            riff = b"RIFF" + struct.pack("<I", 4 + len(content)) + b"WEBP"
            return canvas, (top, left), riff + content
    raise ValueError("an animation without a picture")


def _on_canvas(canvas: Size, at: tuple[int, int], still: bytes) -> av.VideoFrame:
    frames = _decode_still(still, "webp")
    if not frames:
        raise ValueError("its first picture is broken")
    frame = pixels.flat(frames[0])
    height, width = frame.height, frame.width
    if (height, width) == canvas and at == (0, 0):
        return frame
    image = np.full((*canvas, 3), 255, np.uint8)
    image[at[0] : at[0] + height, at[1] : at[1] + width] = pixels.rgb(frame, height, width)
    return pixels.wrap(image)


# ---- GIF ----------------------------------------------------------------------------------------------


def _decode_gif(body: bytes) -> list[av.VideoFrame]:
    with av.open(io.BytesIO(body), format="gif", metadata_errors="replace") as container:
        container.streams.video[0].codec_context.options = {"err_detect": "explode"}
        return [next(container.decode(video=0))] if container.streams.video else []


def _gif_has_picture(body: bytes) -> bool:
    """Whether the first picture's data reach their terminator; the decoder does not mind if not."""

    def table(flags: int) -> int:
        return 3 << (flags & 7) + 1 if flags & 0x80 else 0

    try:
        at = 13 + table(body[10])
        while True:
            picture = body[at] == 0x2C
            if not picture and body[at] != 0x21:
                return False
            # An extension has a label, a picture its place, colours and code size; then both have blocks.
            at += 11 + table(body[at + 9]) if picture else 2
            while body[at]:
                at += 1 + body[at]
            at += 1
            if picture:
                return True
    except IndexError:
        return False
