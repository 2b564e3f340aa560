"""Exact samples of a sound: any stretch equals the same stretch of a full decode, bit for bit.

Formats that number their samples are entered shortly before the stretch, as far ahead as the codec remembers.
All others are decoded from their beginning: an AAC decoder, for one, draws noise from where it began. Nothing
is taken on trust: a seek that lands late, or times that jump, lead back to the beginning. Memory does not
grow with the file: blocks go straight into the caller's array.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import av.error
import numpy as np

from libhelix.errors import MediaError, UsageError
from libhelix.media.container import open_container, reason
from libhelix.media.mixing import Resampler, mix, mixing_matrix, resampled_length
from libhelix.recipe import AudioInfo, Item

Array = np.ndarray[Any, np.dtype[Any]]

_SEEKING = ("wav", "w64", "flac", "ogg")
"""Formats whose seeks land before the sample asked for, and say where."""
_AHEAD_S = {"flac": 0.0, "vorbis": 0.5, "mp3": 2.0, "opus": 10.0}
"""Seconds a decoder must run before its output no longer depends on where it began.

MP3: its bit reservoir spans at most 32 frames. Opus fades: the longest measured was 1.2 s.
"""
_STORED: dict[str, tuple[str, float]] = {
    "u8": ("u1", 1 / (1 << 7)),
    "s16": ("i2", 1 / (1 << 15)),
    "s32": ("i4", 1 / (1 << 31)),
    "s64": ("i8", 1 / (1 << 63)),
    "flt": ("f4", 1.0),
    "dbl": ("f8", 1.0),
}
"""By FFmpeg's name: numpy's, and what a step is of full scale."""


class _Late(Exception):
    """The decoder came in after the first wanted sample, or times jump."""


def decode(
    item: Item,
    out: Array,
    *,
    start: int = 0,
    stop: int | None = None,
    rate: int | None = None,
    order: Literal["CT", "TC"] = "CT",
) -> None:
    """Write the heard samples [start, stop), counted at the source's rate, into `out`, at `rate`.

    `out` is float32 in [-1, 1] or int16, and has the wanted channels: [n] (mono), [channels, n] ("CT") or [n,
    channels] ("TC"), with n = `resampled_length(stop - start, source's rate, rate)`, or fewer: the first of
    them. Channels are mixed as `mixing_matrix` says, before the rate is changed, for which nothing outside
    the stretch is heard. Raises
    MediaError where the file changed, is damaged, or cannot be mixed so; UsageError for an `out` that does
    not fit.
    """
    info = item.audio
    if info is None:
        raise MediaError(f"{item.path}: not indexed as audio; use a recipe for {item.kind}")
    stop = info.samples if stop is None else stop
    if not 0 <= start < stop <= info.samples:
        raise MediaError(f"{item.path}: samples {start} to {stop} were asked for, it has {info.samples}")
    rate = rate or info.rate
    rows = out[np.newaxis] if out.ndim == 1 else out if order == "CT" else out.T
    n = resampled_length(stop - start, info.rate, rate)
    if rows.ndim != 2 or not 0 < rows.shape[1] <= n or rows.dtype not in (np.float32, np.int16):
        raise UsageError(f"{out.dtype} {out.shape} is not for {n} samples; use float32 or int16")
    matrix: list[Array] = []

    def mixed() -> Iterator[Array]:
        for names, block in _stretch(item, info, start, stop):
            if not matrix:
                matrix.append(mixing_matrix(names, len(rows), item.path))
            yield mix(block, matrix[0])

    at = 0
    blocks = mixed()
    for block in (
        blocks if rate == info.rate else Resampler(info.rate, rate, len(rows), rows.shape[1]).run(blocks)
    ):
        m = min(block.shape[1], rows.shape[1] - at)
        _write(rows[:, at : at + m], block[:, :m])
        at += m


def heard(item: Item) -> Iterator[Array]:
    """All heard samples as float32 [channels, m] blocks. Raises MediaError as `decode`."""
    info = item.audio
    if info is None:
        raise MediaError(f"{item.path}: not indexed as audio; use a recipe for {item.kind}")
    for _, block in _stretch(item, info, 0, info.samples):
        yield block


def enters(container: Any, info: AudioInfo) -> bool:
    """Whether the last samples are decoded without all before them."""
    return _route(container, info, info.samples - 1) is not None


def count_samples(item: Item, stream: int) -> tuple[int, Any]:
    """Samples that decoding a whole stream gives, and its first frame; None where there is none.

    Raises MediaError for damage within, and for a stream whose channels or rate change.
    """
    total, first = 0, None
    with open_container(item, quick=False) as container:
        for frame in _frames(container, container.streams[stream], item.path):
            first = first or frame
            _check_same(item.path, frame, first.sample_rate, first.layout.nb_channels, total)
            total += frame.samples
    return total, first


def _write(rows: Array, block: Array) -> None:
    if rows.dtype == np.float32:
        rows[...] = block
    else:
        # Samples stored with 16 bits come back as they were.
        rows[...] = np.clip(np.rint(block * np.float32(32768)), -32768, 32767)


class _Route(NamedTuple):
    """How to come near a sample: by a seek or by leaving packets out, to `pts`."""

    seek: bool
    pts: int


def _stretch(item: Item, info: AudioInfo, start: int, stop: int) -> Iterator[tuple[tuple[str, ...], Array]]:
    """(channel names, float32 [channels, m]) blocks that cover [start, stop)."""
    at = start
    names: tuple[str, ...] = ()
    for near, quick in ((True, True), (False, True), (False, False)):
        with open_container(item, quick=quick) as container:
            route = _route(container, info, at) if near else None
            try:
                for position, frame in _positions(container, item, info, route, at, quick):
                    a, b = max(at, position), min(stop, position + frame.samples)
                    if a < b:
                        names = names or tuple(channel.name for channel in frame.layout.channels)
                        yield names, _floats(frame)[:, a - position : b - position]
                        at = b
                    if at >= stop:
                        return
            except _Late:
                continue
    raise MediaError(
        f"{item.path}: its sound ends at sample {at} of {info.samples}; fetch it again, or index it again"
    )


def entry(info: AudioInfo, start: int) -> int:
    """The sample from which on sample `start` has to be decoded: 0 where nothing shorter is exact."""
    num, den = info.time_base
    ahead = 0.0 if info.codec.startswith("pcm_") else _AHEAD_S.get(info.codec)
    if ahead is None or den % (num * info.rate):
        return 0
    return max(0, start - int(ahead * info.rate))


def _route(container: Any, info: AudioInfo, start: int) -> _Route | None:
    """The way to sample `start`; None: from the beginning."""
    form = container.format.name
    begin = entry(info, start)
    if form not in (*_SEEKING, "mp3") or begin <= 0:
        return None
    num, den = info.time_base
    return _Route(form in _SEEKING, info.start_pts + begin * (den // (num * info.rate)))


def _positions(
    container: Any, item: Item, info: AudioInfo, route: _Route | None, start: int, quick: bool
) -> Iterator[tuple[int, Any]]:
    """(position of its first sample, frame), in order, without gaps; raises _Late where that cannot be.

    `quick`: the container was opened so, and the first frame must be the one that it is indexed with.
    """
    stream = container.streams[info.stream]
    if route is not None and route.seek:
        try:
            container.seek(route.pts, stream=stream)
        except av.error.FFmpegError as e:
            raise _Late from e
    step = info.time_base[1] // (info.time_base[0] * info.rate) if route is not None else 1
    position = 0
    entered = False
    for frame in _frames(container, stream, item.path, after=route.pts if route is not None else None):
        if route is not None:
            shown, rest = divmod((frame.pts if frame.pts is not None else -1) - info.start_pts, step)
            if rest or (shown != position if entered else shown > start):
                raise _Late
            position = shown
        elif quick and not entered and frame.pts not in (None, info.start_pts):
            raise _Late
        entered = True
        _check_same(item.path, frame, info.rate, info.channels, position)
        yield position, frame
        position += frame.samples


def _frames(container: Any, stream: Any, path: str, after: int | None = None) -> Iterator[Any]:
    """Decoded frames. Damage before the first and behind the last is passed over; between them it raises."""
    context = stream.codec_context
    context.thread_count = 1
    error: Exception | None = None
    count = 0
    try:
        for packet in container.demux(stream):
            if not count and _ends_before(packet, after):
                continue
            try:
                frames = packet.decode()
            except (av.error.FFmpegError, ValueError) as e:
                error = e if count else None
                continue
            if frames and error is not None:
                raise MediaError(
                    f"{path}: its sound is damaged behind sample {count} ({reason(error)}); encode it "
                    "again or leave it out"
                ) from error
            for frame in frames:
                count += frame.samples
                yield frame
    except av.error.FFmpegError as e:
        raise MediaError(f"{path}: damaged container ({reason(e)}); fetch or encode it again") from e


def _ends_before(packet: Any, pts: int | None) -> bool:
    """Whether a packet is over by then: it need not be decoded."""
    if pts is None or not packet.size or packet.pts is None:
        return False
    return bool(packet.pts + (packet.duration or 0) <= pts)


def _check_same(path: str, frame: Any, rate: int, channels: int, position: int) -> None:
    found = frame.layout.nb_channels
    if found != channels or frame.sample_rate != rate:
        raise MediaError(
            f"{path}: from {channels} channels at {rate} Hz to {found} at {frame.sample_rate} Hz behind "
            f"sample {position}; split it there or encode it again"
        )


def _floats(frame: Any) -> Array:
    """A frame's samples as float32 [channels, n]; full scale is 1."""
    # Not by `to_ndarray`, which takes longer than decoding does: a frame is a thousand samples.
    name, n = frame.format.name, frame.samples
    dtype, scale = _STORED[name.removesuffix("p")]
    planes = frame.planes
    if name.endswith("p"):
        values = np.empty((len(planes), n), np.float32)
        for row, plane in zip(values, planes):
            row[...] = np.frombuffer(plane, dtype, n)
    else:
        channels = frame.layout.nb_channels
        values = np.empty((channels, n), np.float32)
        values[...] = np.frombuffer(planes[0], dtype, n * channels).reshape(n, channels).T
    if dtype == "u1":
        values -= 128
    if scale != 1.0:
        values *= np.float32(scale)
    return values
