"""What a batching allows a micro-batch to hold, and what a sample takes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from libhelix.recipe import nbytes
from libhelix.wire.layout import aligned, record_bytes
from libhelix.wire.messages import FieldSpec, Row
from libhelix.wire.settings import Batching, Buckets, Packed, TokenBudget


def bucket_size(batching: Buckets, row: Row, schema: Sequence[FieldSpec] = ()) -> int:
    """Samples of a micro-batch of this sample's group."""
    size = _bucket_size(batching, max(1, row.costs.get("tokens", 1)))
    if batching.max_bytes is not None and schema and row.shapes:
        size = min(size, batching.max_bytes // max(1, row_bytes(schema, row)))
    return max(1, size)


@lru_cache(maxsize=1 << 16)
def _bucket_size(batching: Buckets, tokens: int) -> int:
    return min(batching.max_samples, int(batching.compute / tokens**batching.power))


def row_bytes(schema: Sequence[FieldSpec], row: Row) -> int:
    """Bytes that a sample adds to a batch at most, but for padding to its neighbours."""
    fields = sum(aligned(nbytes(f.dtype, shape)) for f, shape in zip(schema, row.shapes))
    return fields + record_bytes(schema)


def cost_caps(batching: TokenBudget | Packed) -> dict[str, int]:
    """By declared cost, how much of it a micro-batch holds at most."""
    if isinstance(batching, TokenBudget):
        return {"tokens": batching.tokens}
    caps = {"tokens": batching.length}
    return caps if batching.max_patches is None else {**caps, "patches": batching.max_patches}


def shrink_caps(batching: Batching) -> dict[str, int]:
    """The caps above which recipes are asked to shrink a sample; none, unless the batching says so."""
    if isinstance(batching, TokenBudget | Packed) and batching.oversize == "shrink":
        return cost_caps(batching)
    return {}


def exceeded(costs: Mapping[str, int], caps: Mapping[str, int]) -> bool:
    """Whether a cost is above its cap."""
    return any(costs.get(name, 0) > cap for name, cap in caps.items())


def most_samples(batching: TokenBudget | Packed) -> int:
    """How many samples a micro-batch holds at most."""
    return batching.max_samples if isinstance(batching, TokenBudget) else 1 << 20


def multiples(batching: Batching) -> dict[str, int]:
    """By declared cost, what packed fields that count it are padded to a multiple of."""
    if not isinstance(batching, Packed) or batching.pad_to is None:
        return {}
    padded = {"tokens": batching.pad_to}
    return padded if batching.max_patches is None else {**padded, "patches": batching.max_patches}
