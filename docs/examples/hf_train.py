"""Hugging Face's Trainer over a loader: checkpoints have its state, and resuming trains on exactly the rest.

python hf_train.py FOLDER-OR-INDEX OUTPUT [EPOCHS]        (torchrun ... for several ranks)
"""

import sys

import torch
from transformers import TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import libhelix as hx
from libhelix.adapters.huggingface import LoaderTrainer


class Model(torch.nn.Module):
    """Takes the fields of a batch by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64 * 64 * 3, 1)

    def forward(self, video: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss of a batch of clips."""
        return {"loss": self.layer(video.flatten(2).float() / 255).mean()}


def main(source: str, output: str, epochs: int = 1) -> None:
    """Train, from the last checkpoint if there is one."""
    loader = hx.Loader(
        source, recipe=hx.recipes.Clip(frames=4, size=(64, 64)), batching=hx.FixedBatch(2), epochs=1
    )
    args = TrainingArguments(
        output_dir=output,
        num_train_epochs=epochs,
        save_steps=2,
        ignore_data_skip=True,  # the loader knows where it stands
        remove_unused_columns=False,
        report_to=[],
        per_device_train_batch_size=2,  # the loader's; the Trainer counts samples by it
        use_cpu=not torch.accelerator.is_available(),  # else it sees one process where torchrun has several
    )
    with loader:
        trainer = LoaderTrainer(model=Model(), args=args, train_dataset=loader)
        trainer.train(resume_from_checkpoint=get_last_checkpoint(output))
    print(f"steps {trainer.state.global_step}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
