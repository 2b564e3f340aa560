"""torchtitan's BaseDataLoader, and checkpoints as torch.distributed writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from tests.adapters.numbered import loader

pytest.importorskip(
    "torchtitan.components.dataloader", reason="pip install torchtitan torchdata tyro datasets"
)
pytestmark = pytest.mark.filterwarnings("default")


def test_a_checkpoint_resumes_with_the_rest_also_with_other_ranks(numbers: Path, tmp_path: Path) -> None:
    from torchtitan.components.dataloader import BaseDataLoader

    from libhelix.adapters.torchtitan import LoaderOver

    one = LoaderOver(loader(numbers, 4))
    assert isinstance(one, BaseDataLoader)
    batches = iter(one)
    inputs, labels = next(batches)
    assert inputs["input"].shape == labels.shape == (4, 4)
    assert (inputs["input"] + 1 == labels).all()
    next(batches)
    save({"dataloader": one}, checkpoint_id=tmp_path / "saved", no_dist=True)
    rest = [labels[:, 0].tolist() for _, labels in batches]

    halves = []
    for rank in range(2):
        two = LoaderOver(loader(numbers, 2, dp_rank=rank, dp_size=2, job="a"))
        load({"dataloader": two}, checkpoint_id=tmp_path / "saved", no_dist=True)
        halves.append([labels[:, 0].tolist() for _, labels in two])
    assert [sorted(a + b) for a, b in zip(*halves)] == [sorted(step) for step in rest]


def test_a_checkpoint_without_data_loads_nothing(numbers: Path) -> None:
    from libhelix.adapters.torchtitan import LoaderOver

    one = LoaderOver(loader(numbers))
    one.load_state_dict({})
    assert sum(1 for _ in one) == 12


def test_torchtitan_builds_it_from_a_config(numbers: Path) -> None:
    from libhelix.adapters.torchtitan import LoaderOver

    class Numbers(LoaderOver):
        @dataclass(kw_only=True, slots=True)
        class Config(LoaderOver.Config):  # type: ignore[name-defined, misc, unused-ignore]
            index: str = ""

        def __init__(self, config: Config, *, dp_rank: int, dp_world_size: int, **_: Any) -> None:
            super().__init__(loader(Path(config.index), dp_rank=dp_rank, dp_size=dp_world_size, job="a"))

    made = Numbers.Config(index=str(numbers)).build(dp_rank=1, dp_world_size=2, seq_len=4, tokenizer=None)
    assert sum(1 for _ in made) == 6
