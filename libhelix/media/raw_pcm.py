"""PCM of WAV files, read where it lies: FFmpeg would copy it in pieces of a thousand samples."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from libhelix.errors import MediaError
from libhelix.media.headers.boxes import Source, Unsure
from libhelix.media.headers.wave import read_wave
from libhelix.recipe import AudioInfo, Item

Array = np.ndarray[Any, np.dtype[Any]]

_STORED = {
    "pcm_u8": ("u1", 1 / (1 << 7)),
    "pcm_s16le": ("<i2", 1 / (1 << 15)),
    "pcm_s24le": ("", 1 / (1 << 31)),  # widened to 32 bits
    "pcm_s32le": ("<i4", 1 / (1 << 31)),
    "pcm_f32le": ("<f4", 1.0),
    "pcm_f64le": ("<f8", 1.0),
}
_BYTES = {"pcm_u8": 1, "pcm_s16le": 2, "pcm_s24le": 3, "pcm_s32le": 4, "pcm_f32le": 4, "pcm_f64le": 8}
_AT_ONCE = 1 << 16
"""Samples: as many as stay in the cache of a core."""


def blocks(item: Item, info: AudioInfo, start: int, stop: int) -> Iterator[Array] | None:
    """float32 [channels, m] blocks of the samples [start, stop); None where the file is no plain WAV.

    Raises MediaError where it is gone or has changed.
    """
    if info.codec not in _STORED:
        return None
    with item.open() as file:
        try:
            wave = read_wave(Source(file.fileno(), item.offset, item.size))
        except Unsure:
            return None
    block = _BYTES[info.codec] * info.channels
    if wave is None or int.from_bytes(wave.form[12:14], "little") != block or wave.data_size < stop * block:
        return None
    return _read(item, info, item.offset + wave.data_at, start, stop)


def _read(item: Item, info: AudioInfo, at: int, start: int, stop: int) -> Iterator[Array]:
    block = _BYTES[info.codec] * info.channels
    with item.open() as file:
        for first in range(start, stop, _AT_ONCE):
            n = min(_AT_ONCE, stop - first)
            body = os.pread(file.fileno(), n * block, at + first * block)
            if len(body) < n * block:  # it was cut since it was opened
                raise MediaError(f"{item.path}: ends inside its sound; run helixctl index again")
            yield _floats(body, info)


def _floats(body: bytes, info: AudioInfo) -> Array:
    dtype, scale = _STORED[info.codec]
    if dtype:
        samples: Array = np.frombuffer(body, dtype)
    else:
        wide = np.zeros((len(body) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(body, np.uint8).reshape(-1, 3)
        samples = wide.view("<i4")[:, 0]
    values = np.empty((info.channels, len(samples) // info.channels), np.float32)
    values[...] = samples.reshape(-1, info.channels).T
    if dtype == "u1":
        values -= 128
    if scale != 1.0:
        values *= np.float32(scale)
    return values
