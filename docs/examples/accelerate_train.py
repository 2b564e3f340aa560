"""Accelerate over a loader, which prepare() leaves as it is: the loader knows its rank and its state.

accelerate launch [--cpu] accelerate_train.py FOLDER-OR-INDEX CHECKPOINT [EPOCHS]
"""

import os
import sys

import torch
from accelerate import Accelerator

import libhelix as hx


def main(source: str, checkpoint: str, epochs: int = 1) -> None:
    """Train, from the checkpoint if there is one, and save one every second step."""
    accelerator = Accelerator()
    loader = hx.Loader(
        source, recipe=hx.recipes.Clip(frames=4, size=(64, 64)), batching=hx.FixedBatch(2), epochs=epochs
    )
    model = torch.nn.Linear(64 * 64 * 3, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    accelerator.register_for_checkpointing(loader)
    if os.path.exists(checkpoint):
        accelerator.load_state(checkpoint)
    with loader:
        for batch in loader:
            batch = batch.to(accelerator.device)
            loss = model(batch["video"].flatten(2).float() / 255).mean()
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            print(f"epoch {batch.epoch} step {batch.step} samples {list(batch.ids)}", flush=True)
            if batch.step % 2 == 1:
                accelerator.save_state(checkpoint)
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
