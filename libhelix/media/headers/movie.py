"""The movie header of mp4 and mov: tracks, their clocks, edits and tables, and that no more is to know."""

from __future__ import annotations

import struct
from typing import NamedTuple

from libhelix.media.geometry import turn_of
from libhelix.media.headers.boxes import MOST_BOXES, Box, Unsure, children, maybe, only
from libhelix.media.headers.edits import Edit, read_edit
from libhelix.media.headers.tables import Tables, read_tables

_MOVIE = frozenset(b"mvhd trak udta meta iods free skip uuid".split())
_TRACK = frozenset(b"tkhd edts mdia udta meta tapt load tref free uuid".split())
_MEDIA = frozenset(b"mdhd hdlr minf free elng".split())
_DETAILS = frozenset(b"vmhd smhd nmhd gmhd sthd hdlr dinf stbl free".split())
_REFERENCES = frozenset(b"tmcd cdsc sync".split())
_OTHER_TRACKS = frozenset(b"tmcd text tx3g mebx mett".split())
_IDENTITY = (0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
_WHOLE = (0, 0x10000, -0x10000)


class Track(NamedTuple):
    """A track of the movie header. `stream` is its number, `movie_scale` the ticks of a second of edits."""

    stream: int
    kind: bytes
    enabled: bool
    turn: tuple[int, bool]
    """Degrees clockwise, and whether left and right are changed before."""
    shown_size: tuple[int, int]
    """Width and height as played; what differs from those of the pictures says something of their pixels."""
    scale: int
    duration: int
    edit: Edit | None
    tables: Tables


def read_tracks(body: bytes) -> list[Track]:
    """The tracks of a movie header, as streams are numbered. Raises Unsure."""
    boxes = children(body, 0, len(body), _MOVIE)
    scale = _movie_scale(body, only(boxes, b"mvhd"))
    last = max((i for i, box in enumerate(boxes) if box.name == b"trak"), default=-1)
    _check_notes(body, boxes, first=last)
    tracks = [box for box in boxes if box.name == b"trak"]
    return [_track(body, box, i, scale) for i, box in enumerate(tracks)]


def _movie_scale(body: bytes, box: Box) -> int:
    wide = body[box.begin]
    if wide > 1 or box.end - box.begin != (112 if wide else 100):
        raise Unsure("mvhd")
    (scale,) = struct.unpack_from(">I", body, box.begin + (20 if wide else 12))
    matrix = struct.unpack_from(">9i", body, box.end - 64)
    if not 0 < scale < 1 << 31 or matrix != _IDENTITY:
        raise Unsure("a movie without a clock, or turned as a whole")
    return int(scale)


def _check_notes(body: bytes, boxes: list[Box], first: int) -> None:
    """Raise Unsure for notes about the file that change what a demuxer makes of it."""
    for i, box in enumerate(boxes):
        if box.name not in (b"udta", b"meta"):
            continue
        # Cover art becomes a stream of its own, and iTunes says there where sound begins.
        art = i < first and body.find(b"covr", box.begin, box.end) >= 0
        if art or body.find(b"iTunSMPB", box.begin, box.end) >= 0:
            raise Unsure("cover art before tracks, or notes about sound")
        _tile(body, box, 0)


def _tile(body: bytes, box: Box, depth: int) -> None:
    """Raise Unsure unless the boxes of notes lie one after the other; their texts are not looked at."""
    begin, seen = box.begin, 0
    if box.name == b"meta" and body[begin : begin + 4] == b"\0\0\0\0":
        begin += 4
    while begin < box.end:
        size, name = int.from_bytes(body[begin : begin + 4], "big"), body[begin + 4 : begin + 8]
        if begin + 4 == box.end and not size:
            return
        seen += 1
        if size < 8 or begin + size > box.end or seen > MOST_BOXES:
            raise Unsure("notes that do not fit")
        if name in (b"meta", b"ilst") and depth < 3:
            _tile(body, Box(name, begin + 8, begin + size), depth + 1)
        begin += size


def _track(body: bytes, trak: Box, stream: int, movie_scale: int) -> Track:
    boxes = children(body, trak.begin, trak.end, _TRACK)
    _check_notes(body, boxes, first=0)
    references = maybe(boxes, b"tref")
    if references is not None:
        children(body, references.begin, references.end, _REFERENCES)
    shown = _track_header(body, only(boxes, b"tkhd"))
    media = only(boxes, b"mdia")
    parts = children(body, media.begin, media.end, _MEDIA)
    scale, duration = _media_header(body, only(parts, b"mdhd"))
    handler = only(parts, b"hdlr")
    kind = body[handler.begin + 8 : handler.begin + 12]
    details = only(parts, b"minf")
    inner = children(body, details.begin, details.end, _DETAILS)
    _check_own_file(body, only(inner, b"dinf"))
    tables = read_tables(body, only(inner, b"stbl"), kind)
    name = body[tables.entries.begin + 12 : tables.entries.begin + 16]
    if kind not in (b"vide", b"soun") and name not in _OTHER_TRACKS:
        raise Unsure(f"a track of {kind!r}, {name!r}")
    edit = read_edit(body, maybe(boxes, b"edts"), scale, movie_scale)
    return Track(stream, kind, shown.enabled, shown.turn, shown.size, scale, duration, edit, tables)


class _Shown(NamedTuple):
    enabled: bool
    turn: tuple[int, bool]
    size: tuple[int, int]


def _track_header(body: bytes, box: Box) -> _Shown:
    if box.end - box.begin != {0: 84, 1: 96}.get(body[box.begin]):
        raise Unsure("tkhd")
    *matrix, width, height = struct.unpack_from(">9i2I", body, box.end - 44)
    a, b, c, d = (matrix[i] for i in (0, 1, 3, 4))
    if not {a, b, c, d} <= set(_WHOLE) or abs(a * d - b * c) != 1 << 32:
        raise Unsure("pictures that are turned otherwise")
    if (matrix[2], matrix[5], matrix[8]) != (0, 0, 0x40000000):
        raise Unsure("pictures in perspective")
    return _Shown(bool(body[box.begin + 3] & 1), turn_of(matrix), (width >> 16, height >> 16))


def _media_header(body: bytes, box: Box) -> tuple[int, int]:
    """(ticks of a second, ticks of all)"""
    wide = body[box.begin]
    if box.end - box.begin != {0: 24, 1: 36}.get(wide):
        raise Unsure("mdhd")
    scale, duration = struct.unpack_from(">IQ" if wide else ">II", body, box.begin + (20 if wide else 12))
    if not 0 < scale < 1 << 31 or duration >= (1 << 62 if wide else 0xFFFFFFFF):
        raise Unsure("a track without a clock")
    return scale, duration


def _check_own_file(body: bytes, dinf: Box) -> None:
    """Raise Unsure unless the samples lie in this file."""
    dref = only(children(body, dinf.begin, dinf.end, {b"dref"}), b"dref")
    if dref.end - dref.begin != 20 or body[dref.begin + 4 : dref.begin + 12] != b"\0\0\0\1\0\0\0\x0c":
        raise Unsure("samples in other files")
    if body[dref.begin + 12 : dref.begin + 16] not in (b"url ", b"alis") or not body[dref.begin + 19] & 1:
        raise Unsure("samples in other files")
