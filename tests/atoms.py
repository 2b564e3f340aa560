"""Boxes of mp4 files, changed by hand. Their moov must be at the end, so that offsets stay as they are."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path


def box(name: str, content: bytes) -> bytes:
    return (8 + len(content)).to_bytes(4, "big") + name.encode() + content


def inside(body: bytes, begin: int, end: int) -> list[tuple[str, int, int]]:
    """(name, begin, end) of the boxes in a stretch, with their headers."""
    found = []
    while begin + 8 <= end:
        size = int.from_bytes(body[begin : begin + 4], "big")
        if size == 1:
            size = int.from_bytes(body[begin + 8 : begin + 16], "big")
        found.append((body[begin + 4 : begin + 8].decode("latin-1"), begin, begin + size))
        begin += size
    return found


def find(body: bytes, path: str, track: int = 0) -> list[tuple[int, int]]:
    """[begin, end) of a box and of all above it, outermost first; `track`: which of several trak."""
    begin, end, found = 0, len(body), []
    for name in path.split("/"):
        here = [(b, e) for n, b, e in inside(body, begin, end) if n == name]
        at = here[track if name == "trak" else 0]
        found.append(at)
        begin, end = at[0] + 8, at[1]
    return found


def with_box(body: bytes, path: str, content: bytes, track: int = 0) -> bytes:
    """The file with the content of a box replaced; the box is added, in front, where there is none."""
    above, _, name = path.rpartition("/")
    try:
        places = find(body, path, track)
        begin, end = places.pop()
    except IndexError:
        places = find(body, above, track)
        begin = end = places[-1][0] + 8
    new = box(name, content)
    changed = bytearray(body[:begin] + new + body[end:])
    for at, _ in places:
        size = int.from_bytes(changed[at : at + 4], "big") + len(new) - (end - begin)
        changed[at : at + 4] = size.to_bytes(4, "big")
    return bytes(changed)


def content_of(body: bytes, path: str, track: int = 0) -> bytes:
    begin, end = find(body, path, track)[-1]
    return body[begin + 8 : end]


def edit_list(rows: Sequence[tuple[int, int]], wide: bool = False) -> bytes:
    """The content of an edts, of (duration, media time)."""
    form = ">QqI" if wide else ">IiI"
    packed = b"".join(struct.pack(form, d, t, 0x10000) for d, t in rows)
    return box("elst", bytes([wide, 0, 0, 0]) + len(rows).to_bytes(4, "big") + packed)


def patch(path: Path, where: str, content: bytes, track: int = 0) -> Path:
    """Replace the content of a box of a file."""
    path.write_bytes(with_box(path.read_bytes(), where, content, track))
    return path
