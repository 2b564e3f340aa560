"""PyTorch datasets as users have them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Pair(NamedTuple):
    """An image and its label."""

    image: torch.Tensor
    label: int


class Pairs(Dataset[Any]):
    """Images and labels, augmented with all three generators; `kind` says what a sample looks like."""

    def __init__(self, samples: int = 10, kind: str = "tuple", broken: int = -1) -> None:
        self.samples, self.kind, self.broken = samples, kind, broken

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, i: int) -> Any:
        if i == self.broken:
            raise ValueError("a broken file")
        image = torch.full((3, 4), i, dtype=torch.uint8)
        drawn = random.random() + np.random.rand() + torch.rand(()).item()
        match self.kind:
            case "tuple":
                return image, i
            case "named":
                return Pair(image, i)
            case "dict":
                return {"image": image.numpy(), "label": i, "half": torch.tensor(i, dtype=torch.bfloat16)}
            case "nested":
                return {"x": [image, {"deep": i / 3}], "flag": i % 2 == 0}
            case "drawn":
                return drawn
            case "text":
                return {"caption": f"sample {i}", "image": image}
            case "list":
                return {"ids": list(range(i, i + 70))}
            case "ragged":
                return torch.arange(i + 1)
        raise AssertionError(self.kind)


class Stream(IterableDataset[int]):
    """Has no numbers."""

    def __iter__(self) -> Any:
        return iter(range(3))


class Joined:
    """A batch of a class of one's own, as processors of language models return."""

    def __init__(self, ids: torch.Tensor, lengths: np.ndarray[Any, Any], names: list[str]) -> None:
        self.ids, self.lengths, self.names = ids, lengths, names


def padded(samples: list[torch.Tensor]) -> Joined:
    """Padded to the longest."""
    ids = torch.nn.utils.rnn.pad_sequence(samples, batch_first=True, padding_value=-1)
    lengths = np.array([len(s) for s in samples])
    return Joined(ids, lengths, [f"of {n}" for n in lengths])


def made() -> Pairs:
    """As named by "module:function"."""
    return Pairs(6)


class Shards(IterableDataset[Any]):
    """`samples` numbers, of which each stream has every n-th."""

    def __init__(self, samples: int, *, told: bool = True, broken: int = -1) -> None:
        self.samples, self.told, self.broken = samples, told, broken
        self.epoch = 0

    def __len__(self) -> int:
        if not self.told:
            raise TypeError("no length")
        return self.samples

    def set_epoch(self, epoch: int) -> None:
        """As datasets that shuffle have."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        for i in range(first, self.samples, step):
            if i == self.broken:
                raise ValueError("a broken shard")
            yield i + 1000 * self.epoch
