"""For torchtitan: a BaseDataLoader over a loader."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader

from libhelix.batch import Batch
from libhelix.loader import Loader

Inputs = tuple[dict[str, torch.Tensor], torch.Tensor]
_KEY = "loader"


def next_token(batch: Batch) -> Inputs:
    """Tokens 0 to n - 2 as "input", and the labels of 1 to n - 1: torchtitan's losses do not shift."""
    return {"input": batch["input_ids"][:, :-1].contiguous()}, batch["labels"][:, 1:].contiguous()


class LoaderOver(BaseDataLoader):
    """A loader as torchtitan wants it: pairs of inputs and labels, and a state that its checkpoints can save.

    `split` makes a pair of a batch. The state is one key, the same on all ranks, and can be loaded by any
    number of them.
    """

    def __init__(self, loader: Loader, split: Callable[[Batch], Inputs] = next_token) -> None:
        self.loader = loader
        self._split = split

    def __iter__(self) -> Iterator[Inputs]:
        return map(self._split, self.loader)

    def state_dict(self) -> dict[str, Any]:
        """The loader's state, as text: checkpoints would take nested values for keys that must be there."""
        return {_KEY: json.dumps(self.loader.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a state stands; torchtitan passes an empty one where there was none."""
        if state_dict:
            self.loader.load_state_dict(json.loads(state_dict[_KEY]))
