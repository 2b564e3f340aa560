"""What the header of an image says: format, size, orientation, colour profile. No pixel is decoded.

Formats are known by their magic, never by the file's suffix. Only the parts that say something are read, by
seeking: a preview of megabytes in the header of a JPEG is passed over.
"""

from __future__ import annotations

import io
import os
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from libhelix.errors import MediaError
from libhelix.media.geometry import MOST_PIXELS as MOST_PIXELS
from libhelix.media.headers.boxes import Source
from libhelix.recipe import ImageInfo, Item

_HEAD_BYTES = 16384
"""Read at once; most headers are shorter."""
_MOST_SEGMENTS = 65536
_MOST_BYTES = 1 << 20
"""Of a profile or of EXIF: a length that is a lie must not cost memory."""


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
    return probe_range(os.fspath(path), 0, sys.maxsize)


def probe_range(path: str, offset: int, size: int) -> ImageInfo:
    """`probe` for `size` bytes of a file."""
    try:
        with open(path, "rb", buffering=0) as file:
            return read(file, offset, size, path)
    except OSError as e:
        raise MediaError(f"{path}: {e.strerror}; check the path and its permissions") from e


def probe_body(body: bytes, path: str) -> ImageInfo:
    """`probe` for the bytes of a file."""
    return _info(Source(body, 0, len(body), _HEAD_BYTES), path)[0]


def read(file: BinaryIO | io.FileIO, offset: int, size: int, path: str) -> ImageInfo:
    """`probe` for `size` bytes of an open file, called `path` in errors."""
    return _info(Source(file.fileno(), offset, size, _HEAD_BYTES), path)[0]


def profile_of(item: Item) -> str:
    """The name of the colour profile that an image carries: "" where it has none or its pixels are sRGB."""
    with item.open() as file:
        source = Source(file.fileno(), item.offset, item.size, _HEAD_BYTES)
        profile = _info(source, item.path)[1].profile
    if not profile or b"sRGB" in profile or "sRGB".encode("utf-16-be") in profile:
        return ""
    return _profile_name(profile)


class _Said(NamedTuple):
    """What a header says. `profile` is the beginning of the ICC profile."""

    width: int
    height: int
    orientation: int = 1
    profile: bytes = b""


def _info(source: Source, path: str) -> tuple[ImageInfo, _Said]:
    codec = sniff(source.head)
    if codec is None:
        raise MediaError(f"{path}: no image (JPEG, PNG, WebP, GIF or BMP); leave it out or convert it")
    try:
        said = _READERS[codec](source)
    except (struct.error, IndexError):
        said = None
    if said is None or min(said.width, said.height) <= 0:
        raise MediaError(f"{path}: broken {codec} header; fetch the file again or leave it out")
    if said.width * said.height > MOST_PIXELS:
        raise MediaError(
            f"{path}: {said.width}x{said.height} exceeds {MOST_PIXELS} pixels; scale it down first"
        )
    info = ImageInfo(codec=codec, width=said.width, height=said.height, orientation=said.orientation)
    return info, said


# ---- JPEG ---------------------------------------------------------------------------------------------


def _jpeg(source: Source) -> _Said | None:
    size: tuple[int, int] | None = None
    orientation, profile = 1, b""
    for marker, begin, length in _jpeg_segments(source):
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", source.at(begin + 1, 4))
            size = (width, height)
        elif marker == 0xE1 and orientation == 1:
            content = source.at(begin, length)
            if content.startswith(_EXIF):
                orientation = _tiff_orientation(content[len(_EXIF) :])
        elif marker == 0xE2 and not profile:
            content = source.at(begin, length)
            if content.startswith(b"ICC_PROFILE\0"):
                profile = content[14:]
    return None if size is None else _Said(*size, orientation, profile)


def _jpeg_segments(source: Source) -> Iterator[tuple[int, int, int]]:
    """(marker, where its content begins, its length) of what stands before the first scan."""
    at = 2
    for _ in range(_MOST_SEGMENTS):
        head = source.at(at, 4)
        if len(head) < 4 or head[0] != 0xFF or head[1] == 0xDA:
            return
        if head[1] == 0xFF:  # what stands between segments may be filled up
            at += 1
            continue
        length = int.from_bytes(head[2:], "big")
        if length < 2:
            return
        yield head[1], at + 4, length - 2
        at += 2 + length


_EXIF = b"Exif\0\0"


