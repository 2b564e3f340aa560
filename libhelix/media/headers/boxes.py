"""Boxes of ISO media files (mp4, mov), and reads that never leave the file.

A header comes from whoever made the file: every length is checked against what holds it, and what does not
fit to the byte is left to the demuxer.
"""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from typing import NamedTuple

_MOST_MOVIE_BYTES = 64 << 20
"""Of a movie header: ten hours at 60 frames per second have half of it. Longer ones are scanned."""
MOST_BOXES = 1000
"""Side by side: each costs time and memory."""
_WINDOW = 1024
"""Bytes of a sample that are read at once: usually all that is looked at."""
_PLAIN = frozenset({b"ftyp", b"mdat", b"free", b"skip", b"wide", b"pnot", b"PICT", b"uuid", b"udta"})
"""What may lie beside the movie header. Fragments and their indexes are not among it."""


class Unsure(Exception):
    """The header does not say for sure what a demuxer would find; that is asked instead."""


class Source:
    """A range of an open file, or of bytes, that is read where it is asked for; its first `ahead` bytes, the
    `head`, at once."""

    def __init__(self, data: int | bytes, offset: int, size: int, ahead: int = 0) -> None:
        self._data = data
        self._offset = offset
        self.size = size
        self.head = b""
        self.head = self.at(0, ahead)

    def read(self, at: int, count: int) -> bytes:
        """Up to `count` bytes, fewer at the end; raises Unsure where none can be there."""
        if at < 0 or min(count, self.size - at) < 0:
            raise Unsure(f"byte {at} of {self.size}")
        return self.at(at, count)

    def at(self, begin: int, count: int) -> bytes:
        """Up to `count` bytes, fewer at the end, and none behind it."""
        if begin + count <= len(self.head):
            return self.head[begin : begin + count]
        count = max(0, min(count, self.size - begin))
        begin += self._offset
        if isinstance(self._data, bytes):
            return self._data[begin : begin + count]
        return os.pread(self._data, count, begin)


class Sample:
    """Coded bytes of one sample, read as far as somebody looks."""

    def __init__(self, source: Source, at: int, size: int) -> None:
        self._source = source
        self._at = at
        self.size = size
        self._from = 0
        self._window = b""

    def read(self, at: int, count: int) -> bytes:
        """`count` bytes from there on, fewer at the end of the sample."""
        count = min(count, self.size - at)
        end = at + count - self._from
        if at < self._from or end > len(self._window):
            self._window = self._source.read(self._at + at, max(count, min(_WINDOW, self.size - at)))
            self._from, end = at, count
        return self._window[at - self._from : end]


class Box(NamedTuple):
    """A box without its header: [begin, end) of the bytes that hold it."""

    name: bytes
    begin: int
    end: int


def movie_header(source: Source) -> tuple[bytes, Box]:
    """The content of the one moov of a file, wherever it lies, and where its one mdat is, perhaps cut off.

    Raises Unsure for any other kind of file.
    """
    at, seen = 0, 0
    found: bytes | None = None
    media: Box | None = None
    while at + 8 <= source.size and (found is None or media is None):
        head = source.read(at, 16)
        size, name, begin = int.from_bytes(head[:4], "big"), head[4:8], at + 8
        if size == 1:
            size, begin = int.from_bytes(head[8:16], "big"), at + 16
        elif size == 0:
            size = source.size - at
        seen += 1
        if at + size < begin or seen > MOST_BOXES or (at == 0) != (name == b"ftyp"):
            raise Unsure(f"{name!r} of {size} bytes")
        if name == b"moov":
            if found is not None or at + size > source.size or size > _MOST_MOVIE_BYTES:
                raise Unsure("moov does not fit")
            found = source.read(begin, at + size - begin)
            if len(found) != at + size - begin:
                raise Unsure("the file became shorter")
        elif name not in _PLAIN:
            raise Unsure(f"{name!r} beside moov")
        if name == b"mdat" and at + size > begin:
            if media is not None:
                raise Unsure("several mdat")
            media = Box(name, begin, at + size)
        at += size
    if found is None or media is None:
        raise Unsure("no moov, or no mdat")
    return found, media


def children(body: bytes, begin: int, end: int, known: Container[bytes]) -> list[Box]:
    """The boxes that fill [begin, end) to the byte. Raises Unsure for others than `known` ones."""
    found: list[Box] = []
    while begin < end:
        size = int.from_bytes(body[begin : begin + 4], "big")
        name = body[begin + 4 : begin + 8]
        if begin + 4 == end and not size:
            break  # QuickTime ends some lists with a zero
        if size < 8 or begin + size > end or name not in known or len(found) == MOST_BOXES:
            raise Unsure(f"{name!r} of {size} bytes")
        found.append(Box(name, begin + 8, begin + size))
        begin += size
    return found


def only(boxes: Sequence[Box], name: bytes) -> Box:
    """The one box of that name; raises Unsure where there are none or several."""
    box = maybe(boxes, name)
    if box is None:
        raise Unsure(f"no {name!r}")
    return box


def maybe(boxes: Sequence[Box], name: bytes) -> Box | None:
    """The one box of that name, or None; raises Unsure where there are several."""
    found = [box for box in boxes if box.name == name]
    if len(found) > 1:
        raise Unsure(f"{len(found)} times {name!r}")
    return found[0] if found else None
