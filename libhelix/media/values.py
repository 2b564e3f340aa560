"""The values of stored arrays, read straight to where they are wanted."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from libhelix.errors import MediaError, UsageError
from libhelix.recipe import DTYPES, Item

Array = np.ndarray[Any, np.dtype[Any]]

_PIECES_PER_CALL = 1024
"""IOV_MAX of Linux."""
_SMALL_BYTES = 16 << 10
"""Pieces of a strided array below this are copied from a buffer: that takes less than naming each."""
_BUFFER_BYTES = 1 << 18


def read(item: Item, out: Array, first_row: int = 0) -> None:
    """Read a stored array into `out`, which may be strided; or its rows from `first_row` on, as many as fit.

    bfloat16 is given as uint16. Raises MediaError where the file is not what was indexed.
    """
    info = item.tensor
    if info is None:
        raise MediaError(f"{item.path}: indexed without what its header says; run helixctl index again")
    rows = out.shape[0] if out.ndim else 1
    stored = info.shape[0] if info.shape else 1
    if (
        out.shape[1:] != info.shape[1:]
        or out.ndim != len(info.shape)
        or out.itemsize != DTYPES[info.dtype]
        or not 0 <= first_row <= first_row + rows <= stored
    ):
        raise UsageError(
            f"{item.path}: rows {first_row} to {first_row + rows} of {info.dtype} {info.shape} do not fit "
            f"an array of {out.dtype} {out.shape}"
        )
    at = item.offset + first_row * out.itemsize * math.prod(info.shape[1:])
    with item.open() as file:
        _read(_Source(file.fileno(), item.path), out, at)
    if info.dtype == "bool":
        # A byte that is neither 0 nor 1 is a bool that is neither true nor false.
        raw = out.view(np.uint8)
        np.minimum(raw, 1, out=raw)


class _Source:
    """A file to read at places."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def read(self, pieces: Sequence[memoryview], at: int) -> None:
        """Fill all pieces with the bytes that begin at `at`."""
        for first in range(0, len(pieces), _PIECES_PER_CALL):
            left = [piece for piece in pieces[first : first + _PIECES_PER_CALL] if piece.nbytes]
            while left:
                got = os.preadv(self._fd, left, at)
                if got == 0:
                    raise MediaError(f"{self._path}: ends inside its values; run helixctl index again")
                at += got
                left = _rest(left, got)


def _rest(pieces: list[memoryview], got: int) -> list[memoryview]:
    """What is left to fill of pieces when so many bytes have come."""
    for i, piece in enumerate(pieces):
        if got < piece.nbytes:
            return [piece[got:], *pieces[i + 1 :]]
        got -= piece.nbytes
    return []


def _read(source: _Source, out: Array, at: int) -> None:
    if out.size == 0:
        return
    axes, nbytes = _dense_from(out)
    if axes == 0 or nbytes >= _SMALL_BYTES:
        # With ..., because a scalar would not be a view.
        places = [(*i, ...) for i in np.ndindex(out.shape[:axes])]
        source.read([_bytes(out[place]) for place in places], at)
        return
    row_bytes = out.nbytes // out.shape[0]
    rows = _BUFFER_BYTES // row_bytes
    if rows == 0:
        for i in range(out.shape[0]):
            _read(source, out[i], at + i * row_bytes)
        return
    buffer = np.empty((min(rows, out.shape[0]), *out.shape[1:]), out.dtype)
    for first in range(0, out.shape[0], rows):
        some = buffer[: min(rows, out.shape[0] - first)]
        source.read([_bytes(some)], at + first * row_bytes)
        out[first : first + rows] = some


def _dense_from(out: Array) -> tuple[int, int]:
    """(the axis from which on `out` is dense, the bytes of such a piece)."""
    axis, nbytes = out.ndim, out.itemsize
    while axis and (out.shape[axis - 1] == 1 or out.strides[axis - 1] == nbytes):
        axis -= 1
        nbytes *= out.shape[axis]
    return axis, nbytes


def _bytes(dense: Array) -> memoryview:
    return memoryview(dense.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # numpy 2 types it so
