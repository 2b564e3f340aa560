"""Decoding a sound completely: what of it is broken, odd or slow to reach."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from libhelix.media import pcm
from libhelix.media.container import open_container
from libhelix.media.finding import AGAIN, Finding
from libhelix.recipe import AudioInfo, Item

SLOW_STRETCH_S = 1.0
"""To decode all that is before the last second."""
_SILENT = 1e-4
"""Minus 80 dB: dither of 16 bits is below it."""
_FULL = 32767 / 32768
_FULL_U8 = 127 / 128
_CLIPPED = 0.01
_MISSING_S, _MISSING_SHARE = 1.0, 0.02
_SAYING = ("aiff", "matroska,webm", "flv")
"""Containers whose length FFmpeg takes from the header alone, where that was written at the end."""
_STREAMED = (0, 0xFFFFFFFF)
"""Sizes in a WAV whose writer could not come back to its header."""
_MOST_CHUNKS = 1000
_TAGS = (b"Xing", b"Info")


class _Heard(NamedTuple):
    """Of all samples of all channels."""

    values: int
    peak: float
    full: int
    unfinite: int
    took_s: float


def look(item: Item) -> list[Finding]:
    """What is to be said of a sound. Raises MediaError where it cannot be decoded to its end."""
    info = item.audio
    if info is None:
        return [Finding("broken", f"indexed without its length; {AGAIN}")]
    heard = _listen(item, info)
    said_s, enters = _opened(item, info)
    found = []
    end_s = info.duration_s + info.start_pts * info.time_base[0] / info.time_base[1]
    if said_s is not None and said_s - end_s > max(_MISSING_S, _MISSING_SHARE * said_s):
        found.append(
            Finding(
                "broken",
                f"its header says {said_s:.1f} s, {end_s:.1f} s are there, as of an interrupted copy; "
                "fetch it again",
            )
        )
    if heard.unfinite:
        found.append(
            Finding(
                "odd", f"{heard.unfinite:,} of {heard.values:,} samples are NaN or infinite; make it again"
            )
        )
    elif heard.peak < _SILENT:
        found.append(Finding("odd", "silent throughout; leave it out if that is not meant"))
    if heard.full > _CLIPPED * heard.values:
        share = heard.full / heard.values
        found.append(
            Finding("odd", f"{share:.1%} of its samples are at full scale: clipped; record it softer")
        )
    if not enters and heard.took_s > SLOW_STRETCH_S:
        found.append(
            Finding(
                "slow",
                f"its last second costs {heard.took_s:.1f} s, as {info.codec} in this container is decoded "
                f"from its beginning; ffmpeg -i {item.path!r} -vn -c:a flac OUT.flac",
            )
        )
    return found


def _listen(item: Item, info: AudioInfo) -> _Heard:
    limit = _FULL_U8 if info.codec == "pcm_u8" else _FULL
    values = full = unfinite = 0
    peak = 0.0
    began = time.thread_time()
    for block in pcm.heard(item):
        loud = np.abs(block)
        most = float(loud.max(initial=0))
        if not np.isfinite(most):
            finite = loud[np.isfinite(loud)]
            unfinite += loud.size - finite.size
            loud, most = finite, float(finite.max(initial=0))
        values += block.size
        peak = max(peak, most)
        if most >= limit:
            full += int((loud >= limit).sum())
    return _Heard(values, peak, full, unfinite, time.thread_time() - began)


def _opened(item: Item, info: AudioInfo) -> tuple[float | None, bool]:
    """(seconds that the header says, if it does; whether the end is reached without all before it)."""
    with open_container(item, quick=False) as container:
        return _said_s(container, item, info), pcm.enters(container, info)


def _said_s(container: Any, item: Item, info: AudioInfo) -> float | None:
    others = [s for s in container.streams if s.index != info.stream and s.type != "video"]
    if others or item.video is not None:
        return None
    form = container.format.name
    if form == "wav":
        return _wav_said_s(item)
    if form == "mp3" and not _is_tagged(item):
        return None  # FFmpeg guesses by the bit rate
    if form != "mp3" and (form not in _SAYING or len(container.streams) > 1):
        return None
    return container.duration / 1e6 if container.duration and container.duration > 0 else None


def _wav_said_s(item: Item) -> float | None:
    """Of its data, by its own size; None where that says nothing."""
    at, bytes_per_s = 12, 0
    with item.open() as file:
        for _ in range(_MOST_CHUNKS):
            file.seek(item.offset + at)
            head = file.read(8 + 12)
            name, size = head[:4], int.from_bytes(head[4:8], "little")
            if len(head) < 8 or at > item.size:
                return None
            if name == b"fmt ":
                bytes_per_s = int.from_bytes(head[16:20], "little")
            elif name == b"data":
                return size / bytes_per_s if bytes_per_s and size not in _STREAMED else None
            at += 8 + size + (size & 1)
    return None


def _is_tagged(item: Item) -> bool:
    """Whether the first frame of an MP3 says how many follow."""
    with item.open() as file:
        head = file.read(10)
        if head[:3] == b"ID3":
            size = sum((byte & 127) << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0)))
            file.seek(item.offset + 10 + size)
            head = b""
        head += file.read(256)
    return any(tag in head for tag in _TAGS)
