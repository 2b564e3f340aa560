"""What `next()` returns: a mutable dict of tensors. Everything else about the batch is an attribute, so that
`model(**batch)` works."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch

from libhelix.errors import UsageError
from libhelix.plan.progress import Told
from libhelix.plan.window import FILLER
from libhelix.recipe import Sample
from libhelix.wire import messages as m
from libhelix.wire.layout import Record, pack_record, read_table
from libhelix.wire.settings import Position

_NOT_SENT = ("_schema", "_table", "_sample_of", "_samples", "_dealt", "records")
_LOOKED_UP = ("ids", "valid", "shapes", "sample_keys", "sample_sources")


class Dealt(NamedTuple):
    """The data-parallel rank that a batch was dealt to, of how many; and what the rows of its packed fields
    are padded to multiples of, by the cost that they count."""

    rank: int
    ranks: int
    multiples: Mapping[str, int]


class Batch(dict[str, Any]):
    """Tensors by field name; lists of tensors where a field is ragged.

    epoch, step, micro   where it stands
    ids, sample_keys     rows of the index and names of its samples (`keys` is the method of dicts)
    sample_sources       the files that the samples lie in: a tar or a table, or the first of their own
    valid                bool [B]: false for samples that are masked
    shapes               by padded field, the true shape of every sample
    num_samples, num_tokens, num_targets           of this batch, as declared
    global_samples, global_tokens, global_targets  of the step: all ranks and micro-batches
    host                 small integer tensors that stay on the host, such as "<field>_cu_seqlens" (int32)

    `Batch(mapping)` keeps the attributes of a Batch.
    """

    epoch: int
    step: int
    micro: int
    num_samples: int
    fillers: int
    global_samples: int
    costs: dict[str, int]
    global_costs: dict[str, int]
    host: dict[str, torch.Tensor]
    _schema: m.Schema
    _table: bytes
    _sample_of: Callable[[int], Sample]
    _dealt: Dealt
    _unknown_costs: frozenset[str] = frozenset()
    """Declared costs that nobody knows of just these samples any more."""

    def __init__(self, fields: Mapping[str, Any], **attributes: Any) -> None:
        super().__init__(fields)
        self.__dict__.update(fields.__dict__ if isinstance(fields, Batch) else {})
        self.__dict__.update(attributes)

    # What is not looked at in every step is made when it first is: `next()` is in the trainer's time.

    @cached_property
    def records(self) -> list[Record]:
        """What the workers noted of every sample."""
        return read_table(self._schema, memoryview(self._table), self.num_samples + self.fillers)

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """Rows of the index."""
        return tuple(record.id for record in self.records)

    @cached_property
    def valid(self) -> torch.Tensor:
        """bool [B]: false for samples that are masked."""
        return torch.tensor([record.valid for record in self.records])

    @cached_property
    def shapes(self) -> dict[str, list[tuple[int, ...]]]:
        """By padded field, the true shape of every sample."""
        padded = [(i, spec.name) for i, spec in enumerate(self._schema) if spec.layout == "pad"]
        return {name: [record.true_shapes[i] for record in self.records] for i, name in padded}

    @cached_property
    def sample_keys(self) -> tuple[str, ...]:
        """Names of the samples, from the index."""
        return tuple(sample.key if sample else "" for sample in self._samples)

    @cached_property
    def sample_sources(self) -> tuple[str, ...]:
        """The file that each sample lies in, the first where they are several; "" where there is none."""
        return tuple(s.items[0].path if s and s.items else "" for s in self._samples)

    @cached_property
    def _samples(self) -> list[Sample | None]:
        return [self._sample_of(i) if i != FILLER else None for i in self.ids]

    @property
    def num_tokens(self) -> int:
        """Declared tokens of this batch."""
        self._check_known("tokens")
        return self.costs.get("tokens", 0)

    @property
    def global_tokens(self) -> int:
        """Declared tokens of the step."""
        return self.global_costs.get("tokens", 0)

    @property
    def num_targets(self) -> int:
        """Declared target tokens of this batch. Raises UsageError where its recipe declares none."""
        self._check_known("targets")
        return self._targets(self.costs, self.num_samples)

    @property
    def global_targets(self) -> int:
        """Declared target tokens of the step. Raises UsageError where its recipe declares none: a loss that
        is divided by it would not be what it looks like."""
        return self._targets(self.global_costs, self.global_samples)

    @staticmethod
    def _targets(costs: Mapping[str, int], samples: int) -> int:
        if samples and "targets" not in costs:
            raise UsageError(
                'the recipe declares no cost "targets"; declare it in describe, or weigh the loss by '
                "batch.global_samples or batch.global_tokens"
            )
        return costs.get("targets", 0)

    def _check_known(self, cost: str) -> None:
        if cost in self._unknown_costs:
            raise UsageError(
                f"samples of this batch changed ranks (hx.rebalance), and what each declared of {cost!r} is "
                f"not known; count what is there, or take that of the step: batch.global_costs[{cost!r}]"
            )

    def with_samples(
        self,
        fields: Mapping[str, Any],
        records: Sequence[Record],
        host: Mapping[str, torch.Tensor],
        costs: Mapping[str, int],
    ) -> Batch:
        """A batch of the same step with other samples; of costs that `costs` lacks, nothing is known."""
        stale = (*_LOOKED_UP, "_samples", "records")
        kept = {name: value for name, value in self.__dict__.items() if name not in stale}
        real = [record.id != FILLER for record in records]
        kept |= {
            "num_samples": sum(real),
            "fillers": len(real) - sum(real),
            "costs": dict(costs),
            "host": {**self.host, **host},
            "_table": b"".join(
                pack_record(self._schema, r.id, r.valid, r.shapes, r.true_shapes) for r in records
            ),
            "_unknown_costs": self._unknown_costs | (self.global_costs.keys() - costs.keys()),
        }
        return Batch(fields, **kept)

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """A batch whose tensors are `tensor.to(...)`; `host` stays where it is."""

        def move(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value.to(*args, **kwargs)
            return [move(v) for v in value] if isinstance(value, list) else value

        moved = Batch(self)
        for name, value in self.items():
            moved[name] = move(value)
        return moved

    def __reduce__(self) -> tuple[Any, ...]:
        if "_table" in self.__dict__:
            # Looked up here, where the index is; it does not travel.
            self.__dict__ |= {name: getattr(self, name) for name in _LOOKED_UP}
        attributes = {name: value for name, value in self.__dict__.items() if name not in _NOT_SENT}
        return (_rebuild, (dict(self), attributes))

    def __repr__(self) -> str:
        # Not a dict's own: that prints every pixel.
        told = [
            f"{name}={self.__dict__[name]}" for name in ("epoch", "step", "micro") if name in self.__dict__
        ]
        fields = [f"  {name}: {_shown(value)}" for name, value in self.items()]
        return "\n".join([f"Batch({', '.join(told)})", *fields])


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, list) and value:
        return f"list of {len(value)}, the first {_shown(value[0])}"
    return f"{value!r:.60}"


class Taken(NamedTuple):
    """A batch, the position of the next, and the batch's window where it does not follow from counting."""

    batch: Batch
    following: Position
    window: Told | None


def _rebuild(fields: dict[str, Any], attributes: dict[str, Any]) -> Batch:
    return Batch(fields, **attributes)
