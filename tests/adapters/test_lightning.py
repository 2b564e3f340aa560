"""Lightning: it moves batches, counts them, and picks up the loader's state by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import libhelix as hx
from tests.adapters.numbered import loader

lightning = pytest.importorskip("lightning.pytorch", reason="pip install lightning")
pytestmark = pytest.mark.filterwarnings("default", "ignore::hypothesis.errors.HypothesisWarning")


def _module() -> Any:
    class Noting(lightning.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.trained: list[list[int]] = []

        def training_step(self, batch: hx.Batch, _: int) -> torch.Tensor:
            assert batch.ids == tuple(batch["number"].tolist())
            self.trained.append(batch["number"].tolist())
            loss: torch.Tensor = self.layer(batch["x"]).square().mean()
            return loss

        def validation_step(self, batch: hx.Batch, _: int) -> None:
            assert batch["number"].tolist() == list(batch.ids)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters())

    return Noting()


def _fit(data: Any, folder: Path, resume: Path | None = None, **options: Any) -> list[list[int]]:
    """Train, with a checkpoint every three steps; the batches that were seen."""
    module = _module()
    saving = lightning.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=3, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, callbacks=[saving], enable_progress_bar=False,
        enable_model_summary=False, **options,
    )  # fmt: skip
    trainer.fit(module, *data, ckpt_path=str(resume) if resume else None)
    return list(module.trained)


@pytest.mark.parametrize("step", [3, 12, 15], ids=["inside", "at its end", "in the next"])
def test_resuming_trains_on_exactly_the_rest(numbers: Path, tmp_path: Path, step: int) -> None:
    def data() -> tuple[hx.Loader, hx.Loader]:
        return loader(numbers), loader(numbers, name="eval", shuffle=False)

    whole = _fit(data(), tmp_path, max_epochs=2)
    assert len(whole) == 24
    assert sorted(n for batch in whole[:12] for n in batch) == list(range(24))
    rest = _fit(data(), tmp_path / "rest", tmp_path / f"step={step}.ckpt", max_epochs=2)
    assert rest == whole[step:]


def test_resuming_with_other_batches_of_the_same_steps_trains_on_the_rest(
    numbers: Path, tmp_path: Path
) -> None:
    """As a rank of two would have saved it: half of every step."""

    def half(rank: int) -> hx.Loader:
        return loader(numbers, 1, dp_rank=rank, dp_size=2, job="a")

    halves = [_fit([half(r)], tmp_path / str(r), max_epochs=1) for r in range(2)]
    rest = _fit([loader(numbers, 2)], tmp_path / "one", tmp_path / "1" / "step=9.ckpt", max_epochs=1)
    steps = [sorted(a + b) for a, b in zip(*halves)]
    assert [sorted(batch) for batch in rest] == steps[9:]
