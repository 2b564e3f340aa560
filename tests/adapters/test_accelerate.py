"""Accelerate: a loader goes through `prepare` untouched, and its state is in checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.adapters.numbered import loader

accelerate = pytest.importorskip("accelerate", reason="pip install accelerate")
pytestmark = pytest.mark.filterwarnings("default")


def test_a_loader_is_not_sharded_again_and_resumes_with_the_rest(numbers: Path, tmp_path: Path) -> None:
    def trained(resume: bool, stop: int | None = None) -> list[list[int]]:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        train = loader(numbers, micro_batches=2)
        model = torch.nn.Linear(4, 1)
        model, optimizer, prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters()), train)
        assert prepared is train
        accelerator.register_for_checkpointing(train)
        if resume:
            accelerator.load_state(str(tmp_path / "saved"))
        seen, syncs = [], []
        for batch in train:
            batch = batch.to(accelerator.device)
            with accelerator.accumulate(model):
                accelerator.backward(model(batch["x"]).square().mean())
                optimizer.step()
                optimizer.zero_grad()
                syncs.append(accelerator.sync_gradients)
            seen.append(batch["number"].tolist())
            if len(seen) == stop:
                accelerator.save_state(str(tmp_path / "saved"))
                break
        assert syncs == [False, True] * (len(seen) // 2)
        return seen

    whole = trained(False)
    assert sorted(n for batch in whole for n in batch) == list(range(24))
    assert trained(False, stop=6) == whole[:6]
    assert trained(True) == whole[6:]


def test_accelerate_moves_a_batch_and_keeps_what_is_known_of_it(numbers: Path) -> None:
    batch = next(iter(loader(numbers)))
    moved = accelerate.utils.send_to_device(batch, "meta")
    assert moved["x"].device.type == "meta"
    assert moved.ids == batch.ids
