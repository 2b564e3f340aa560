"""Headers of images, read by hand: format, size and orientation. Nothing goes by the file's suffix."""

from __future__ import annotations

import os
import re
import struct
import sys
from pathlib import Path

from libhelix.errors import MediaError
from libhelix.recipe import ImageInfo

MOST_PIXELS = 178_956_970
"""Larger images are refused from the header: a few hundred bytes must not cost gigabytes."""

_HEAD_BYTES = 65536
MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])")
"""Of JPEG; those that stand within a scan are not among them."""


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
    return header(head + rest, codec, path)


def header(body: bytes, codec: str, path: str) -> ImageInfo:
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


def jpeg_segments(body: bytes) -> list[tuple[int, int, int]]:
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
    for marker, begin, _ in jpeg_segments(body):
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC) and begin + 5 <= len(body):
            height, width = struct.unpack_from(">HH", body, begin + 1)
            return width, height
    return None


def _jpeg_orientation(body: bytes) -> int:
    """EXIF's orientation, 1 where there is none or it makes no sense."""
    for marker, begin, end in jpeg_segments(body):
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
