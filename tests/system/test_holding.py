"""What a trainer holds never changes, however it holds it and for how long."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import libhelix as hx
from libhelix.errors import HelixWarning
from libhelix.served import Served
from tests.system.recipes import Plain


def _autograd(video: torch.Tensor) -> Any:
    weight = torch.ones(video.shape[-1], dtype=torch.float64, requires_grad=True)
    # The graph keeps the batch for the backward pass; nothing else does.
    return (weight * video.to(torch.float64)).sum(), weight


HOLDS: dict[str, Callable[[hx.Batch], Any]] = {
    "batch": lambda b: b,
    "view": lambda b: b["video"][:, 1:],
    "detach": lambda b: b["video"].detach(),
    "data": lambda b: b["video"].data,
    "numpy": lambda b: b["video"].numpy(),
    "parameter": lambda b: torch.nn.Parameter(b["video"], requires_grad=False),
    "storage": lambda b: b["video"].untyped_storage(),
    "dlpack": lambda b: np.from_dlpack(b["video"]),
    "memoryview": lambda b: memoryview(b["video"].numpy()),
}


def _bytes(held: Any) -> bytes:
    if isinstance(held, hx.Batch):
        held = held["video"]
    if isinstance(held, torch.UntypedStorage):
        return bytes(held.tolist())  # type: ignore[no-untyped-call]  # torch's own
    if isinstance(held, memoryview):
        return held.tobytes()
    return np.ascontiguousarray(held.numpy() if isinstance(held, torch.Tensor) else held).tobytes()


@pytest.mark.parametrize("how", sorted(HOLDS))
def test_batches_that_are_kept_for_an_epoch_never_change(index: Path, job: str, how: str) -> None:
    kept, before = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HelixWarning)
        with hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2), epochs=3) as loader:
            for batch in loader:
                kept.append(HOLDS[how](batch))
                before.append(_bytes(kept[-1]))
                del batch
            assert len(kept) == len(loader) == 12
        assert [_bytes(held) for held in kept] == before
    kept.clear()


def test_a_graph_that_keeps_a_batch_for_backward_sees_it_unchanged(index: Path, job: str) -> None:
    with hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2), epochs=2) as loader:
        graphs, sums = [], []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HelixWarning)
            for batch in loader:
                video = batch["video"].to(torch.float32)
                sums.append(video.sum((0, 1, 2, 3)))
                weight = torch.ones(3, requires_grad=True)
                graphs.append(((weight * video).sum(), weight))
        for (loss, weight), total in zip(graphs, sums):
            loss.backward()
            assert weight.grad is not None
            assert torch.equal(weight.grad, total)


def test_holding_beyond_the_ring_gives_copies_and_one_warning_that_names_it(index: Path, job: str) -> None:
    with hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2), epochs=3) as loader:
        with pytest.warns(HelixWarning, match=r"rank 0 holds 2 batches of a ring of 3.*set ring=5") as caught:
            kept = list(loader)
        assert len(kept) == 12
        assert len([w for w in caught if "private copies" in str(w.message)]) == 1
        sums = [batch["video"].sum().item() for batch in kept]
        kept.clear()
        assert sums == [batch["video"].sum().item() for batch in _again(index)]


def _again(index: Path) -> hx.Loader:
    return hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2), epochs=3, name="again")


def test_a_trainer_that_lets_go_gets_no_copies(index: Path, job: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2), epochs=6) as loader:
            previous = None
            for batch in loader:
                previous = batch  # the one before lives until this one is there, as in every training loop
            assert previous is not None


def test_micro_batches_may_all_be_pulled_before_the_first_backward(index: Path, job: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(1), micro_batches=8, epochs=4) as loader:
            assert len(loader) == 32
            batches = iter(loader)
            for epoch in range(4):
                step = [next(batches) for _ in range(8)]
                assert [(b.epoch, b.step, b.micro) for b in step] == [(epoch, 0, i) for i in range(8)]
                assert {i for b in step for i in b.ids} == set(range(8))
                assert sum(b.num_tokens for b in step) == step[0].global_tokens
                assert step[0].global_samples == 8


def test_cycles_that_hold_batches_are_collected_before_the_ring_runs_out_for_good(
    index: Path, job: str
) -> None:
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HelixWarning)
            with hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2), epochs=10) as loader:
                for batch in loader:
                    cycle: list[Any] = [batch]
                    cycle.append(cycle)
                    del cycle
                assert isinstance(loader._source, Served)
                assert loader._source.link is not None
                assert len(loader._source.link.attachment.held) <= 3
    finally:
        gc.enable()


def test_an_evaluation_loader_runs_in_the_middle_of_training(index: Path, job: str) -> None:
    with (
        hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2), epochs=2) as train,
        hx.Loader(
            index, recipe=Plain(frames=3), batching=hx.FixedBatch(4), name="eval", shuffle=False
        ) as test,
    ):
        steps = []
        for batch in train:
            steps.append((batch.epoch, batch.step))
            if batch.step == 1:
                kept = batch["video"].clone()
                assert [b.ids for b in test] == [(0, 1, 2, 3), (4, 5, 6, 7)]
                assert torch.equal(batch["video"], kept)
        assert steps == [(e, s) for e in range(2) for s in range(4)]


def test_batches_outlive_their_loader(index: Path, job: str) -> None:
    with hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2)) as loader:
        batch = next(iter(loader))
        before = batch["video"].clone()
    assert torch.equal(batch["video"], before)
    batch["video"].add_(1)  # it is the trainer's own


def test_a_loader_that_is_forgotten_leaves_its_place(index: Path, job: str) -> None:
    for _ in range(2):
        loader = hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2))
        next(iter(loader))
        del loader
        gc.collect()
