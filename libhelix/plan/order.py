"""The order of an epoch: a keyed permutation of [0, n) with random access and no memory.

A Feistel network over the smallest even number of bits that holds n; what falls outside [0, n) is walked
along its cycle until it is inside. All integer arithmetic, so that every machine gets the same order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_U64 = np.uint64
_MASK = (1 << 64) - 1


def _mix_int(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # The finaliser of splitmix64 (Steele, Lea, Flood 2014), wrapping as uint64 arrays do.
    y: NDArray[np.uint64] = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    y = (y ^ (y >> _U64(27))) * _U64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = y ^ (y >> _U64(31))
    return mixed


class Permutation:
    """A permutation of [0, n), chosen by (seed, epoch)."""

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        self.n = n
        self._half = max(1, ((max(n, 2) - 1).bit_length() + 1) // 2)
        key = _mix_int(_mix_int(seed & _MASK) ^ (epoch & _MASK))
        self._keys = []
        for _ in range(_ROUNDS):
            key = _mix_int(key)
            self._keys.append(_U64(key))

    def __getitem__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The elements at these positions, each in [0, n)."""
        out = self._round_trip(positions.astype(np.uint64))
        outside = out >= _U64(self.n)
        while outside.any():  # at most 3/4 of the network's range is outside: a few walks on average
            out[outside] = self._round_trip(out[outside])
            outside = out >= _U64(self.n)
        return out.astype(np.int64)

    def _round_trip(self, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        half, mask = _U64(self._half), _U64((1 << self._half) - 1)
        left, right = x >> half, x & mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        joined: NDArray[np.uint64] = (left << half) | right
        return joined
