"""What `next()` returns: a mutable dict of tensors. Everything else about the batch is an attribute, so that
`model(**batch)` works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch


class Batch(dict[str, Any]):
    """Tensors by field name; lists of tensors where a field is ragged.

    epoch, step, micro   where it stands
    ids, sample_keys     rows of the index and names of its samples (`keys` is the method of dicts)
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
    ids: tuple[int, ...]
    _valid: tuple[bool, ...]
    shapes: dict[str, list[tuple[int, ...]]]
    num_samples: int
    global_samples: int
    costs: dict[str, int]
    global_costs: dict[str, int]
    host: dict[str, torch.Tensor]

    def __init__(self, fields: Mapping[str, Any], **attributes: Any) -> None:
        super().__init__(fields)
        self._keys: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()
        self.__dict__.update(fields.__dict__ if isinstance(fields, Batch) else {})
        self.__dict__.update(attributes)

    @cached_property
    def valid(self) -> torch.Tensor:
        """bool [B]: false for samples that are masked."""
        return torch.tensor(self._valid)

    @property
    def sample_keys(self) -> tuple[str, ...]:
        """Names of the samples, looked up in the index when first asked for."""
        if callable(self._keys):
            self._keys = self._keys()
        return self._keys

    @property
    def num_tokens(self) -> int:
        """Declared tokens of this batch."""
        return self.costs.get("tokens", 0)

    @property
    def global_tokens(self) -> int:
        """Declared tokens of the step."""
        return self.global_costs.get("tokens", 0)

    @property
    def num_targets(self) -> int:
        """Declared target tokens of this batch."""
        return self.costs.get("targets", 0)

    @property
    def global_targets(self) -> int:
        """Declared target tokens of the step."""
        return self.global_costs.get("targets", 0)

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
        self._keys = self.sample_keys  # the index itself does not travel
        return (_rebuild, (dict(self), dict(self.__dict__)))


def _rebuild(fields: dict[str, Any], attributes: dict[str, Any]) -> Batch:
    return Batch(fields, **attributes)
