"""Megatron-Energon: a rank-local loader with an order of its own.

Samples are lines of JSON that name them; its batcher decodes them with the recipe.
"""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.node.case import Case, Facts, Variant
from bench.node.recipe import loaded
from bench.node.system import Fed
from bench.node.systems.dataloader import RankLocal
from bench.samples import Visit
from libhelix.recipe import Pack, Ragged


class Energon(RankLocal):
    """Energon deals samples out to the workers of all ranks; each shuffles its own, and repeats them. Its
    loader is a DataLoader whose workers make whole batches."""

    name = "energon"
    title = "Megatron-Energon"
    overtakes = False
    """Its loader has its own way of ordering."""

    def missing(self) -> str | None:
        """Nobody gets it with this package."""
        if importlib.util.find_spec("megatron") and importlib.util.find_spec("megatron.energon"):
            return None
        return "it is not installed: pip install megatron-energon"

    def variants(self, case: Case) -> list[Variant]:
        """The DataLoader's splits; it sets the sharing strategy of nobody."""
        return [v for v in super().variants(case) if v.options["sharing"] == "file_descriptor"]

    @contextmanager
    def node(self, case: Case, variant: Variant, scratch: Path, mark: str) -> Iterator[Facts]:
        """The lines, with Energon's index of them."""
        from megatron.energon.flavors.jsonl import CrudeJsonlDatasetFactory

        del variant, mark
        lines = scratch / "samples.jsonl"
        lines.write_text("".join(f'{{"sample": {i}}}\n' for i in range(case.samples)))
        CrudeJsonlDatasetFactory.prepare_dataset(lines)
        yield {"lines": str(lines)}

    @contextmanager
    def batches(self, case: Case, variant: Variant, rank: int, facts: Facts) -> Iterator[Iterator[Fed]]:
        """Energon's loader. Which epoch a sample is of is how often it came before."""
        import torch.multiprocessing as mp
        from megatron.energon import WorkerConfig, get_loader, get_train_dataset, reraise_exception

        mp.set_sharing_strategy("file_descriptor")  # type: ignore[no-untyped-call]
        config = WorkerConfig(
            rank=rank,
            world_size=case.ranks,
            num_workers=int(variant.options["workers"]),
            seed_offset=case.seed,
            global_error_handler=reraise_exception,
        )
        dataset = get_train_dataset(
            facts["lines"],
            worker_config=config,
            batch_size=case.batch,
            # Slices of one sample: a worker shuffles all it has, without a buffer of what it has read.
            max_samples_per_sequence=1,
            shuffle_buffer_size=None,
            task_encoder=_encoder(case),
        )
        prefetch = int(variant.options["prefetch"])
        loader = get_loader(dataset, prefetch_factor=prefetch, watchdog_timeout_seconds=None)
        seen: Counter[int] = Counter()

        def fed(made: dict[str, Any]) -> Fed:
            ids = tuple(made["ids"])
            epoch = seen[ids[0]]
            seen.update(ids)
            return Fed(made["tensors"], epoch, ids)

        found = iter(loader)
        try:
            yield map(fed, found)
        finally:
            if loader._iterator is not None:
                loader._iterator._shutdown_workers()  # else they end when collected


def _encoder(case: Case) -> Any:
    """What Energon has done to a sample: it is named, and decoded when its batch is made."""
    from megatron.energon import Cooker, TaskEncoder, stateless

    @stateless  # type: ignore[untyped-decorator,unused-ignore]
    def cook(line: dict[str, Any]) -> dict[str, Any]:
        return {"sample": line["json"]["sample"], "__key__": line["__key__"], "__restore_key__": ()}

    class Encoder(TaskEncoder):  # type: ignore[misc,unused-ignore]  # where it is not there to be looked at
        cookers = (Cooker(cook),)
        decoder = None

        def __init__(self) -> None:
            self._opened: Any = None

        @stateless  # type: ignore[untyped-decorator,unused-ignore]
        def batch(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
            """As a DataLoader's worker makes it, in memory that is used again."""
            self._opened = self._opened or _open(case)
            dataset, collate = self._opened
            ids = [one["sample"] for one in samples]
            visits = [Visit(sample=i, epoch=0) for i in ids]  # recipes of the benchmark draw nothing
            return {"tensors": collate(dataset.__getitems__(visits)), "ids": ids, "__restore_key__": ()}

    return Encoder()


def _open(case: Case) -> Any:
    """The data set and what makes batches of it, once in a worker."""
    from functools import partial

    import torch

    from bench.torch_loader import RecipeDataset, collate

    torch.set_num_threads(1)
    os.sched_setaffinity(0, case.cores)
    dataset = RecipeDataset(Path(case.index), loaded(case.recipe), case.seed)
    fields = dataset.describe(Visit(sample=0, epoch=0)).fields
    packed = frozenset(f.name for f in fields if isinstance(f.layout, Pack))
    ragged = frozenset(f.name for f in fields if isinstance(f.layout, Ragged))
    return dataset, partial(collate, packed, ragged)
