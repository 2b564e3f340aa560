"""What trainers do with tensors works on those that alias the ring, as on any other."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import libhelix as hx
from libhelix.errors import UsageError
from tests.system.datasets import Pairs, padded
from tests.system.recipes import Drawn


@pytest.fixture
def loader(index: Path, job: str) -> Iterator[hx.Loader]:
    with hx.Loader(index, recipe=Drawn(), batching=hx.FixedBatch(2), epochs=None) as one:
        yield one


def test_a_graph_over_a_batch_is_right_after_many_more_batches(loader: hx.Loader) -> None:
    batches = iter(loader)
    batch = next(batches)
    weight = torch.ones(4, requires_grad=True)
    loss = (batch["draws"].float() * weight).sum() + (batch["half"] * weight[:3].bfloat16()).sum().float()
    expected = batch["draws"].float().sum(0) + torch.tensor([2.0, 2.0, 2.0, 0.0])
    del batch
    for _ in range(12):
        next(batches)
    loss.backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, expected)


def test_what_is_written_in_place_is_nobody_elses(loader: hx.Loader, index: Path) -> None:
    plain = hx.Loader(
        index, recipe=Drawn(), batching=hx.FixedBatch(2), epochs=None, backend="inline", dp_rank=0, dp_size=1
    )
    for _, batch, expected in zip(range(12), loader, plain):
        assert torch.equal(batch["draws"], expected["draws"])
        assert torch.equal(batch["half"], expected["half"])
        for value in (batch["draws"], batch["text"], batch["half"], *batch["list"]):
            value.fill_(17)
        batch["draws"].add_(1).mul_(2)
        assert batch["draws"].eq(36).all()


def test_batches_that_are_kept_stay_what_they_were(loader: hx.Loader) -> None:
    kept, copies = [], []

    def keep_twelve() -> None:
        for _, batch in zip(range(12), loader):
            kept.append(batch)
            copies.append({name: copy.deepcopy(value) for name, value in batch.items()})

    with pytest.warns(hx.HelixWarning, match="private copies"):
        keep_twelve()
    for batch, copied in zip(kept, copies):
        assert torch.equal(batch["draws"], copied["draws"])
        assert all(map(torch.equal, batch["list"], copied["list"]))


def test_a_compiled_function_takes_them(loader: hx.Loader) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return (x.float() / 255).sum(-1)

    torch.compiler.reset()
    # Without a C++ compiler at hand: what is captured is the same.
    compiled = torch.compile(scaled, backend="eager", fullgraph=True)
    for _, batch in zip(range(6), loader):
        assert torch.equal(compiled(batch["draws"]), scaled(batch["draws"]))


def test_batches_travel_and_loaders_say_that_they_do_not(loader: hx.Loader) -> None:
    batch = next(iter(loader))
    there = pickle.loads(pickle.dumps(batch))
    assert torch.equal(there["draws"], batch["draws"])
    assert there.sample_keys == batch.sample_keys
    for made in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(UsageError, match=r"loader 'train' cannot be copied or sent to another process"):
            made(loader)


def test_batches_of_a_dataset_may_be_kept_and_written_to_as_well(job: str) -> None:
    def batches(backend: str) -> Any:
        return hx.Loader.from_torch(
            Pairs(kind="ragged"), 2, collate_fn=padded, epochs=None, backend=backend, ring=4
        )

    with batches("daemon") as one:
        iterator, plain = iter(one), iter(batches("inline"))
        first, its = next(iterator), next(plain)
        for _ in range(12):
            batch, expected = next(iterator), next(plain)
            assert torch.equal(batch.ids, expected.ids)
            batch.ids.fill_(9)
            batch.lengths[...] = 0
            del batch
        assert torch.equal(first.ids, its.ids)
        assert first.names == its.names
