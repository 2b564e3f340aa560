"""Channels and rates: which channels become which, and a sample rate into another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import av
import numpy as np

from libhelix.errors import MediaError

Array = np.ndarray[Any, np.dtype[Any]]

_HALF = 0.5**0.5
_FRONT_LEFT = {"FL": 1.0, "FC": _HALF, "FLC": 1.0, "SL": _HALF, "BL": _HALF, "BC": 0.5, "DL": 1.0}
_FRONT_RIGHT = {"FR": 1.0, "FC": _HALF, "FRC": 1.0, "SR": _HALF, "BR": _HALF, "BC": 0.5, "DR": 1.0}
"""What of each channel goes left and right: ITU-R BS.775, table 2, format 2/0. LFE is left out."""
_BLOCK = 32_768
"""Samples given to the resampler at once: it has a cost per call."""
_TAPS = 64
"""Samples of silence behind the end, at the lower of the rates: more than the filter is long."""


def resampled_length(samples: int, rate_in: int, rate_out: int) -> int:
    """ceil(samples * rate_out / rate_in): the samples of `rate_out` that begin within the sound."""
    return -(-samples * rate_out // rate_in)


def mixing_matrix(names: Sequence[str], channels: int, path: str = "") -> Array:
    """float32 [channels, source's channels], each row summing to 1, so that nothing clips.

    As many as the source has: as they are. 1 to n: copies. n to 2: ITU-R BS.775 (centre and surrounds at
    0.7071, LFE left out). n to 1: the mean of those two, so stereo becomes (L + R) / 2 and 5.1 becomes 1 L, 1
    R, 1.414 C, 0.707 of each surround, over their sum. To 1 from channels without places (16 microphones):
    their mean. Raises MediaError for all else.
    """
    n = len(names)
    if channels == n:
        return np.eye(n, dtype=np.float32)
    if n == 1:
        return np.ones((channels, 1), np.float32)
    pair = np.array([[side.get(name, 0.0) for name in names] for side in (_FRONT_LEFT, _FRONT_RIGHT)])
    placed = all(name in _FRONT_LEFT or name in _FRONT_RIGHT or name == "LFE" for name in names)
    if channels == 1:
        row = pair.sum(axis=0, keepdims=True) if placed and pair.any() else np.ones((1, n))
        return np.asarray(row / row.sum(), np.float32)
    if channels == 2 and placed and pair.any(axis=1).all():
        return np.asarray(pair / pair.sum(axis=1, keepdims=True), np.float32)
    raise MediaError(
        f"{path}: {n} channels ({', '.join(names)}) do not become {channels}; ask for 1, or for all {n}"
    )


def mix(block: Array, matrix: Array) -> Array:
    """[channels, n] of a block [source's channels, n]."""
    if matrix.shape[0] == matrix.shape[1]:
        return block
    # Term after term: a matrix product may round differently from one machine to the next.
    out = np.zeros((len(matrix), block.shape[1]), np.float32)
    for to, row in enumerate(matrix):
        for channel, weight in zip(block, row):
            if weight:
                out[to] += weight * channel
    return out


class Resampler:
    """From one rate to another by swresample, exactly `length` samples: one context for each channel."""

    def __init__(self, rate_in: int, rate_out: int, channels: int, length: int) -> None:
        self._rate_in = rate_in
        self._left = length
        self._silence = _TAPS * -(-rate_in // min(rate_in, rate_out))
        self._contexts = [
            av.AudioResampler(format="fltp", layout="mono", rate=rate_out) for _ in range(channels)
        ]

    def run(self, blocks: Iterable[Array]) -> Iterator[Array]:
        """The resampled blocks of a whole stretch."""
        held: list[Array] = []
        size = 0
        for block in blocks:
            held.append(block)
            size += block.shape[1]
            if size >= _BLOCK:
                yield self._cut(self._push(np.concatenate(held, axis=1)))
                held, size = [], 0
        # The filter looks ahead: the last samples come out once silence has followed them.
        held.append(np.zeros((len(self._contexts), self._silence), np.float32))
        yield self._cut(self._push(np.concatenate(held, axis=1)))
        yield self._cut(self._push(None))

    def _push(self, block: Array | None) -> Array:
        rows = []
        for channel, context in enumerate(self._contexts):
            frame = None
            if block is not None:
                frame = av.AudioFrame.from_ndarray(
                    np.ascontiguousarray(block[channel : channel + 1]), format="fltp", layout="mono"
                )
                frame.sample_rate = self._rate_in
            got = [f.to_ndarray() for f in context.resample(frame)]
            rows.append(np.concatenate(got, axis=1) if got else np.zeros((1, 0), np.float32))
        return np.concatenate(rows, axis=0)

    def _cut(self, block: Array) -> Array:
        block = block[:, : self._left]
        self._left -= block.shape[1]
        return block
