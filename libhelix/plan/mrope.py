"""Positions of tokens in time, height and width (M-RoPE), as the models of Qwen2-VL and later count them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]


class Vision(NamedTuple):
    """Tokens from `begin` on that are a picture or a video: `times` x `rows` x `columns` of them.

    `interval`: positions from one time to the next, rounded down after multiplying.
    """

    begin: int
    times: int
    rows: int
    columns: int
    interval: float = 1.0

    @property
    def tokens(self) -> int:
        """How many they are."""
        return self.times * self.rows * self.columns


def positions(n: int, visions: Iterable[Vision]) -> Ints:
    """Positions of n tokens, [4, n]: the place in the sequence, then time, height and width.

    Text goes on in all three by one. A vision token is at (time * interval, row, column) from where the text
    before it ends; text goes on max(rows, columns) behind that. Products are of single precision.

    Source: `get_rope_index` of transformers models/qwen2_vl, qwen2_5_vl and qwen3_vl (5.24); the first row
    is what their text models take besides to tell packed samples apart.
    """
    found = np.empty((4, n), np.int64)
    found[0] = np.arange(n)
    at = next_position = 0
    for vision in visions:
        found[1:, at : vision.begin] = next_position + np.arange(vision.begin - at)
        next_position += vision.begin - at
        at = vision.begin + vision.tokens
        block = found[1:, vision.begin : at].reshape(3, vision.times, vision.rows, vision.columns)
        times = (np.arange(vision.times, dtype=np.float32) * np.float32(vision.interval)).astype(np.int64)
        block[0] = next_position + times[:, None, None]
        block[1] = next_position + np.arange(vision.rows)[:, None]
        block[2] = next_position + np.arange(vision.columns)
        found[1:, vision.begin : at] = block.reshape(3, -1)
        next_position += max(vision.rows, vision.columns)
    found[1:, at:] = next_position + np.arange(n - at)
    return found
