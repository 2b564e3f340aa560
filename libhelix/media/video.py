"""Video: what a demux scan tells of a file, and what decoding will cost.

`probe` reads every packet once and decodes only until the first picture is out. Exact frame access is in
`libhelix.media.sampler`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import av.error
import numpy as np
from av.sidedata import sidedata

from libhelix.errors import MediaError
from libhelix.media.audio import Scan, sound_of
from libhelix.media.container import check_complete, codec_name, open_container, pick_stream, reason
from libhelix.media.film import Packets, film
from libhelix.media.geometry import pixel_aspect, turn_of
from libhelix.media.sampler import count_frames
from libhelix.recipe import OPENING_US, AudioInfo, Item, VideoInfo

_DISPLAY_MATRIX = getattr(sidedata.Type, "DISPLAYMATRIX", None)
_SEEKABLE = ("mov", "matroska", "webm", "flv", "avi")
"""Formats whose seeks land on the key frame asked for. MPEG-TS and raw streams are decoded forward."""


class _Packet(NamedTuple):
    pts: int | None
    size: int
    key: bool
    shown: bool
    duration: int


class _Start(NamedTuple):
    """What decoding the beginning of a stream shows."""

    rotation: int
    mirrored: bool
    width: int
    height: int
    leading: frozenset[int]
    """Times before the first key frame's that do come out of the decoder intact."""


def probe(path: str | Path) -> VideoInfo:
    """The frames, key-frame groups and geometry of a video file, by one demux scan.

    Raises MediaError for a file that is no container, has no video stream, no frames, or none that decodes.
    """
    path = os.fspath(path)
    try:
        found = os.stat(path)
    except OSError as e:
        raise MediaError(f"{path}: {e.strerror}; check the path and its permissions") from e
    return probe_item(Item(kind="video", path=path, offset=0, size=found.st_size, mtime_ns=found.st_mtime_ns))


def probe_item(item: Item) -> VideoInfo:
    """`probe` for a file or a byte range of one."""
    with open_container(item, quick=False) as container:
        return probe_open(container, item)[0]


def probe_animation(item: Item) -> VideoInfo | None:
    """`probe` for a GIF; None where it is not animated."""
    try:
        found = probe_item(item)
    except MediaError:  # as an image it may still do
        return None
    return found if found.frames > 1 else None


def probe_open(container: Any, item: Item) -> tuple[VideoInfo, AudioInfo | None]:
    """What `probe` tells of an open container, and what the same scan shows of its sound, if it has any."""
    stream = pick_stream(container, item.path)
    check_complete(container, stream, item)
    sound = sound_of(container, item)
    packets, start = _scan(container, stream, item.path, sound)
    if packets and start is None:
        codec = codec_name(stream)
        raise MediaError(f"{item.path}: none of its {codec} frames can be decoded; encode it again")
    if start is None:
        raise MediaError(f"{item.path}: the video stream has no frames; leave it out")
    heard = sound.finish() if sound is not None else None
    shown = _shown_times(packets, start.leading)
    reordered_avi = container.format.name == "avi" and bool(stream.codec_context.has_b_frames)
    if shown is None or reordered_avi or len(set(shown)) != len(shown):
        return _ordered(item, stream, packets, start), heard
    return _timed(container, stream, packets, start, shown), heard


def _scan(container: Any, stream: Any, path: str, sound: Scan | None) -> tuple[list[_Packet], _Start | None]:
    packets: list[_Packet] = []
    context = stream.codec_context
    context.thread_count = 1
    vp8 = context.name == "vp8"
    first_key: int | None = None
    start: _Start | None = None
    leading: set[int] = set()
    try:
        for packet in container.demux([stream] if sound is None else [stream, sound.stream]):
            if sound is not None and packet.stream_index == sound.stream.index:
                sound.feed(packet)
                continue
            if packet.size:
                # VP8 sends invisible references as packets of their own: bit 4 of the header tells.
                hidden = packet.is_discard or (vp8 and not memoryview(packet)[0] & 0x10)
                packets.append(
                    _Packet(packet.pts, packet.size, packet.is_keyframe, not hidden, packet.duration or 0)
                )
                if first_key is None and packet.is_keyframe:
                    first_key = packet.pts
            if start is None:
                start = _first_picture(packet, first_key, leading)
    except av.error.FFmpegError as e:
        raise MediaError(f"{path}: damaged container ({reason(e)}); fetch or encode it again") from e
    return packets, start


def _first_picture(packet: Any, first_key: int | None, leading: set[int]) -> _Start | None:
    """Feed the decoder until a picture at or after the first key frame is out."""
    try:
        frames = packet.decode()
    except (av.error.FFmpegError, ValueError):
        return None
    for frame in frames:
        if first_key is not None and frame.pts is not None and frame.pts < first_key:
            if not frame.is_corrupt:
                leading.add(frame.pts)
            continue
        return _Start(*_turn(frame), frame.width, frame.height, frozenset(leading))
    return None


def _turn(frame: Any) -> tuple[int, bool]:
    """(degrees clockwise, whether left and right are changed before) as needed to show a frame upright."""
    try:
        matrix = frame.side_data.get(_DISPLAY_MATRIX)
    except ValueError:  # side data of a kind that PyAV has no name for
        matrix = None
    if matrix is None:
        # Where there is a matrix that we do not see: FFmpeg counts counterclockwise.
        return round(-getattr(frame, "rotation", 0) / 90) * 90 % 360, False
    return turn_of(struct.unpack("=9i", bytes(matrix)))


