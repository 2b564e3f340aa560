"""mp4 and mov: what is in a file, told by its movie header and the first bytes of a few samples.

Equal to what a demux scan says, field for field, or nothing: whatever is unusual is left to the scan.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from fractions import Fraction
from math import gcd
from typing import Protocol

import numpy as np

from libhelix.errors import MediaError
from libhelix.media.film import Packets, film
from libhelix.media.geometry import pixel_aspect
from libhelix.media.headers.boxes import (
    Sample,
    Source,
    Unsure,
    children,
    maybe,
    movie_header,
    only,
)
from libhelix.media.headers.edits import Timeline, pictures, sound
from libhelix.media.headers.h264 import Avc
from libhelix.media.headers.hevc import Hevc
from libhelix.media.headers.movie import Track, read_tracks
from libhelix.media.headers.other_codecs import Av1, Mpeg4, Vp9
from libhelix.media.headers.sounds import Heard, decoder_config, entry_of, read_pcm, read_sound
from libhelix.media.headers.tables import (
    Array,
    Samples,
    Tables,
    check_tiling,
    chunk_lengths,
    samples_of,
)
from libhelix.recipe import AudioInfo, VideoInfo

_PICTURE_BOXES = frozenset(
    b"avcC hvcC av1C vpcC esds colr pasp btrt fiel chrm gama mdcv clli ccst SmDm CoLL dvcC dvvC free".split()
)
_LARGEST_ASPECT = 32_767
_KEYS_LOOKED_AT, _OTHERS_LOOKED_AT = 32, 16
"""Samples whose first bytes are compared with the sync table, where the codec says what is a key frame."""


def probe(source: Source, path: str) -> tuple[VideoInfo | None, AudioInfo | None]:
    """The pictures and the sound of a file; Unsure where a demuxer has to say it.

    Raises MediaError for a file that ends before its pictures do, in the words of the scan.
    """
    body, media = movie_header(source)
    tracks = read_tracks(body)
    check_tiling([track.tables for track in tracks], media)
    films = [track for track in tracks if track.kind == b"vide"]
    sounds = [track for track in tracks if track.kind == b"soun"]
    if len(films) > 1 or not (films or sounds):
        raise Unsure(f"{len(films)} tracks of pictures")
    heard = next((track for track in sounds if track.enabled), sounds[0]) if sounds else None
    shown = _film(body, films[0], source, path) if films else None
    return shown, _sound(body, heard, source) if heard is not None else None


# ---- pictures ------------------------------------------------------------------------------------------


def _film(body: bytes, track: Track, source: Source, path: str) -> VideoInfo:
    samples = samples_of(track.tables, source.size)
    line = pictures(samples, track.edit)
    kept = slice(line.begin, line.end)
    codec, size, aspect = _coding(body, track.tables)
    end = int((samples.at[kept] + samples.size[kept]).max())
    if end > source.size:
        raise MediaError(
            f"{path}: truncated: its frames reach to byte {end}, it ends at {source.size}; fetch it again"
        )
    if int((samples.at + samples.size).max()) > source.size:
        raise Unsure("samples outside of the file")
    _check_keys(codec, samples, line.begin, source)
    if codec.size != size or (not all(aspect) and track.shown_size != size):
        raise Unsure(f"pictures of {codec.size} in a track of {size}, shown as {track.shown_size}")
    shown = np.unique(line.pts[line.shown])
    if len(shown) != int(line.shown.sum()) or int(shown[0]) < int(line.pts[0]):
        raise Unsure("pictures at one time, or before the first key frame")
    return film(
        Packets(line.pts, samples.size[kept], samples.key[kept]),
        shown,
        _last_ticks(codec.codec, samples, line, shown),
        codec=codec.codec,
        stream=track.stream,
        size=size,
        rotation=track.turn[0],
        mirrored=track.turn[1],
        time_base=(1, track.scale),
        seekable=True,
        sar=pixel_aspect(Fraction(*next((a for a in (aspect, codec.aspect) if all(a)), (1, 1)))),
    )


def _last_ticks(codec: str, samples: Samples, line: Timeline, shown: Array) -> int:
    """How long the last picture is shown, where the distance of the others does not tell."""
    steps = np.diff(shown)
    if len(steps) and steps.min() == steps.max():
        return 0
    at = int(np.argmax(line.pts == shown[-1]))
    last = int(samples.ticks[line.begin + at])
    # Without offsets, FFmpeg 8 takes it from the table as if the edit began with the first sample; of VP9,
    # which is parsed, from an estimate of the rate.
    if codec == "vp9" or last <= 0 or (samples.shift is None and samples.ticks[at] != last):
        raise Unsure("a last picture of no duration, or of several")
    return last


def _length(track: Track, ticks: Array) -> int:
    """Ticks of a track: by its header, or its table, or its edit, whatever says least."""
    edit = track.edit
    length = min(track.duration, int(ticks.sum()))
    return min(length, edit.pause + edit.duration) if edit is not None else length


class _Coding(Protocol):
    """How pictures are coded. `size`: their width and height, known once the first sample was looked at;
    `aspect`: how wide a pixel is to its height, 0 to 0 where that is not said."""

    @property
    def codec(self) -> str: ...

    @property
    def size(self) -> tuple[int, int] | None: ...

    @property
    def aspect(self) -> tuple[int, int]: ...

    def first(self, sample: Sample) -> None: ...

    def key(self, sample: Sample) -> bool | None: ...


_CODINGS: dict[bytes, tuple[bytes, Callable[[bytes], _Coding]]] = {
    b"avc1": (b"avcC", Avc),
    b"avc3": (b"avcC", Avc),
    b"hvc1": (b"hvcC", Hevc),
    b"hev1": (b"hvcC", Hevc),
    b"av01": (b"av1C", Av1),
    b"vp09": (b"vpcC", Vp9),
}


def _coding(body: bytes, tables: Tables) -> tuple[_Coding, tuple[int, int], tuple[int, int]]:
    """(how pictures are coded, their width and height and the aspect of pixels as stsd has them)"""
    name, at, end = entry_of(body, tables.entries)
    if end - at < 78:
        raise Unsure("an entry of pictures is short")
    width, height = struct.unpack_from(">HH", body, at + 24)
    depth, colours = struct.unpack_from(">Hh", body, at + 74)
    boxes = children(body, at + 78, end, _PICTURE_BOXES)
    if depth not in (24, 32) or colours not in (-1, 0):
        raise Unsure("pictures with a palette")
    pasp = maybe(boxes, b"pasp")
    if pasp is not None and pasp.end - pasp.begin != 8:
        raise Unsure("pasp")
    across, down = struct.unpack_from(">II", body, pasp.begin) if pasp is not None else (0, 0)
    shared = gcd(across, down) or 1
    aspect = across // shared, down // shared
    if max(aspect) > _LARGEST_ASPECT:
        raise Unsure("an aspect that has to be rounded")
    if name == b"mp4v":
        kind, config = decoder_config(body, only(boxes, b"esds"))
        if kind != 0x20:
            raise Unsure(f"pictures of kind {kind}")
        return Mpeg4(config), (width, height), aspect
    if name not in _CODINGS:
        raise Unsure(f"{name!r}")
    box_name, coding = _CODINGS[name]
    box = only(boxes, box_name)
    return coding(body[box.begin : box.end]), (width, height), aspect


def _check_keys(codec: _Coding, samples: Samples, begin: int, source: Source) -> None:
    """Raise Unsure unless the first sample begins as a key frame does, and the sync table agrees with the
    codec, where that is what counts.

    All of a short film is compared; of a longer one some key frames, and of the others the largest: where a
    table lacks key frames, these are they.
    """

    def sample(i: int) -> Sample:
        return Sample(source, int(samples.at[i]), int(samples.size[i]))

    if not samples.key[begin] or not samples.key[0]:
        raise Unsure("the first sample is no key frame")
    codec.first(sample(begin))
    if codec.key(sample(begin)) is None:
        return
    keys, others = np.flatnonzero(samples.key), np.flatnonzero(~samples.key)
    keys = keys[np.unique(np.linspace(0, len(keys) - 1, min(len(keys), _KEYS_LOOKED_AT)).astype(np.int64))]
    if len(others) > _OTHERS_LOOKED_AT:
        most = np.argpartition(samples.size[others], -_OTHERS_LOOKED_AT)[-_OTHERS_LOOKED_AT:]
        others = others[most]
    for numbers, key in ((keys, True), (others, False)):
        for i in sorted(numbers.tolist()):
            if codec.key(sample(i)) is not key:
                raise Unsure(f"the sync table is wrong about sample {i}")


# ---- sound ---------------------------------------------------------------------------------------------


def _sound(body: bytes, track: Track, source: Source) -> AudioInfo:
    tables = track.tables
    if tables.shifts is not None or tables.keys is not None or not track.duration:
        raise Unsure("sound with the tables of pictures")
    if tables.total * tables.sample_size > source.size:
        raise Unsure("samples outside of the file")
    if len(tables.runs) == 1 and tables.runs[0, 1] == 1:
        heard = read_pcm(body, tables)
        ends = tables.offsets + chunk_lengths(tables) * tables.sample_size
    else:
        samples = samples_of(tables, source.size)
        ends = samples.at + samples.size
        heard = read_sound(
            body, tables, samples.ticks, lambda i: Sample(source, int(samples.at[i]), int(samples.size[i]))
        )
    if int(ends.max()) > source.size:
        raise Unsure("samples outside of the file")
    return _audible(track, heard)


def _end_of_last(heard: Heard, line: Timeline, length: int) -> int:
    """When the last packet ends, as demuxers have it."""
    last = len(line.pts) - 1
    if heard.codec.startswith("pcm_"):
        # Listed sample by sample, a packet ends with the next, and the last with the track.
        if int(line.pts[last]) > length:
            raise Unsure("a last packet of no duration")
        return length
    if heard.codec == "mp3":  # parsed, so that every packet lasts as long as its frame says
        return int(line.pts[last] + heard.samples[line.begin + last])
    if heard.ticks[last] <= 0 or heard.ticks[last] != heard.ticks[line.begin + last]:
        raise Unsure("a last packet of several durations")  # see _last_ticks
    return int(line.pts[last] + heard.ticks[last])


def _audible(track: Track, heard: Heard) -> AudioInfo:
    """What is heard: without what the edit leaves out at the beginning, and up to where the track ends."""
    line = sound(heard.ticks, track.scale, track.edit)
    even = heard.rate == track.scale and (heard.samples[:-1] == heard.ticks[:-1]).all()
    if not even and (line.skipped or heard.codec == "mp3"):
        raise Unsure("samples left out that are counted in other ticks")
    if heard.primed and not line.skipped:
        raise Unsure("a decoder that leaves out its first samples")
    kept = slice(line.begin, line.end)
    first = int(np.argmax(line.shown))
    if not line.shown[first:].all():
        raise Unsure("packets behind the end")
    unheard = line.skipped - int(heard.ticks[kept][:first].sum())
    samples = int(heard.samples[kept][first:].sum()) - unheard
    length = _length(track, heard.ticks)
    start = track.edit.pause if track.edit is not None else 0
    # What follows the end of the track, or of the last packet, is padding.
    cut = min(start + length, _end_of_last(heard, line, length)) - start
    cut = cut * heard.rate // track.scale
    samples = min(samples, cut) if cut > 0 else samples
    if samples <= 0 or heard.channels <= 0:
        raise Unsure("nothing is heard")
    return AudioInfo(
        codec=heard.codec,
        stream=track.stream,
        rate=heard.rate,
        channels=heard.channels,
        samples=samples,
        start_pts=start,
        time_base=(1, track.scale),
    )
