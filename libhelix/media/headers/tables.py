"""The tables of an mp4 track: where its samples lie, how long each lasts, when it is shown, which are keys.

What a table says is checked against the other tables and against the length of its box. Nothing is
allocated that the file has no bytes for.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from libhelix.media.headers.boxes import Box, Unsure, children, maybe, only

Array = np.ndarray[Any, np.dtype[Any]]

_TABLES = frozenset(b"stsd stts ctts cslg stss stsc stsz stz2 stco co64 sdtp sgpd sbgp free".split())
_GROUPS_OF_SOUND = (b"roll", b"prol")
"""Of pictures, sample groups may name more key frames; of sound, they say what is decoded in advance."""
_MOST_SAMPLES = 1 << 21
"""More are scanned: ten hours at 60 frames per second."""
_ROOM = 8
_LONGEST = 1 << 28
"""Ticks of a sample or an offset; what is longer is a negative number, or nonsense."""


class Tables(NamedTuple):
    """Tables of one track as they are stored. `sample_size`: of all samples, or 0."""

    entries: Box
    """Of stsd: how the samples are coded."""
    total: int
    """Samples."""
    sample_size: int
    sizes: Array
    runs: Array
    """Of stts: [n, 2] samples, ticks of each."""
    shifts: Array | None
    """Of ctts: [n, 2] samples, ticks from decoding to being shown; None where these are the same."""
    keys: Array | None
    """Of stss: numbers of key frames, from 1; None: all are."""
    chunks: Array
    """[n, 3] first chunk, samples of each, entry."""
    offsets: Array
    """Of chunks, in the file."""


def read_tables(body: bytes, stbl: Box, kind: bytes) -> Tables:
    """The tables of a track of that handler. Raises Unsure."""
    boxes = children(body, stbl.begin, stbl.end, _TABLES)
    for box in boxes:
        grouping = body[box.begin + 4 : box.begin + 8]
        if box.name in (b"sgpd", b"sbgp") and (kind != b"soun" or grouping not in _GROUPS_OF_SOUND):
            raise Unsure(f"sample groups {grouping!r}")
    shifts = maybe(boxes, b"ctts")
    keys = maybe(boxes, b"stss")
    count, sample_size, sizes = _sizes(body, boxes)
    runs = _table(body, only(boxes, b"stts"), 2)
    if int(runs[:, 0].sum()) != count or (runs[:, 0] < 1).any() or (runs[:, 1] > _LONGEST).any():
        raise Unsure("stts")
    return Tables(
        entries=only(boxes, b"stsd"),
        total=count,
        sample_size=sample_size,
        sizes=sizes,
        runs=runs,
        shifts=_shifts(body, shifts, count) if shifts is not None else None,
        keys=_keys(body, keys, count) if keys is not None else None,
        chunks=_table(body, only(boxes, b"stsc"), 3),
        offsets=_offsets(body, boxes),
    )


def _fields(body: bytes, box: Box, form: str, *, versions: tuple[int, ...] = (0,)) -> tuple[int, ...]:
    """The first numbers of a box, behind a version that is known and flags that are 0."""
    size = struct.calcsize(form)
    if box.end - box.begin < 4 + size or body[box.begin] not in versions:
        raise Unsure(f"{box.name!r} is short or of another version")
    return struct.unpack_from(form, body, box.begin + 4)


def _table(body: bytes, box: Box, width: int, versions: tuple[int, ...] = (0,)) -> Array:
    """[n, width] numbers of a table that fills its box to the byte."""
    (n,) = _fields(body, box, ">I", versions=versions)
    if box.end - box.begin != 8 + 4 * width * n:
        raise Unsure(f"{box.name!r} has {box.end - box.begin} bytes for {n} entries")
    return np.frombuffer(body, ">u4", n * width, box.begin + 8).astype(np.int64).reshape(n, width)


def _sizes(body: bytes, boxes: list[Box]) -> tuple[int, int, Array]:
    box, small = maybe(boxes, b"stsz"), maybe(boxes, b"stz2")
    if box is None or small is not None:
        raise Unsure("stz2")  # nobody writes it: the demuxer reads it
    size, count = _fields(body, box, ">II")
    stored = 0 if size else count
    if box.end - box.begin != 12 + 4 * stored:
        raise Unsure("stsz")
    if size:
        return count, size, np.zeros(0, np.int64)
    sizes = np.frombuffer(body, ">u4", count, box.begin + 12).astype(np.int64)
    if count and not 0 < int(sizes.min()) <= int(sizes.max()) < 1 << 30:
        raise Unsure("samples of no bytes, or of too many")
    return count, 0, sizes


def _shifts(body: bytes, box: Box, count: int) -> Array:
    found = _table(body, box, 2, versions=(0, 1))
    # Version 0 says that they are unsigned; demuxers read them as signed all the same.
    found[:, 1] = np.where(found[:, 1] >= 1 << 31, found[:, 1] - (1 << 32), found[:, 1])
    if int(found[:, 0].sum()) != count or (found[:, 0] < 1).any() or (abs(found[:, 1]) > _LONGEST).any():
        raise Unsure("ctts")
    return found


def _keys(body: bytes, box: Box, count: int) -> Array:
    found = _table(body, box, 1)[:, 0]
    if not len(found) or found[0] < 1 or found[-1] > count or (np.diff(found) <= 0).any():
        raise Unsure("stss")
    return found


def _offsets(body: bytes, boxes: list[Box]) -> Array:
    short, wide = maybe(boxes, b"stco"), maybe(boxes, b"co64")
    box = short or wide
    if box is None or (short is not None and wide is not None):
        raise Unsure("no stco, or two")
    (n,) = _fields(body, box, ">I")
    width = 4 if short is not None else 8
    if box.end - box.begin != 8 + width * n:
        raise Unsure(f"{box.name!r}")
    found = np.frombuffer(body, f">u{width}", n, box.begin + 8)
    if wide is not None and n and int(found.max()) >= 1 << 62:
        raise Unsure("co64")
    return found.astype(np.int64)


class Samples(NamedTuple):
    """Samples of a track in decoding order, an array for each thing that is known of them."""

    at: Array
    """Bytes from the beginning of the file."""
    size: Array
    ticks: Array
    """How long each lasts, by stts."""
    shift: Array | None
    """From decoding to being shown."""
    key: Array


def samples_of(tables: Tables, most_bytes: int) -> Samples:
    """One entry for every sample of a track that `check_tiling` has seen, of at most so many."""
    n = tables.total
    if not 0 < n <= min(_MOST_SAMPLES, most_bytes):
        raise Unsure(f"{n} samples")
    size = tables.sizes if not tables.sample_size else np.full(n, tables.sample_size, np.int64)
    in_chunk = chunk_lengths(tables)
    ends = np.cumsum(size)
    before = ends - size
    first = np.cumsum(in_chunk) - in_chunk
    at = before + np.repeat(tables.offsets - before[first], in_chunk)
    key = np.ones(n, bool)
    if tables.keys is not None:
        key[:] = False
        key[tables.keys - 1] = True
    shift = None
    if tables.shifts is not None:
        shift = np.repeat(tables.shifts[:, 1], tables.shifts[:, 0])
    return Samples(at, size, np.repeat(tables.runs[:, 1], tables.runs[:, 0]), shift, key)


def chunk_lengths(tables: Tables) -> Array:
    """Samples of every chunk; raises Unsure where stsc and stco disagree, or coding changes."""
    first, each, entry = tables.chunks.T
    n = len(tables.offsets)
    if not len(first) or first[0] != 1 or (np.diff(first) <= 0).any() or first[-1] > n:
        raise Unsure("stsc and stco disagree")
    if (each < 1).any() or (entry != 1).any():
        raise Unsure("stsc has empty chunks, or names another entry")
    return np.repeat(each, np.diff(first, append=n + 1))


def check_tiling(tracks: Sequence[Tables], media: Box) -> None:
    """Raise Unsure unless the chunks of all tracks fill mdat to the byte: else a table may be wrong."""
    begins, ends = [], []
    for tables in tracks:
        if not tables.total:
            continue
        in_chunk = chunk_lengths(tables)
        if int(in_chunk.sum()) != tables.total:
            raise Unsure("stsc and stsz disagree")
        sizes = in_chunk * tables.sample_size
        if not tables.sample_size:
            sizes = np.add.reduceat(tables.sizes, np.cumsum(in_chunk) - in_chunk)
        begins.append(tables.offsets)
        ends.append(tables.offsets + sizes)
    if not begins:
        raise Unsure("no samples")
    begin, end = np.concatenate(begins), np.concatenate(ends)
    order = np.argsort(begin)
    begin, end = begin[order], end[order]
    # Some writers leave room for a longer header of mdat.
    room = begin[0] - media.begin in (0, _ROOM)
    if not room or end[-1] != media.end or (begin[1:] != end[:-1]).any():
        raise Unsure("chunks overlap, or leave gaps")