def _shown_times(packets: Sequence[_Packet], leading: frozenset[int]) -> list[int] | None:
    """Presentation times of shown frames, rising; None where a packet has none.

    Pictures before the first key frame refer to something that is not in the file. Only those count that
    the decoder did give.
    """
    times = []
    first = next((i for i, p in enumerate(packets) if p.key and p.pts is not None), None)
    for i, packet in enumerate(packets):
        if not packet.shown:
            continue
        if packet.pts is None:
            return None
        if first is not None and packet.pts not in leading:
            key_pts = packets[first].pts
            if i < first or (key_pts is not None and packet.pts < key_pts):
                continue
        times.append(packet.pts)
    return sorted(times)


def _timed(
    container: Any, stream: Any, packets: Sequence[_Packet], start: _Start, shown: list[int]
) -> VideoInfo:
    if not shown:
        raise MediaError(f"{container.name}: no frame of the video stream is shown; leave it out")
    base = stream.time_base
    last = next((p.duration for p in packets if p.pts == shown[-1]), 0)
    if last <= 0:
        last = _usual_step(stream, base, shown)
    return film(
        Packets(
            np.array([p.pts or 0 for p in packets]),
            np.array([p.size for p in packets]),
            np.array([p.key and p.pts is not None for p in packets]),
        ),
        np.array(shown),
        last,
        codec=codec_name(stream),
        stream=stream.index,
        size=(start.width, start.height),
        rotation=start.rotation,
        mirrored=start.mirrored,
        sar=pixel_aspect(stream.sample_aspect_ratio),
        time_base=(base.numerator, base.denominator),
        seekable=any(n in _SEEKABLE for n in container.format.name.split(",")),
    )


def _usual_step(stream: Any, base: Fraction, shown: Sequence[int]) -> int:
    """Ticks one frame lasts, where its packet does not say."""
    if len(shown) > 1:
        return max(1, (shown[-1] - shown[0]) // (len(shown) - 1))
    return max(1, round(1 / (_rate(stream) * base)))


def _rate(stream: Any) -> Fraction:
    rate = stream.average_rate or getattr(stream, "guessed_rate", None) or stream.base_rate
    return Fraction(rate) if rate and rate > 0 else Fraction(25)


def _ordered(item: Item, stream: Any, packets: Sequence[_Packet], start: _Start) -> VideoInfo:
    """A file without usable times: frames are what the decoder gives, so it is asked once."""
    rate = _rate(stream)
    frames = count_frames(item, stream.index)
    if not frames:
        raise MediaError(f"{item.path}: none of its frames can be decoded; encode it again")
    return VideoInfo(
        codec=codec_name(stream),
        stream=stream.index,
        width=start.width,
        height=start.height,
        rotation=start.rotation,
        mirrored=start.mirrored,
        sar=pixel_aspect(stream.sample_aspect_ratio),
        frames=frames,
        fps=float(rate),
        duration_s=float(frames / rate),
        time_base=(rate.denominator, rate.numerator),
        start_pts=0,
        pts_step=1,
        key_bytes=(sum(p.size for p in packets),),
        key_pts=(0,),
        key_frames=(0,),
        seekable=False,
        ordered=True,
    )


_PER_MPX_CONVERTED, _PER_MPX_WRITTEN = 950, 3200
"""Microseconds for a million pixels of a frame, and for those scaled to, whatever the codec."""


class _Cost(NamedTuple):
    """Microseconds of one core, as fitted in our measurements at usual bit rates."""

    per_mpx: int
    per_mb: int


_COSTS = {
    "h264": _Cost(480, 68_000),
    "hevc": _Cost(660, 113_000),
    "vp9": _Cost(540, 89_000),
    "av1": _Cost(120, 107_000),
}


def group_cuts(info: VideoInfo, frames: Sequence[int]) -> tuple[int, ...]:
    """Positions in `frames` where the governing key-frame group changes; none where seeking is not exact."""
    if not info.seekable or info.ordered:
        return ()
    groups = [info.group_of(f) for f in frames]
    return tuple(i for i in range(1, len(groups)) if groups[i] != groups[i - 1])


def decode_cost_us(info: VideoInfo, frames: Sequence[int], dst_pixels: int) -> tuple[int, ...]:
    """Predicted CPU microseconds of each segment between `group_cuts`: len(cuts) + 1 integers.

    `frames` rise; `dst_pixels` are the pixels written per frame. Opening is charged to the first segment.
    """
    cost = _COSTS.get(info.codec, _COSTS["h264"])
    pixels = info.width * info.height
    bounds = (0, *group_cuts(info, frames), len(frames))
    found = []
    for a, b in pairwise(bounds):
        span, size = _span(info, frames[a], frames[b - 1])
        distinct = len(set(frames[a:b]))
        work = span * pixels * cost.per_mpx + size * cost.per_mb
        work += distinct * pixels * _PER_MPX_CONVERTED + (b - a) * dst_pixels * _PER_MPX_WRITTEN
        found.append(work // 1_000_000 + (0 if a else OPENING_US))
    return tuple(found)


def _span(info: VideoInfo, first: int, last: int) -> tuple[int, int]:
    """Frames decoded to reach `last`, and their bytes, from the key frame that governs `first`."""
    total = sum(info.key_bytes)
    if not info.seekable or info.ordered or not info.key_frames:
        return last + 1, total * (last + 1) // info.frames
    group = info.group_of(first)
    begin = info.key_frames[group]
    end = info.key_frames[group + 1] if group + 1 < len(info.key_frames) else info.frames
    span = last - begin + 1
    return span, info.key_bytes[group] * span // max(span, end - begin)
