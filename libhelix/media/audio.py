"""Audio: what headers and a demux scan tell of a stream, and what decoding will cost.

Samples that are heard are counted, per channel: what encoders put before them (priming) and after them
(padding) is not. `libhelix.media.pcm` decodes exactly these.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av.error

from libhelix.errors import MediaError
from libhelix.media import pcm
from libhelix.media.container import (
    check_complete,
    codec_name,
    has_sound,
    open_container,
    pick_sound,
    reason,
)
from libhelix.media.headers.boxes import Source
from libhelix.media.headers.sounds import opus_samples
from libhelix.media.headers.wave import read_wave
from libhelix.recipe import AudioInfo, Item

_TAIL = 6
"""Last packets that a scan decodes: padding is cut there, and an interrupted copy ends there."""
_MOST_CHANNELS = 64


def probe(path: str | Path) -> AudioInfo:
    """The heard samples, rate and channels of a file's sound: audio files, and videos too.

    Raises MediaError for a file that is no container, has no audio stream, no samples, or none that decode.
    """
    path = os.fspath(path)
    try:
        found = os.stat(path)
    except OSError as e:
        raise MediaError(f"{path}: {e.strerror}; check the path and its permissions") from e
    return probe_item(Item(kind="audio", path=path, offset=0, size=found.st_size, mtime_ns=found.st_mtime_ns))


def probe_item(item: Item) -> AudioInfo:
    """`probe` for a file or a byte range of one."""
    with open_container(item, quick=False) as container:
        return probe_open(container, item)


def probe_open(container: Any, item: Item) -> AudioInfo:
    """`probe` for an open container, from its header where that is exact."""
    stream = pick_sound(container, item.path)
    check_complete(container, stream, item)
    form = container.format.name
    if form == "ogg":
        _refuse_chains(item)
    samples = None
    if form == "wav":
        samples = _wav_samples(stream, item)
    elif form == "flac":
        samples = _flac_samples(container, stream, item)
    if samples is not None:
        context = stream.codec_context
        base = stream.time_base
        return _checked(
            item,
            AudioInfo(
                codec=codec_name(stream),
                stream=stream.index,
                rate=context.sample_rate,
                channels=context.layout.nb_channels,
                samples=samples,
                start_pts=0,
                time_base=(base.numerator, base.denominator),
            ),
        )
    scan = Scan(container, stream, item)
    try:
        for packet in container.demux(stream):
            scan.feed(packet)
    except av.error.FFmpegError as e:
        raise MediaError(f"{item.path}: damaged container ({reason(e)}); fetch or encode it again") from e
    found = scan.finish()
    if found is None:
        codec = codec_name(stream)
        raise MediaError(f"{item.path}: none of its {codec} sound can be decoded; encode it again")
    return _checked(item, found)


def sound_of(container: Any, item: Item) -> Scan | None:
    """A scan to feed while the container is read for its pictures; None where it has no sound."""
    if not has_sound(container):
        return None
    return Scan(container, pick_sound(container, item.path), item)


class Scan:
    """Counts the heard samples of a stream from its packets; only the first and the last ones are decoded.

    Where the packets do not show their samples, all is decoded once, at the end.
    """

    def __init__(self, container: Any, stream: Any, item: Item) -> None:
        self.stream = stream
        self._item = item
        self._context = stream.codec_context
        self._context.thread_count = 1
        self._form: str = container.format.name
        self._of = _packet_samples(stream)
        self._first: Any = None
        self._count = 0
        self._last: deque[Any] = deque()
        self._plain = True
        self._newest: Any = None

    def feed(self, packet: Any) -> None:
        """The next packet of the stream."""
        if not packet.size:
            return
        self._newest = packet
        if self._of is None:
            return
        if self._first is None:
            self._count += self._decode(packet)
            return
        # A film has as many packets of sound as of pictures: little is done for each.
        self._last.append(packet)
        if len(self._last) > _TAIL:
            settled = self._last.popleft()
            self._count += self._of(settled)
            # A cut in the middle of a stream, from an edit list.
            if settled.is_discard:
                self._plain = False

    def finish(self) -> AudioInfo | None:
        """What the packets told; None where nothing could be decoded."""
        if self._of is not None:
            for packet in (*self._last, None):
                self._count += self._decode(packet)
            self._last.clear()
            if self._first is not None and self._plain:
                return self._found(self._first, self._count)
        counted, first = pcm.count_samples(self._item, self.stream.index)
        return self._found(first, counted) if first is not None else None

    def _decode(self, packet: Any) -> int:
        """Samples of a packet as the decoder gives them, or of what it still holds."""
        try:
            frames = self._context.decode(packet)
        except (av.error.FFmpegError, ValueError):
            return 0
        if frames and self._first is None:
            self._first = frames[0]
        for frame in frames:
            # More than its codec says, or other channels: this stream is not what it seemed.
            same = frame.layout.nb_channels == self._first.layout.nb_channels
            self._plain = self._plain and same and frame.sample_rate == self._first.sample_rate
        return sum(frame.samples for frame in frames)

    def _found(self, first: Any, samples: int) -> AudioInfo:
        base = first.time_base or self.stream.time_base
        start = first.pts if first.pts is not None else 0
        if "mov" in self._form.split(","):
            samples = min(samples, self._until_the_cut(start, first.sample_rate, samples))
        return AudioInfo(
            codec=codec_name(self.stream),
            stream=self.stream.index,
            rate=first.sample_rate,
            channels=first.layout.nb_channels,
            samples=samples,
            start_pts=start,
            time_base=(base.numerator, base.denominator),
        )

    def _until_the_cut(self, start: int, rate: int, most: int) -> int:
        """Samples up to where an mp4 says that its sound ends: what follows is padding.

        Both its edit list and the length of its last packet may say so; the former counts milliseconds.
        """
        begin, ticks = self.stream.start_time, self.stream.duration
        ends = [begin + ticks] if begin is not None and ticks else []
        if self._newest.pts is not None:
            ends.append(self._newest.pts + (self._newest.duration or 0))
        found = int((min(ends, default=start) - start) * self.stream.time_base * rate)
        return found if found > 0 else most


def _packet_samples(stream: Any) -> Callable[[Any], int] | None:
    """How many samples a packet decodes to, where that needs no decoding."""
    name, size = codec_name(stream), stream.codec_context.frame_size
    if name == "opus":
        return lambda packet: opus_samples(memoryview(packet))
    if name == "ac3":
        size = 1536
    if name in ("mp2", "mp3", "aac", "ac3") and size > 0:
        return lambda _: size
    return None


def _wav_samples(stream: Any, item: Item) -> int | None:
    """Samples of a PCM WAV by its header; by the file's end where the header says more, or nothing."""
    context = stream.codec_context
    if not context.name.startswith("pcm_") or context.name in ("pcm_alaw", "pcm_mulaw"):
        return None
    with item.open() as file:
        found = read_wave(Source(file.fileno(), item.offset, item.size))
    block = int.from_bytes(found.form[12:14], "little") if found is not None else 0
    return found.data_size // block if found is not None and block else None


