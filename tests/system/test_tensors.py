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


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator here")
@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_without_an_accelerator_fields_are_made_what_they_would_be_on_it(
    index: Path, job: str, device: str
) -> None:
    options: dict[str, Any] = {"recipe": Drawn(), "batching": hx.FixedBatch(2), "epochs": None}
    made = {"draws": lambda x: x.float() / 2, "list": lambda x: x + 1}
    plain = hx.Loader(index, **options, backend="inline", dp_rank=0, dp_size=1)
    with hx.Loader(index, **options, device=device, to_device=made) as loader:
        for _, batch, expected in zip(range(12), loader, plain):
            assert torch.equal(batch["draws"], expected["draws"].float() / 2)
            assert all(torch.equal(a, b + 1) for a, b in zip(batch["list"], expected["list"], strict=True))
            assert torch.equal(batch["half"], expected["half"])
        assert loader.device_tier is None
    wrong = hx.Loader(index, **options, device=device, to_device={"drawn": abs}, name="other")
    with wrong, pytest.raises(UsageError, match=r"to_device=\['drawn'\]: the recipe has the fields"):
        next(iter(wrong))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator here")
def test_a_transform_that_fails_costs_no_batch(index: Path, job: str) -> None:
    fails = [True]

    def once(x: torch.Tensor) -> torch.Tensor:
        if fails.pop() if fails else False:
            raise RuntimeError("no memory")
        return x

    options: dict[str, Any] = {"recipe": Drawn(), "batching": hx.FixedBatch(2), "epochs": None}
    with hx.Loader(index, **options, device="cpu", to_device={"draws": once}) as loader:
        batches = iter(loader)
        with pytest.raises(RuntimeError, match="no memory"):
            next(batches)
        assert [next(batches).step for _ in range(3)] == [0, 1, 2]
