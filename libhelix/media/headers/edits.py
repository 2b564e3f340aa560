"""Edit lists: which samples of a track are shown, and when, as FFmpeg has it.

An edit shows the stretch [media_time, media_time + duration) of a track. The demuxer delivers samples from
the last key frame before it on, marks those outside as not to be shown, and stops at a key frame behind its
end. Only one edit, perhaps behind a pause, is taken; others are scanned.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from libhelix.media.headers.boxes import Box, Unsure, children, only
from libhelix.media.headers.tables import Array, Samples

_USUAL_RATE = 0x10000
_LONGEST = 1 << 46
"""Ticks; far beyond any film, and far from where sums of 64 bits overflow."""


class Edit(NamedTuple):
    """What is shown of a track, in its ticks: `pause`, then `duration` from `media_time` on."""

    pause: int
    media_time: int
    duration: int


class Timeline(NamedTuple):
    """Samples [begin, end) of a track as a demuxer delivers them."""

    begin: int
    end: int
    pts: Array
    shown: Array
    skipped: int
    """Of sound: ticks at the beginning that are decoded and not heard."""


def read_edit(body: bytes, edts: Box | None, track_scale: int, movie_scale: int) -> Edit | None:
    """The edit of a track; None where all of it is shown as it is. Raises Unsure."""
    if edts is None:
        return None
    box = only(children(body, edts.begin, edts.end, {b"elst"}), b"elst")
    version = body[box.begin] if box.end - box.begin >= 8 else 2
    form = {0: ">IiI", 1: ">QqI"}.get(version)
    if form is None:
        raise Unsure("elst")
    (n,) = struct.unpack_from(">I", body, box.begin + 4)
    if n > 2 or box.end - box.begin != 8 + n * struct.calcsize(form):
        raise Unsure(f"{n} edits")
    if not n:
        return None
    rows = [struct.unpack_from(form, body, box.begin + 8 + i * struct.calcsize(form)) for i in range(n)]
    if any(rate != _USUAL_RATE or not 0 <= duration < _LONGEST for duration, _, rate in rows):
        raise Unsure("an edit of another speed, or without end")
    pause = 0
    if n == 2:
        duration, media_time, _ = rows.pop(0)
        if media_time != -1:
            raise Unsure("two edits")
        pause = _rescaled(duration, track_scale, movie_scale)
    duration, media_time, _ = rows[0]
    length = _rescaled(duration, track_scale, movie_scale)
    if not 0 <= media_time < _LONGEST or not 0 < length < _LONGEST or pause >= _LONGEST:
        raise Unsure("an empty edit, or one without end")
    return Edit(pause, media_time, length)


def _rescaled(ticks: int, to: int, of: int) -> int:
    """Rounded to the nearest, half up."""
    return (2 * ticks * to + of) // (2 * of)


def pictures(samples: Samples, edit: Edit | None) -> Timeline:
    """When pictures are shown."""
    n = len(samples.ticks)
    decoded = np.cumsum(samples.ticks) - samples.ticks
    composed = decoded if samples.shift is None else decoded + samples.shift
    if edit is None:
        return Timeline(0, n, composed, np.ones(n, bool), 0)
    if (samples.ticks[:-1] == 0).any():
        raise Unsure("samples at one time")
    begin, end = _delivered(samples, decoded, composed, edit)
    shown = (composed >= edit.media_time) & (composed < edit.media_time + edit.duration)
    shown, composed, decoded = shown[begin:end], composed[begin:end], decoded[begin:end]
    if not shown.any():
        raise Unsure("nothing is shown")
    pts = composed - decoded[int(np.argmax(shown))] + edit.pause
    first = int(pts[shown].min())
    if first < 0:
        raise Unsure("shown before time 0")
    return Timeline(begin, end, pts - max(0, first - edit.pause), shown, 0)


def _delivered(samples: Samples, decoded: Array, composed: Array, edit: Edit) -> tuple[int, int]:
    """The stretch of samples that the demuxer keeps of a video track."""
    before = np.flatnonzero(samples.key & (composed <= edit.media_time) & (decoded <= edit.media_time))
    begin = int(before[-1]) if len(before) else 0
    ticks = samples.ticks.copy()
    ticks[-1] = edit.duration
    behind = samples.key & (composed + ticks >= edit.media_time + edit.duration)
    ends = np.flatnonzero(behind[begin:])
    # Pictures that are shown before a key frame may follow it: where there are such, one more is waited for.
    needed = 1 if samples.shift is None else 2
    return begin, begin + int(ends[needed - 1]) + 1 if len(ends) >= needed else len(decoded)


def sound(ticks: Array, scale: int, edit: Edit | None) -> Timeline:
    """When packets of sound are heard; each lasts so many ticks."""
    n = len(ticks)
    starts = np.cumsum(ticks) - ticks
    if edit is None:
        return Timeline(0, n, starts, np.ones(n, bool), 0)
    if (ticks[:-1] == 0).any():
        raise Unsure("packets at one time")
    # A second earlier, for decoders that have to hear what is before.
    begin = max(0, int(np.searchsorted(starts, edit.media_time - scale, "right")) - 1)
    lasting = ticks.copy()
    lasting[-1] = edit.duration
    stop = edit.media_time + edit.duration
    ends = np.flatnonzero(starts[begin:] + lasting[begin:] >= stop)
    end = begin + int(ends[0]) + 1 if len(ends) else n
    starts, lasting = starts[begin:end], lasting[begin:end]
    heard = (starts + lasting > edit.media_time) & (starts < stop)
    if not heard.any():
        raise Unsure("nothing is heard")
    first = int(np.argmax(heard))
    anchor = max(edit.media_time, int(starts[first]))
    return Timeline(begin, end, starts - anchor + edit.pause, heard, anchor - int(starts[0]))