def _flac_samples(container: Any, stream: Any, item: Item) -> int | None:
    """The header's total, if the last packet agrees; None where the header does not tell.

    Raises MediaError where the file ends before that: an interrupted copy.
    """
    total: int | None = stream.duration
    if not total or stream.time_base != Fraction(1, stream.codec_context.sample_rate):
        return None
    end = 0
    try:
        container.seek(max(0, total - 1), stream=stream)
        for packet in container.demux(stream):
            if packet.size and packet.pts is not None:
                end = packet.pts + (packet.duration or 0)
    except av.error.FFmpegError:
        return None
    if end < total:
        raise MediaError(
            f"{item.path}: truncated: it ends at sample {end} of {total}; fetch it again or encode it again"
        )
    return total


def _refuse_chains(item: Item) -> None:
    """Raise MediaError for an Ogg file of several streams one after another: times start again in it."""
    at, began = 0, False
    with item.open() as file:
        while at + 27 <= item.size:
            file.seek(item.offset + at)
            head = file.read(27 + 255)
            if head[:4] != b"OggS":
                return  # damage, which demuxing shows
            first = bool(head[5] & 2)
            if first and began:
                raise MediaError(
                    f"{item.path}: a chained Ogg: another stream begins at byte {at}, maybe with other "
                    "channels; split it, or join its parts by encoding them again"
                )
            began = began or not first
            segments = head[26]
            at += 27 + segments + sum(head[27 : 27 + segments])


def _checked(item: Item, info: AudioInfo) -> AudioInfo:
    if info.samples <= 0 or info.rate <= 0:
        raise MediaError(f"{item.path}: its sound has no samples; leave it out or fetch it again")
    if not 0 < info.channels <= _MOST_CHANNELS:
        raise MediaError(f"{item.path}: {info.channels} channels, of {_MOST_CHANNELS} at most; leave it out")
    return info


_OPENING_US = 600
_NS = {"flac": 20, "mp3": 22, "aac": 20, "vorbis": 32, "opus": 35, "ac3": 25, "amr_nb": 200, "amr_wb": 200}
"""CPU nanoseconds to decode a sample of one channel, as measured; PCM takes 8."""
_NS_RESAMPLED = 18
"""For each sample that goes into the resampler, of one channel."""


def decode_cost_us(info: AudioInfo, start: int, stop: int, rate: int, channels: int) -> int:
    """Predicted CPU microseconds of decoding the samples [start, stop) to so many channels at `rate`."""
    name = info.codec
    ns = (
        (stop - pcm.entry(info, start))
        * info.channels
        * (8 if name.startswith("pcm_") else _NS.get(name, 40))
    )
    if rate != info.rate:
        ns += (stop - start) * channels * _NS_RESAMPLED
    return _OPENING_US + ns // 1000
