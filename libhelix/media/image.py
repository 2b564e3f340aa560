"""Images: headers read by hand, pixels by FFmpeg's decoders, nothing by the file's suffix.

Orientation is applied, transparency is laid on white, grey becomes three channels, 16-bit samples keep
their upper byte. Truncated files are refused instead of being filled with whatever the decoder left.
"""

from __future__ import annotations

import io
import re
from typing import Any

import av
import av.error
import numpy as np

from libhelix.errors import MediaError
from libhelix.media import pixels
from libhelix.media.container import reason
from libhelix.media.headers.image import MARKER, header, jpeg_segments
from libhelix.media.headers.image import MOST_PIXELS as MOST_PIXELS
from libhelix.media.headers.image import probe as probe
from libhelix.media.headers.image import probe_range as probe_range
from libhelix.media.headers.image import sniff as sniff
from libhelix.recipe import Item

_CODECS = {"jpeg": "mjpeg", "png": "png", "webp": "webp", "bmp": "bmp"}


def decode(item: Item, out: np.ndarray, order: pixels.Order = "HWC") -> None:
    """Write the image, cropped to fill, to `out`: uint8 [h, w, 3] or [3, h, w], possibly strided.

    Raises MediaError where the file changed, is truncated, or cannot be decoded without error.
    """
    with item.open() as file:
        body = file.read(item.size)
    codec = sniff(body)
    if codec is None:
        raise MediaError(f"{item.path}: no image (JPEG, PNG, WebP, GIF or BMP); leave it out or convert it")
    info = header(body, codec, item.path)
    frame = _flatten(_picture(body, codec, item.path))
    target = pixels.target_size(out, order)
    if info.orientation >= 5:
        width, height = pixels.cover_size(frame.width, frame.height, target)
    else:
        height, width = pixels.cover_size(frame.height, frame.width, target)
    image = upright(pixels.rgb(frame, height, width), info.orientation)
    pixels.write(pixels.centre(image, target), out, order)


def upright(image: np.ndarray, orientation: int) -> np.ndarray:
    """The image [h, w, C] as it is meant to be seen, for EXIF's orientation 1..8; a view."""
    if orientation >= 5:
        image = image.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    return image


def _picture(body: bytes, codec: str, path: str) -> av.VideoFrame:
    if codec == "jpeg":
        end = _jpeg_end(body)
        if end is None:
            raise MediaError(f"{path}: truncated JPEG (no end marker); fetch it again or leave it out")
        # Phones append a film to the picture, which a strict decoder takes for damage.
        body = body[:end]
    if codec == "gif" and not _gif_has_picture(body):
        raise MediaError(f"{path}: truncated GIF; fetch it again or leave it out")
    try:
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
    frames = context.decode(av.Packet(body))
    return list(frames or context.decode(None))


def _decode_gif(body: bytes) -> list[av.VideoFrame]:
    with av.open(io.BytesIO(body), format="gif", metadata_errors="replace") as container:
        container.streams.video[0].codec_context.options = {"err_detect": "explode"}
        return [next(container.decode(video=0))] if container.streams.video else []


def _flatten(frame: av.VideoFrame) -> av.VideoFrame:
    """The frame without transparency (laid on white) and with 8-bit samples."""
    name = frame.format.name
    wide = re.fullmatch(r"(gray|ya|rgb|rgba)(16|48|64)(be|le)", name)
    if wide is None and not any(c.is_alpha for c in frame.format.components) and name != "pal8":
        return frame
    if wide is None:
        image = pixels.rgb(frame, frame.height, frame.width, "rgba")
    else:
        image = _upper_byte(frame, {"gray": 1, "ya": 2, "rgb": 3, "rgba": 4}[wide[1]], wide[3])
    if image.shape[2] in (2, 4):
        alpha = image[:, :, -1:].astype(np.uint16)
        colour = image[:, :, :-1].astype(np.uint16)
        image = ((colour * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    if image.shape[2] == 1:
        image = np.repeat(image, 3, axis=2)
    return av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")


def _upper_byte(frame: av.VideoFrame, channels: int, endian: str) -> np.ndarray:
    # libswscale would dither or round; v >> 8 is the rule people can check.
    rows = pixels.rows(frame)[:, : frame.width * channels * 2]
    return rows.reshape(frame.height, frame.width, channels, 2)[..., 0 if endian == "be" else 1]


def _jpeg_end(body: bytes) -> int | None:
    """Where the picture ends, behind the end marker of its entropy-coded data; None without one."""
    segments = jpeg_segments(body)
    if not segments or segments[-1][0] != 0xDA:
        return None
    at = segments[-1][2]
    while (match := MARKER.search(body, at)) is not None:
        if match[1] == b"\xd9":
            return match.end()
        # Between the scans of a progressive file stand tables: a segment's content is no marker.
        at = match.end() + int.from_bytes(body[match.end() : match.end() + 2], "big")
    return None


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
