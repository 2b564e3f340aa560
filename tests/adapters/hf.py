"""A rank of transformers.Trainer: `python -m tests.adapters.hf JSON`. Prints what it was trained on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from libhelix.adapters.huggingface import LoaderTrainer
from tests.adapters.numbered import loader


class Noting(torch.nn.Module):
    """Notes the numbers of the samples that it sees, for training and for evaluating."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.trained: list[list[int]] = []
        self.evaluated: list[int] = []

    def forward(self, number: torch.Tensor, x: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        if self.training:
            self.trained.append(number.tolist())
        else:
            self.evaluated += number.tolist()
        out = self.layer(x)
        return {"loss": out.square().mean(), "logits": out}


def trainer(
    index: Path,
    output: Path,
    model: Noting,
    *,
    kind: type[LoaderTrainer] = LoaderTrainer,
    samples: int = 2,
    loading: Any = None,
    **arguments: Any,
) -> LoaderTrainer:
    """A Trainer over numbered samples, that says nothing."""
    usual = {
        "output_dir": str(output),
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_steps": 3,
        "logging_strategy": "no",
        "ignore_data_skip": True,
        "remove_unused_columns": False,
    }
    args = TrainingArguments(**{**usual, **arguments})
    train = loader(index, samples, **(loading or {}))
    held_out = loader(index, samples, name="eval", shuffle=False, end="pad")
    return kind(model=model, args=args, train_dataset=train, eval_dataset=held_out)


def main(index: str, output: str, resume: bool, samples: int, stop: int | None, **arguments: Any) -> None:
    """Train; `stop` is the step that it ends after, as if it had been killed there."""
    model = Noting()
    one = trainer(Path(index), Path(output), model, samples=samples, **arguments)
    if stop is not None:
        from transformers import TrainerCallback

        class Stop(TrainerCallback):  # type: ignore[misc, unused-ignore]
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                control.should_training_stop = state.global_step >= stop

        one.add_callback(Stop())
    one.train(resume_from_checkpoint=resume)
    print(json.dumps({"trained": model.trained, "step": one.state.global_step}), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
