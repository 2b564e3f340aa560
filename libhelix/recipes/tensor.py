"""Stored arrays, as they are: latents, embeddings, labels."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from libhelix.errors import MediaError, UsageError
from libhelix.recipe import (
    MAX_CUTS,
    Descriptor,
    Field,
    Item,
    Layout,
    Pack,
    Pad,
    Part,
    Ragged,
    Recipe,
    Rng,
    Sample,
    Stack,
    nbytes,
)

_LAYOUTS = ("stack", "pad", "pack", "ragged")
_NAMELESS = "tensor"
_BYTES_PER_US = 2000
"""Read from the page cache, as measured."""
_US_OPENING = 40
_PART_BYTES = 4 << 20
"""A part is worth a task of its own from about 2 ms on."""

LayoutName = Literal["stack", "pad", "pack", "ragged"]


class Tensor(Recipe, frozen=True):
    """A field for every stored array of a sample, or for those of `names`, in that order.

    A field has the name of its array; that of a lone .npy file is "tensor". `layout` and `pad` (the value
    that "pad" and "pack" pad with) hold for all, or are given by name. The first array that has axes can be
    read in parts, row by row; if it is packed, its rows are the declared cost "tokens".
    """

    names: tuple[str, ...] | None = None
    layout: LayoutName | dict[str, LayoutName] = "stack"
    pad: int | float | dict[str, int | float] = 0

    def __post_init__(self) -> None:
        names = self.names
        _check_names(names)
        layouts = self.layout.values() if isinstance(self.layout, dict) else (self.layout,)
        if not all(layout in _LAYOUTS for layout in layouts):
            raise UsageError(f"Tensor(layout={self.layout!r}) must be of {', '.join(_LAYOUTS)}")
        for of, given in (("layout", self.layout), ("pad", self.pad)):
            unknown = set(given) - set(names) if isinstance(given, dict) and names is not None else set()
            if unknown:
                raise UsageError(f"Tensor({of}=) names {sorted(unknown)}, which names={names!r} does not")

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """One field per array; cut into parts of some megabytes where the first is longer."""
        del rng
        items = self._items(sample)
        fields: list[Field] = []
        costs: dict[str, int] = {}
        split: Field | None = None
        for name, item in items.items():
            field = self._field(sample, name, item, first=split is None)
            fields.append(field)
            if field.rows_per_unit:
                split = field
                if isinstance(field.layout, Pack):
                    costs["tokens"] = field.shape[0]
        units = max(1, split.shape[0]) if split is not None else 1
        cuts, segment_us = _parts(fields, split, units)
        return Descriptor(
            fields=tuple(fields), units=units, cuts=cuts, segment_us=segment_us, costs=costs, kind="tensor"
        )

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """Read the values straight into `out`."""
        from libhelix.media import values

        items = self._items(sample)
        for field in desc.fields:
            if field.name in out:
                values.read(items[field.name], out[field.name], part.begin * field.rows_per_unit)

    def _items(self, sample: Sample) -> dict[str, Item]:
        """The arrays by the names of their fields, in their order. Raises MediaError where one is missing."""
        stored: dict[str, Item] = {}
        for item in sample.all("tensor"):
            name = item.name or _NAMELESS
            if name in stored:
                raise MediaError(f"{sample.key}: two arrays are named {name!r}; rename one")
            stored[name] = item
        missing = [name for name in self.names or () if name not in stored]
        if missing or not stored:
            has = ", ".join(stored) or ", ".join(f"{i.kind} {i.name}".strip() for i in sample.items)
            raise MediaError(
                f"{sample.key}: no array {', '.join(missing) or 'at all'}, only {has or 'nothing'}; "
                "store it, or leave the sample out"
            )
        return stored if self.names is None else {name: stored[name] for name in self.names}

    def _field(self, sample: Sample, name: str, item: Item, *, first: bool) -> Field:
        info = item.tensor
        if info is None:
            raise MediaError(f"{sample.key}: indexed without what its header says; run helixctl index again")
        split = 1 if first and info.shape else 0
        return Field(name, info.dtype, info.shape, self._layout(sample, name, item, split), split)

    def _layout(self, sample: Sample, name: str, item: Item, split: int) -> Layout:
        layout = self.layout.get(name, "stack") if isinstance(self.layout, dict) else self.layout
        pad: Any = self.pad.get(name, 0) if isinstance(self.pad, dict) else self.pad
        if layout == "pad":
            return Pad(pad)
        if layout == "pack":
            if item.tensor is not None and not item.tensor.shape:
                raise MediaError(f'{sample.key}: array {name!r} is one number; only "stack" takes these')
            return Pack(counts="tokens" if split else "", value=pad)
        return Ragged() if layout == "ragged" else Stack()


def _check_names(names: object) -> None:
    several = names if isinstance(names, (tuple, list)) else ()
    if names is not None and (not several or len(set(several)) < len(several)):
        raise UsageError(f'Tensor(names={names!r}) must be different names, such as names=("latent",)')


def _parts(fields: list[Field], split: Field | None, units: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Cuts at equal distances, and what the parts between them cost; the first has all that is not split."""
    whole = nbytes(split.dtype, split.shape) if split is not None else 0
    rest = sum(nbytes(f.dtype, f.shape) for f in fields if f is not split)
    parts = max(1, min(MAX_CUTS + 1, units, whole // _PART_BYTES))
    bounds = [units * i // parts for i in range(parts + 1)]
    us = [_US_OPENING + whole * (b - a) // units // _BYTES_PER_US for a, b in pairwise(bounds)]
    us[0] += _US_OPENING * (len(fields) - 1) + rest // _BYTES_PER_US
    return tuple(bounds[1:-1]), tuple(us)
