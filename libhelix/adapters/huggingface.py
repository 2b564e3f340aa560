"""For transformers.Trainer and what derives from it."""

from __future__ import annotations

import json
import os
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from libhelix.adapters.iterations import Batches, batches_of, check_iterations
from libhelix.batch import Batch
from libhelix.errors import UsageError
from libhelix.loader import Loader

STATE_FILE = "loader.json"


class LoaderTrainer(Trainer):
    """A Trainer whose `train_dataset` and `eval_dataset` may be loaders.

    Mixed with others: `class MyTrainer(LoaderTrainer, SFTTrainer)`. A loader is not sharded again, its
    batches are moved to the device, and checkpoints have its state in `loader.json`; `train` resumes from it,
    with any number of ranks as long as an epoch has as many steps.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if isinstance(self.train_dataset, Loader):
            self.add_callback(_Saving(self.train_dataset))

    def get_train_dataloader(self) -> Any:
        """The batches of the loader. Raises UsageError where the Trainer would count them wrong."""
        loader = self.train_dataset
        if not isinstance(loader, Loader):
            return super().get_train_dataloader()
        self._check_place(loader)
        accumulate = self.args.gradient_accumulation_steps
        iterations, batches = self.args.num_train_epochs, batches_of(loader)
        if self.args.max_steps > 0 and batches:
            iterations = self.args.max_steps * accumulate / batches
        elif iterations > 1 and (loader.epochs or 1) > 1:
            raise UsageError(
                f"the loader has epochs={loader.epochs} and the Trainer num_train_epochs={iterations:g}, "
                "each of which is an iteration of the loader; make it with epochs=1"
            )
        check_iterations(loader, iterations, accumulate)
        return Batches(loader)

    def _check_place(self, loader: Loader) -> None:
        """Raises UsageError where ranks that the loader knows of would train models of their own."""
        if loader.ranks > self.args.world_size:
            raise UsageError(
                f"the loader has {loader.ranks} ranks, and the Trainer {self.args.world_size} process "
                f"({self.args.parallel_mode}): each would train a model of its own; on CPUs give "
                "TrainingArguments(use_cpu=True)"
            )

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """The batches of a loader."""
        return (
            Batches(test_dataset)
            if isinstance(test_dataset, Loader)
            else super().get_test_dataloader(test_dataset)
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The batches of the loader that is meant."""
        found = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(found, str):
            found = self.eval_dataset[found]
        return Batches(found) if isinstance(found, Loader) else super().get_eval_dataloader(eval_dataset)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As a Trainer's; the loader goes on where the checkpoint stands."""
        if resume_from_checkpoint and isinstance(self.train_dataset, Loader):
            path = resume_from_checkpoint
            if not isinstance(path, str):
                path = get_last_checkpoint(self.args.output_dir)
            if path is not None:  # else the Trainer says that there is none
                self._restore(self.train_dataset, path)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _prepare_input(self, data: Any) -> Any:
        """A batch on the device, with what it says besides its fields: a Trainer would make a plain dict."""
        if not isinstance(data, Batch):
            return super()._prepare_input(data)
        moved = Batch(data)
        for name, value in data.items():
            moved[name] = super()._prepare_input(value)
        return moved

    def _restore(self, loader: Loader, path: str) -> None:
        if not self.args.ignore_data_skip:
            raise UsageError(
                "the loader goes on where the checkpoint stands, and the Trainer would skip its batches once "
                "more; set TrainingArguments(ignore_data_skip=True)"
            )
        try:
            with open(os.path.join(path, STATE_FILE), encoding="utf-8") as file:
                saved = json.load(file)
        except FileNotFoundError:
            raise UsageError(
                f"{path} has no {STATE_FILE}, and does not say which samples are still to come: it was not "
                "saved by a LoaderTrainer with a loader; resume from one that was"
            ) from None
        loader.load_state_dict(saved["state"])
        batches = batches_of(loader)
        if batches != saved["batches"]:
            raise UsageError(
                f"{path} counts {saved['batches']} batches to an iteration, this run has {batches}: the "
                "Trainer would take its steps for others; keep ranks x batch size x accumulation as they were"
            )


class _Saving(TrainerCallback):
    """Saves a loader's state with every checkpoint. It is the same on all ranks."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def on_save(self, args: Any, state: Any, _: Any, **__: Any) -> None:
        """Write it beside what the Trainer has just saved."""
        if not args.should_save:
            return
        path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}", STATE_FILE)
        saved = {"batches": batches_of(self._loader), "state": self._loader.state_dict()}
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            json.dump(saved, file)
        os.replace(f"{path}.tmp", path)
