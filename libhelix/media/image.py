"""Images: headers read by hand, pixels by FFmpeg's decoders, nothing by the file's suffix.

Orientation is applied, transparency is laid on white, grey becomes three channels, 16-bit samples keep
their upper byte. Truncated files are refused instead of being filled with whatever the decoder left.
"""

from __future__ import annotations

import io
import os
import re
import struct
import sys
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np

from libhelix.errors import MediaError
from libhelix.media import pixels
from libhelix.media.container import reason
from libhelix.recipe import ImageInfo, Item

MOST_PIXELS = 178_956_970
"""Larger images are refused from the header: a few hundred bytes must not cost gigabytes."""

_HEAD_BYTES = 65536
_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])")
_CODECS = {"jpeg": "mjpeg", "png": "png", "webp": "webp", "bmp": "bmp"}


def sniff(head: bytes) -> str | None:
    """The image format whose magic these first bytes carry, or None."""
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    # "BM" alone is two letters; the header size that follows is one of a few.
    if head[:2] == b"BM" and head[14:18] in (b"\x0c\0\0\0", b"\x28\0\0\0", b"\x6c\0\0\0", b"\x7c\0\0\0"):
        return "bmp"
    return None


def probe(path: str | Path) -> ImageInfo:
    """Size and orientation of an image, from its header alone.

    Raises MediaError for what is no image, has a broken header, or has more than 178 million pixels.
    """
    path = os.fspath(path)
    return probe_range(path, 0, sys.maxsize)


def probe_range(path: str, offset: int, size: int) -> ImageInfo:
    """`probe` for `size` bytes of a file."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            head = file.read(min(size, _HEAD_BYTES))
            codec = sniff(head)
            # The size of a JPEG stands behind its metadata, which may hold a whole preview.
            rest = file.read(size - len(head)) if codec == "jpeg" and _jpeg_size(head) is None else b""
    except OSError as e:
        raise MediaError(f"{path}: {e.strerror}; check the path and its permissions") from e
    if codec is None:
        raise MediaError(f"{path}: no image (JPEG, PNG, WebP, GIF or BMP); leave it out or convert it")
    return _header(head + rest, codec, path)


def _header(body: bytes, codec: str, path: str) -> ImageInfo:
    try:
        size = _SIZES[codec](body)
    except (struct.error, IndexError):
        size = None
    if size is None or min(size) <= 0:
        raise MediaError(f"{path}: broken {codec} header; fetch the file again or leave it out")
    width, height = size
    if width * height > MOST_PIXELS:
        raise MediaError(f"{path}: {width}x{height} exceeds {MOST_PIXELS} pixels; scale it down first")
    orientation = _jpeg_orientation(body) if codec == "jpeg" else 1
    return ImageInfo(codec=codec, width=width, height=height, orientation=orientation)


def decode(item: Item, out: np.ndarray, order: pixels.Order = "HWC") -> None:
    """Write the image, cropped to fill, to `out`: uint8 [h, w, 3] or [3, h, w], possibly strided.

    Raises MediaError where the file changed, is truncated, or cannot be decoded without error.
    """
    with item.open() as file:
        body = file.read(item.size)
    codec = sniff(body)
    if codec is None:
        raise MediaError(f"{item.path}: no image (JPEG, PNG, WebP, GIF or BMP); leave it out or convert it")
    info = _header(body, codec, item.path)
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


def _jpeg_segments(body: bytes) -> list[tuple[int, int, int]]:
    """(marker, begin, end) of every header segment up to and including the first scan's header."""
    found = []
    at = 2
    while at + 4 <= len(body) and body[at] == 0xFF:
        marker = body[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        length = int.from_bytes(body[at + 2 : at + 4], "big")
        found.append((marker, at + 4, at + 2 + length))
        if marker == 0xDA:
            break
        at += 2 + length
    return found


def _jpeg_size(body: bytes) -> tuple[int, int] | None:
    for marker, begin, _ in _jpeg_segments(body):
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC) and begin + 5 <= len(body):
            height, width = struct.unpack_from(">HH", body, begin + 1)
            return width, height
    return None


def _jpeg_end(body: bytes) -> int | None:
    """Where the picture ends, behind the end marker of its entropy-coded data; None without one."""
    segments = _jpeg_segments(body)
    if not segments or segments[-1][0] != 0xDA:
        return None
    at = segments[-1][2]
    while (match := _MARKER.search(body, at)) is not None:
        if match[1] == b"\xd9":
            return match.end()
        # Between the scans of a progressive file stand tables: a segment's content is no marker.
        at = match.end() + int.from_bytes(body[match.end() : match.end() + 2], "big")
    return None


def _jpeg_orientation(body: bytes) -> int:
    """EXIF's orientation, 1 where there is none or it makes no sense."""
    for marker, begin, end in _jpeg_segments(body):
        if marker == 0xE1 and body[begin : begin + 6] == b"Exif\0\0":
            try:
                return _tiff_orientation(body[begin + 6 : end])
            except struct.error:
                return 1
    return 1


def _tiff_orientation(tiff: bytes) -> int:
    endian = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if endian is None:
        return 1
    (offset,) = struct.unpack_from(endian + "I", tiff, 4)
    (count,) = struct.unpack_from(endian + "H", tiff, offset)
    for i in range(count):
        tag, _, _, value = struct.unpack_from(endian + "HHIH", tiff, offset + 2 + 12 * i)
        if tag == 0x0112:
            return int(value) if 1 <= value <= 8 else 1
    return 1


def _png_size(body: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from(">II", body, 16)
    return width, height


def _gif_size(body: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", body, 6)
    return width, height


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


def _bmp_size(body: bytes) -> tuple[int, int]:
    if body[14] == 12:
        width, height = struct.unpack_from("<HH", body, 18)
    else:
        width, height = struct.unpack_from("<ii", body, 18)
    return width, abs(height)


def _webp_size(body: bytes) -> tuple[int, int] | None:
    kind = body[12:16]
    if kind == b"VP8X":
        return int.from_bytes(body[24:27], "little") + 1, int.from_bytes(body[27:30], "little") + 1
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", body, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", body, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


_SIZES = {"jpeg": _jpeg_size, "png": _png_size, "gif": _gif_size, "bmp": _bmp_size, "webp": _webp_size}
