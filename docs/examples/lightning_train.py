"""Lightning over a loader: it moves batches, and keeps the loader's state in its checkpoints.

python lightning_train.py FOLDER-OR-INDEX OUTPUT [EPOCHS]        (torchrun ... for several ranks)
"""

import os
import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import libhelix as hx


class Module(lightning.LightningModule):
    """A layer over clips."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64 * 64 * 3, 1)

    def training_step(self, batch: hx.Batch) -> torch.Tensor:
        """The loss of a batch."""
        print(f"epoch {batch.epoch} step {batch.step} samples {list(batch.ids)}", flush=True)
        return self.layer(batch["video"].flatten(2).float() / 255).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain descent."""
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def main(source: str, output: str, epochs: int = 1) -> None:
    """Train, from the last checkpoint if there is one."""
    loader = hx.Loader(
        source, recipe=hx.recipes.Clip(frames=4, size=(64, 64)), batching=hx.FixedBatch(2), epochs=1
    )
    saving = ModelCheckpoint(output, save_last=True, every_n_train_steps=2)
    how = {"logger": False, "enable_progress_bar": False, "default_root_dir": output}
    trainer = lightning.Trainer(max_epochs=epochs, callbacks=[saving], **how)
    last = os.path.join(output, "last.ckpt")
    with loader:
        trainer.fit(Module(), loader, ckpt_path=last if os.path.exists(last) else None)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
