"""A batch is a dict that models take with **, and what it knows beside travels with it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import torch

from libhelix.batch import Batch
from libhelix.recipe import Sample
from libhelix.wire.layout import pack_record
from libhelix.wire.messages import FieldSpec

_SCHEMA = (
    FieldSpec("pixels", "uint8", "pad", 1, bounded=True),
    FieldSpec("texts", "float32", "ragged", 1),
)
_KEYS = {7: "a.mp4", 8: "b.mp4"}


class _Index:
    """Counts how often names are looked up, and does not travel."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, sample: int) -> str:
        self.asked += 1
        return _KEYS[sample]

    def __reduce__(self) -> str:
        raise AssertionError("an index is pickled")


def _batch(key_of: Callable[[int], str] = _KEYS.__getitem__) -> Batch:
    return Batch(
        {"pixels": torch.arange(6, dtype=torch.uint8).view(2, 3), "texts": [torch.ones(2), torch.zeros(0)]},
        epoch=1,
        step=2,
        micro=3,
        num_samples=2,
        fillers=0,
        global_samples=8,
        costs={"tokens": 5, "targets": 4},
        global_costs={"tokens": 50, "targets": 40},
        host={"pixels_cu_seqlens": torch.tensor([0, 3, 6], dtype=torch.int32)},
        _schema=_SCHEMA,
        _table=b"".join(
            pack_record(_SCHEMA, sample, valid, [(3,), (n,)], [(n,), (n,)])
            for sample, valid, n in ((7, True, 3), (8, False, 2))
        ),
        _sample_of=lambda sample: Sample(sample, key_of(sample), ()),
    )


def _same_beside(one: Batch, other: Batch) -> bool:
    return (
        (one.epoch, one.step, one.micro, one.ids, one.shapes, one.costs, one.global_costs, one.sample_keys)
        == (
            other.epoch,
            other.step,
            other.micro,
            other.ids,
            other.shapes,
            other.costs,
            other.global_costs,
            other.sample_keys,
        )
        and torch.equal(one.valid, other.valid)
        and torch.equal(one.host["pixels_cu_seqlens"], other.host["pixels_cu_seqlens"])
    )


def test_a_model_takes_only_the_fields() -> None:
    def model(**inputs: Any) -> set[str]:
        return set(inputs)

    assert model(**_batch()) == {"pixels", "texts"}


def test_declared_counts_have_names() -> None:
    batch = _batch()
    assert (batch.num_tokens, batch.num_targets, batch.global_tokens, batch.global_targets) == (5, 4, 50, 40)
    bare = Batch({}, costs={}, global_costs={}, num_samples=0, global_samples=0)
    assert (bare.num_tokens, bare.num_targets, bare.global_tokens, bare.global_targets) == (0, 0, 0, 0)


def test_a_batch_made_of_a_batch_knows_the_same() -> None:
    batch = _batch()
    rebuilt = Batch(batch)
    assert dict(rebuilt) == dict(batch)
    assert _same_beside(rebuilt, batch)
    rebuilt["pixels"] = torch.zeros(1)
    assert batch["pixels"].shape == (2, 3)


def test_a_batch_can_be_made_of_any_mapping() -> None:
    assert dict(Batch({"x": 1})) == {"x": 1}


def test_moving_moves_every_tensor_and_leaves_the_host_where_it_is() -> None:
    batch = _batch()
    moved = batch.to(torch.float64)
    assert moved["pixels"].dtype == torch.float64
    assert [t.dtype for t in moved["texts"]] == [torch.float64, torch.float64]
    assert moved.host["pixels_cu_seqlens"].dtype == torch.int32
    assert batch["pixels"].dtype == torch.uint8
    assert _same_beside(moved, batch)


def test_moving_to_a_device_takes_the_options_of_torch() -> None:
    moved = _batch().to("meta", non_blocking=True)
    assert moved["pixels"].device.type == "meta"


def test_a_batch_survives_pickling_without_its_index() -> None:
    index = _Index()
    batch = _batch(index)
    back = pickle.loads(pickle.dumps(batch))
    assert isinstance(back, Batch)
    assert torch.equal(back["pixels"], batch["pixels"])
    assert _same_beside(back, batch)
    assert index.asked == 2


def test_a_copy_is_a_batch_that_knows_the_same() -> None:
    batch = _batch()
    assert _same_beside(copy.copy(batch), batch)
    assert _same_beside(copy.deepcopy(batch), batch)


def test_names_are_looked_up_once_and_only_when_asked_for() -> None:
    index = _Index()
    batch = _batch(index)
    assert index.asked == 0
    assert batch.sample_keys == batch.sample_keys == ("a.mp4", "b.mp4")
    assert index.asked == 2


def test_a_batch_is_shown_without_its_pixels() -> None:
    assert repr(_batch()) == (
        "Batch(epoch=1, step=2, micro=3)\n  pixels: uint8 [2, 3]\n  texts: list of 2, the first float32 [2]"
    )
    assert repr(Batch({"x": 1, "none": []})) == "Batch()\n  x: 1\n  none: []"
