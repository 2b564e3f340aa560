"""Reading a stored array completely: are all values there, and are they numbers?"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from libhelix.media import values
from libhelix.media.finding import AGAIN, Finding
from libhelix.recipe import DTYPES, Item, TensorInfo

_BYTES_AT_ONCE = 16 << 20


def look(item: Item) -> list[Finding]:
    """What is to be said of an array. Raises MediaError where its values cannot be read."""
    info = item.tensor
    if info is None:
        return [Finding("broken", f"indexed without what its header says; {AGAIN}")]
    n = math.prod(info.shape)
    if n == 0:
        return [Finding("odd", f"its shape {info.shape} has no values; leave it out if that is not meant")]
    # As one row of values: a piece of it is then of any length.
    flat = msgspec.structs.replace(item, tensor=TensorInfo(dtype=info.dtype, shape=(n,)))
    dtype = "uint16" if info.dtype == "bfloat16" else info.dtype
    piece = np.empty(min(n, max(1, _BYTES_AT_ONCE // DTYPES[info.dtype])), dtype)
    bad = 0
    for first in range(0, n, len(piece)):
        some = piece[: min(len(piece), n - first)]
        values.read(flat, some, first)
        bad += _unfinite(some, info.dtype)
    if not bad:
        return []
    return [Finding("odd", f"{bad:,} of {n:,} values are NaN or infinite; make it again, or leave it out")]


def _unfinite(some: np.ndarray[Any, np.dtype[Any]], dtype: str) -> int:
    if dtype == "bfloat16":
        return int(((some & 0x7F80) == 0x7F80).sum())
    return int((~np.isfinite(some)).sum()) if dtype.startswith("float") else 0
