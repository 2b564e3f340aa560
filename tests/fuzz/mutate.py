"""Damage as it happens to files, and as somebody would do it: drawn from a seed, the same everywhere."""

from __future__ import annotations

import random
from collections.abc import Callable

_HEAD = 600
_EXTREMES = [
    number.to_bytes(width, order)
    for width in (1, 2, 4, 8)
    for number in (0, 1, (1 << 8 * width) - 1, (1 << 8 * width - 1) - 1, 1 << 8 * width - 1)
    for order in ("big", "little")
]


def mutated(body: bytes, other: bytes, seed: int) -> bytes:
    """`body` with one to three kinds of damage; some of it comes from `other`."""
    draw = random.Random(seed)
    for _ in range(draw.choice((1, 1, 2, 3))):
        body = draw.choice(_KINDS)(body, other, draw)
    return body


def _place(body: bytes, draw: random.Random) -> int:
    """Often near the beginning or the end, where headers and tables stand."""
    n = max(1, len(body))
    where = draw.random()
    if where < 0.5:
        return draw.randrange(min(n, _HEAD))
    return draw.randrange(max(0, n - _HEAD), n) if where < 0.7 else draw.randrange(n)


def _flip(body: bytes, other: bytes, draw: random.Random) -> bytes:
    out = bytearray(body or b"\0")
    for _ in range(draw.choice((1, 2, 8, 64))):
        out[_place(body, draw)] ^= 1 << draw.randrange(8)
    return bytes(out)


def _extreme(body: bytes, other: bytes, draw: random.Random) -> bytes:
    """A number that is nothing, everything, or negative."""
    at, number = _place(body, draw), draw.choice(_EXTREMES)
    return body[:at] + number + body[at + len(number) :]


def _cut(body: bytes, other: bytes, draw: random.Random) -> bytes:
    return body[: _place(body, draw)]


def _zeros(body: bytes, other: bytes, draw: random.Random) -> bytes:
    at, n = _place(body, draw), draw.choice((4, 64, 4096))
    return body[:at] + bytes(min(n, len(body) - at)) + body[at + n :]


def _noise(body: bytes, other: bytes, draw: random.Random) -> bytes:
    at, n = _place(body, draw), draw.choice((4, 64, 4096))
    return body[:at] + draw.randbytes(min(n, len(body) - at)) + body[at + n :]


def _twice(body: bytes, other: bytes, draw: random.Random) -> bytes:
    at, n = _place(body, draw), draw.choice((1, 8, 100, 5000))
    return body[: at + n] + body[at : at + n] * draw.choice((1, 1, 50)) + body[at + n :]


def _without(body: bytes, other: bytes, draw: random.Random) -> bytes:
    at = _place(body, draw)
    return body[:at] + body[at + draw.choice((1, 8, 100, 5000)) :]


def _spliced(body: bytes, other: bytes, draw: random.Random) -> bytes:
    return body[: _place(body, draw)] + other[_place(other, draw) :]


_KINDS: tuple[Callable[[bytes, bytes, random.Random], bytes], ...] = (
    _flip, _flip, _extreme, _extreme, _extreme, _cut, _zeros, _noise, _twice, _without, _spliced,
)  # fmt: skip
