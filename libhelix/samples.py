"""A batch taken apart into samples, put together again of others, and what ranks tell each other of it."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from libhelix.batch import Batch
from libhelix.errors import UsageError
from libhelix.plan.leveling import Finished
from libhelix.plan.window import FILLER
from libhelix.wire.layout import Record, aligned
from libhelix.wire.messages import FieldSpec, Shape

Cost = str | Sequence[int] | torch.Tensor
_MOST_COST = 1 << 62


class Field(msgspec.Struct, frozen=True, array_like=True):
    """A field as its tensors are. A packed one has so many rows, a multiple of `multiple`."""

    name: str
    dtype: str
    layout: str
    axis: int
    multiple: int
    rows: int

    @property
    def kind(self) -> tuple[str, str, str, int, int]:
        """What is the same on all ranks."""
        return self.name, self.dtype, self.layout, self.axis, self.multiple

    @property
    def torch_dtype(self) -> torch.dtype:
        """Of its tensors."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def nbytes(self, shape: Shape) -> int:
        """Bytes of a sample of this shape."""
        return math.prod(shape) * self.torch_dtype.itemsize


class Delivered(msgspec.Struct, frozen=True, array_like=True):
    """A sample as its rank has it: its record, the shapes of its tensors by field, and what it costs."""

    id: int
    valid: bool
    planned: tuple[Shape, ...]
    true: tuple[Shape, ...]
    shapes: tuple[Shape, ...]
    cost: int

    @property
    def record(self) -> Record:
        """What a batch has of it."""
        return Record(self.id, self.valid, self.planned, self.true)


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What a rank tells of its batch, or why it cannot take part."""

    error: str = ""
    at: tuple[int, int, int] = (0, 0, 0)
    rank: int = 0
    ranks: int = 0
    device: str = ""
    terms: tuple[float, float] = (0.0, 0.0)
    fields: tuple[Field, ...] = ()
    samples: tuple[Delivered, ...] = ()

    def nbytes(self, sample: int) -> int:
        """Bytes of a sample on its way: every field begins at a multiple of 128."""
        shapes = self.samples[sample].shapes
        return sum(aligned(field.nbytes(shape)) for field, shape in zip(self.fields, shapes))


def tell(batch: Batch, cost: Cost, terms: tuple[float, float]) -> Told:
    """What the others have to know. Never raises for what the caller did: they would wait for this rank."""
    try:
        return _told(batch, cost, terms)
    except UsageError as e:
        return Told(error=str(e))


def _told(batch: Batch, cost: Cost, terms: tuple[float, float]) -> Told:
    if not isinstance(batch, Batch) or not {"_table", "_dealt"} <= batch.__dict__.keys():
        raise UsageError(
            f"this {type(batch).__name__} is not a batch as a loader gives it; rebalance it before it is "
            "pickled, collated or made into something else"
        )
    if not all(isinstance(term, float | int) and 0 <= term < math.inf for term in terms):
        raise UsageError(f"least_gain={terms[0]!r}, per_byte={terms[1]!r} must be numbers >= 0")
    others = sorted(batch.keys() - {spec.name for spec in batch._schema})
    if others:
        raise UsageError(f"the batch has {others}, which its recipe does not give; add them afterwards")
    here = [(i, spec) for i, spec in enumerate(batch._schema) if spec.name in batch]
    found = [_field(batch, i, spec) for i, spec in here]
    devices = {str(t.device) for name in batch for t in _tensors(batch[name])}
    if len(devices) != 1:
        raise UsageError(f"the batch's fields are on {sorted(devices)}; move them to one device")
    costs = _costs(batch, cost)
    by_sample = zip(*(shapes for _, shapes in found))
    return Told(
        at=(batch.epoch, batch.step, batch.micro),
        rank=batch._dealt.rank,
        ranks=batch._dealt.ranks,
        device=devices.pop().split(":")[0],
        terms=(float(terms[0]), float(terms[1])),
        fields=tuple(field for field, _ in found),
        samples=tuple(
            Delivered(r.id, r.valid, r.shapes, r.true_shapes, shapes, cost if r.valid else 0)
            for r, shapes, cost in zip(batch.records, by_sample, costs)
        ),
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in (value if isinstance(value, list) else [value]) if isinstance(t, torch.Tensor)]


def _field(batch: Batch, i: int, spec: FieldSpec) -> tuple[Field, list[Shape]]:
    """A field, and the shape that each sample has in it."""
    value, tensors, count = batch[spec.name], _tensors(batch[spec.name]), len(batch.records)
    if not tensors or isinstance(value, list) != (spec.layout == "ragged"):
        raise UsageError(f"field {spec.name!r} is no longer what the loader gave; rebalance the batch first")
    multiple = batch._dealt.multiples.get(spec.counts, 1) if spec.counts else 1
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    shape, rows = tuple(tensors[0].shape), 0
    if spec.layout == "ragged":
        shapes, fits = [tuple(t.shape) for t in tensors], len(tensors) == count
    elif spec.layout == "pack":
        lengths = [record.shapes[i][spec.axis] for record in batch.records]
        rows = -(-sum(lengths) // multiple) * multiple
        fits = len(shape) > spec.axis and shape[spec.axis] == rows
        shapes = [(*shape[: spec.axis], n, *shape[spec.axis + 1 :]) for n in lengths]
        if multiple > 1 and dtype != spec.dtype:
            raise UsageError(
                f"field {spec.name!r} is padded with {spec.pad_value} as {spec.dtype}, and has become "
                f"{dtype}; rebalance the batch before that"
            )
    else:
        shapes, fits = [shape[1:]] * count, shape[:1] == (count,)
    if not fits:
        raise UsageError(f"field {spec.name!r} was given another shape; rebalance the batch before that")
    return Field(spec.name, dtype, spec.layout, spec.axis, multiple, rows), shapes


def _costs(batch: Batch, cost: Cost) -> list[int]:
    if isinstance(cost, str):
        names = [spec.name for spec in batch._schema]
        if cost not in names:
            raise UsageError(f"cost={cost!r} is none of the fields {names}")
        i = names.index(cost)
        return [math.prod(record.true_shapes[i]) for record in batch.records]
    given = cost.tolist() if isinstance(cost, torch.Tensor) else cost
    try:
        costs = [operator.index(c) for c in given]
    except TypeError:
        costs = []
    if len(costs) != len(batch.records) or not all(0 <= c < _MOST_COST for c in costs):
        raise UsageError(
            f"cost={given!r:.80} is not a whole number >= 0 for each of the {len(batch.records)} samples; "
            "write the name of a field, or such as microseconds"
        )
    return costs


def disagreement(told: Sequence[Told]) -> str:
    """Why these batches cannot be rebalanced together; nothing where they can. The same on all ranks."""
    for i, one in enumerate(told):
        if one.error:
            return one.error if len(told) == 1 else f"rank {i} of the group: {one.error}"
    first = told[0]
    for i, one in enumerate(told[1:], 1):
        if one.at != first.at:
            return (
                f"rank {i} of the group has {_at(one)}, rank 0 has {_at(first)}; all ranks of the group call "
                "it for every batch"
            )
        for what, its, others in (
            ("(least_gain, per_byte)", one.terms, first.terms),
            ("dp_size", one.ranks, first.ranks),
            ("batches on", one.device, first.device),
            ("fields", [f.kind for f in one.fields], [f.kind for f in first.fields]),
        ):
            if its != others:
                return f"rank {i} of the group has {what} {its}, rank 0 has {others}"
    return _shared_rank(told) or _stiff_field(told)


def _at(told: Told) -> str:
    return "micro-batch {2} of step {1} of epoch {0}".format(*told.at)


def _shared_rank(told: Sequence[Told]) -> str:
    of: dict[int, int] = {}
    for i, one in enumerate(told):
        if of.setdefault(one.rank, i) != i:
            return (
                f"ranks {of[one.rank]} and {i} of the group share the batches of data-parallel rank "
                f"{one.rank}; give the group of the data-parallel ranks, such as "
                'group=mesh["dp"].get_group()'
            )
    return ""


def _stiff_field(told: Sequence[Told]) -> str:
    """A field whose samples do not fit beside those of another rank."""
    for f, field in enumerate(told[0].fields):
        if field.layout == "ragged":
            continue
        known: tuple[int, Shape] | None = None
        for i, one in enumerate(told):
            shape = one.samples[0].shapes[f]
            if field.layout == "pack":
                if not one.fields[f].rows:
                    continue  # nothing in it: its other axes mean nothing
                shape = (*shape[: field.axis], *shape[field.axis + 1 :])
            if known is not None and shape != known[1]:
                return (
                    f"field {field.name!r} ({field.layout}) has samples of {known[1]} on rank {known[0]} of "
                    f"the group and of {shape} on rank {i}; only Ragged, and Pack along its axis, hold both"
                )
            known = known or (i, shape)
    return ""


def finished(told: Sequence[Told]) -> tuple[list[list[Finished]], list[int]]:
    """What moves are decided by: the samples of all ranks, and how long each packed field may become."""
    packed = [f for f, field in enumerate(told[0].fields) if field.layout == "pack"]
    axes = [told[0].fields[f].axis for f in packed]
    ranks = [
        [
            Finished(s.cost, one.nbytes(i), tuple(s.shapes[f][axis] for f, axis in zip(packed, axes)))
            for i, s in enumerate(one.samples)
        ]
        for one in told
    ]
    return ranks, [max(one.fields[f].rows for one in told) for f in packed]


Parts = tuple[Delivered, list[torch.Tensor]]
"""A sample and its tensors, field by field."""


def taken_apart(batch: Batch, told: Told) -> list[Parts]:
    """All samples of a batch; their tensors are views of its."""
    by_field: list[Sequence[torch.Tensor]] = []
    for f, field in enumerate(told.fields):
        value = batch[field.name]
        if field.layout == "pack":
            lengths = [s.shapes[f][field.axis] for s in told.samples]
            by_field.append(value.split([*lengths, field.rows - sum(lengths)], field.axis)[:-1])
        else:
            by_field.append(list(value))  # of a tensor: along its first axis
    return [(s, list(tensors)) for s, tensors in zip(told.samples, zip(*by_field))]


def put_together(batch: Batch, told: Told, kept: Sequence[Parts | None], came: Sequence[Parts]) -> Batch:
    """The batch with those of its samples that are kept, and those that came, before any fillers. It shares
    no memory with the old one."""
    ragged = [field.layout == "ragged" for field in told.fields]
    stay = [parts for parts in kept if parts is not None]
    samples = [(s, [t.clone() if own else t for own, t in zip(ragged, tensors)]) for s, tensors in stay]
    samples += came
    samples.sort(key=lambda parts: parts[0].id == FILLER)
    specs = {spec.name: spec for spec in batch._schema}
    fields: dict[str, Any] = {}
    host: dict[str, torch.Tensor] = {}
    for f, field in enumerate(told.fields):
        tensors = [ts[f] for _, ts in samples]
        if field.layout == "pack":
            lengths = [t.shape[field.axis] for t in tensors]
            fields[field.name], padding = _packed(
                batch[field.name], field, tensors, specs[field.name].pad_value
            )
            bounds = torch.tensor([0, *lengths, *([padding] if padding else [])], dtype=torch.int32)
            host[f"{field.name}_cu_seqlens"] = bounds.cumsum(0, dtype=torch.int32)
        else:
            fields[field.name] = tensors if field.layout == "ragged" else torch.stack(tensors)
    fields = {name: fields[name] for name in batch}
    gone = [s for s, parts in zip(told.samples, kept) if parts is None]
    costs = _counted(batch, told, gone, [s for s, _ in came])
    return batch.with_samples(fields, [s.record for s, _ in samples], host, costs)


def _packed(
    old: torch.Tensor, field: Field, tensors: Sequence[torch.Tensor], pad_value: float
) -> tuple[torch.Tensor, int]:
    """Samples one after the other, and the rows of padding after them."""
    axis = field.axis
    parts = [t for t in tensors if t.shape[axis]]
    total = sum(t.shape[axis] for t in parts)
    padding = -(-total // field.multiple) * field.multiple - total
    if padding:
        like = parts[0] if parts else old
        shape = (*like.shape[:axis], padding, *like.shape[axis + 1 :])
        parts.append(torch.full(shape, pad_value, dtype=old.dtype, device=old.device))
    return (torch.cat(parts, axis) if parts else old.narrow(axis, 0, 0).clone()), padding


def _counted(
    batch: Batch, told: Told, gone: Sequence[Delivered], came: Sequence[Delivered]
) -> dict[str, int]:
    """What the samples declare now of those costs that a packed field counts, row by row."""
    specs = {spec.name: spec for spec in batch._schema}
    found: dict[str, int] = {}
    for f, field in enumerate(told.fields):
        name = specs[field.name].counts
        if field.layout == "pack" and name:
            more, less = (sum(s.shapes[f][field.axis] for s in some) for some in (came, gone))
            found[name] = batch.costs.get(name, 0) + more - less  # 0: it had fillers alone
    return found
