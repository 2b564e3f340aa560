"""The order of an epoch: a keyed permutation of [0, n) with random access and no memory.

A Feistel network over the smallest even number of bits that holds n; what falls outside [0, n) is walked
along its cycle until it is inside. All integer arithmetic, so that every machine gets the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_U64 = np.uint64
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_LOT = 0x424C4F434B53


def _mix_int(x: int) -> int:
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers without a pattern, one for each; different ones for different x."""
    # The finaliser of splitmix64 (Steele, Lea, Flood 2014), wrapping as uint64 arrays do.
    y: NDArray[np.uint64] = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    y = (y ^ (y >> _U64(27))) * _U64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = y ^ (y >> _U64(31))
    return mixed


def _half_bits(n: int) -> int:
    return ((max(n, 2) - 1).bit_length() + 1) // 2


class Permutation:
    """A permutation of [0, n), chosen by (seed, epoch)."""

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        self.n = n
        self._half = _half_bits(n)
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
            left, right = right, left ^ (mix(right + key) & mask)
        joined: NDArray[np.uint64] = (left << half) | right
        return joined


class BlockPermutation:
    """A permutation of [0, n), chosen by (seed, epoch), that keeps each `block` neighbours together.

    The blocks come in a permuted order, and the elements of each in an order of its own. A last block that is
    not full comes at any place among the others. With block=1 it is Permutation(n, seed, epoch).
    """

    def __init__(self, n: int, block: int, seed: int, epoch: int) -> None:
        self.n = n
        self.block = block
        self._epoch = epoch & _MASK
        self._one = Permutations([n], [block], np.array([seed & _MASK], dtype=np.uint64))

    def __getitem__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The elements at these positions, each in [0, n)."""
        at = positions.ravel()
        epochs = np.full(len(at), self._epoch, dtype=np.uint64)
        return self._one.elements(np.zeros_like(at), epochs, at).reshape(positions.shape)


def source_seeds(seed: int, sources: int) -> NDArray[np.uint64]:
    """A seed for each of several sources; the first has the one given."""
    seeds = mix(_U64(_mix_int(seed & _MASK)) + np.arange(sources, dtype=np.uint64) * _U64(_GOLDEN))
    seeds[:1] = seed & _MASK
    return seeds


class Permutations:
    """`BlockPermutation(sizes[s], blocks[s], seeds[s], ...)` for many s, looked up all at once."""

    def __init__(self, sizes: Sequence[int], blocks: Sequence[int], seeds: NDArray[np.uint64]) -> None:
        full = [n // b for n, b in zip(sizes, blocks)]
        last = [n % b for n, b in zip(sizes, blocks)]
        self._keys = mix(seeds + _U64(_GOLDEN))
        self._whole = all(b == 1 for b in blocks)
        self._block = np.array(blocks, dtype=np.int64)
        self._full = np.array(full, dtype=np.int64)
        self._last = np.array(last, dtype=np.int64)
        self._full_half, self._block_half, self._last_half = (
            np.array([_half_bits(n) for n in ns], dtype=np.uint64) for ns in (full, blocks, last)
        )

    def elements(
        self, which: NDArray[np.int64], epochs: NDArray[np.uint64], positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """For each entry, the element at its position of permutation `which` in its epoch. One dimension."""
        keys = mix((self._keys[which] ^ epochs) + _U64(_GOLDEN))
        full, full_half = self._full[which], self._full_half[which]
        if self._whole:
            return _permuted(positions, full, full_half, keys)
        block, last = self._block[which], self._last[which]
        lots = mix(keys ^ _U64(_LOT))
        # The last block, if not full, stands in slot `its`; every other slot has a full one.
        its = np.where(last > 0, (lots % (full + 1).astype(np.uint64)).astype(np.int64), full)
        begin = its * block
        behind = positions >= begin + last
        partial = (positions >= begin) & ~behind
        slot, inside = np.divmod(positions + np.where(behind, block - last, 0), block)
        slot = np.where(partial, 0, slot - (slot > its))
        number = np.where(partial, full, _permuted(slot, np.maximum(full, 1), full_half, keys))
        inner = mix(lots + (number + 1).astype(np.uint64) * _U64(_GOLDEN))
        size = np.where(partial, last, block)
        half = np.where(partial, self._last_half[which], self._block_half[which])
        return number * block + _permuted(inside, size, half, inner)


def _permuted(
    positions: NDArray[np.int64], n: NDArray[np.int64], half: NDArray[np.uint64], key: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """What Permutation does, where each entry has a size and a key of its own."""
    out = _network(positions.astype(np.uint64), half, key)
    limit = n.astype(np.uint64)
    outside = np.flatnonzero(out >= limit)
    while len(outside):
        out[outside] = _network(out[outside], half[outside], key[outside])
        outside = outside[out[outside] >= limit[outside]]
    return out.astype(np.int64)


def _network(x: NDArray[np.uint64], half: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mask = (_U64(1) << half) - _U64(1)
    left, right = x >> half, x & mask
    for _ in range(_ROUNDS):
        key = mix(key + _U64(_GOLDEN))
        left, right = right, left ^ (mix(right + key) & mask)
    joined: NDArray[np.uint64] = (left << half) | right
    return joined