def _tiff_orientation(tiff: bytes) -> int:
    """EXIF's orientation, 1 where there is none or it makes no sense."""
    endian = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if endian is None:
        return 1
    try:
        (offset,) = struct.unpack_from(endian + "I", tiff, 4)
        (count,) = struct.unpack_from(endian + "H", tiff, offset)
        for i in range(count):
            tag, _, _, value = struct.unpack_from(endian + "HHIH", tiff, offset + 2 + 12 * i)
            if tag == 0x0112:
                return int(value) if 1 <= value <= 8 else 1
    except struct.error:
        return 1
    return 1


# ---- PNG ----------------------------------------------------------------------------------------------


def _png(source: Source) -> _Said | None:
    width, height = struct.unpack(">II", source.at(16, 8))
    orientation, profile = 1, b""
    at = 8
    for _ in range(_MOST_SEGMENTS):
        head = source.at(at, 8)
        # What stands behind the pixels is not looked for: that could take a read for every few kilobytes.
        if len(head) < 8 or head[4:] in (b"IDAT", b"IEND"):
            break
        length = int.from_bytes(head[:4], "big")
        if head[4:] == b"eXIf":
            orientation = _tiff_orientation(source.at(at + 8, min(length, _MOST_BYTES)).removeprefix(_EXIF))
        elif head[4:] == b"iCCP" and not profile:  # inflating each of thousands would take minutes
            profile = _png_profile(source.at(at + 8, min(length, _MOST_BYTES)))
        at += 12 + length
    return _Said(width, height, orientation, profile)


def _png_profile(content: bytes) -> bytes:
    """The profile of an iCCP chunk: name, 0, 0, deflated."""
    try:
        return zlib.decompressobj().decompress(content.split(b"\0", 1)[1][1:], _MOST_BYTES)
    except (zlib.error, IndexError):
        return b""


# ---- WebP ---------------------------------------------------------------------------------------------


def _webp(source: Source) -> _Said | None:
    head = source.at(0, 30)
    kind = head[12:16]
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", head, 21)
        return _Said((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", head, 26)
        return _Said(width & 0x3FFF, height & 0x3FFF)
    if kind != b"VP8X" or len(head) < 30:
        return None
    said = _Said(int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1)
    if head[20] & 0x28:  # it has a profile, or EXIF, which follows the pixels
        for name, begin, length in webp_chunks(source):
            if name == b"EXIF" and head[20] & 0x08:
                content = source.at(begin, min(length, _MOST_BYTES)).removeprefix(_EXIF)
                return said._replace(orientation=_tiff_orientation(content))
            if name == b"ICCP":
                said = said._replace(profile=source.at(begin, min(length, _MOST_BYTES)))
    return said


def webp_chunks(source: Source) -> Iterator[tuple[bytes, int, int]]:
    """(name, where its content begins, its length) of the chunks of a WebP file."""
    at = 12
    for _ in range(_MOST_SEGMENTS):
        head = source.at(at, 8)
        if len(head) < 8:
            return
        length = int.from_bytes(head[4:], "little")
        yield head[:4], at + 8, length
        at += 8 + length + (length & 1)


# ---- GIF, BMP -----------------------------------------------------------------------------------------


def _gif(source: Source) -> _Said:
    return _Said(*struct.unpack("<HH", source.at(6, 4)))


def _bmp(source: Source) -> _Said:
    head = source.at(0, 26)
    width, height = struct.unpack_from("<HH" if head[14] == 12 else "<ii", head, 18)
    return _Said(width, abs(height))


_READERS = {"jpeg": _jpeg, "png": _png, "gif": _gif, "bmp": _bmp, "webp": _webp}


def _profile_name(profile: bytes) -> str:
    """What an ICC profile calls itself (its tag "desc", in either version of the format)."""
    try:
        (count,) = struct.unpack_from(">I", profile, 128)
        for i in range(min(count, 100)):
            tag, offset, size = struct.unpack_from(">4sII", profile, 132 + 12 * i)
            if tag != b"desc":
                continue
            text = profile[offset : offset + size]
            if text[:4] == b"mluc":
                length, begin = struct.unpack_from(">II", text, 20)
                return text[begin : begin + length].decode("utf-16-be", "replace").strip("\0 ") or "unnamed"
            (length,) = struct.unpack_from(">I", text, 8)
            return text[12 : 12 + length].decode("latin-1").strip("\0 ") or "unnamed"
    except struct.error:
        pass
    return "unnamed"
