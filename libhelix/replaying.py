"""Batches of a run once more, from a state that it saved: the same samples, draws and bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from libhelix.batch import Batch
from libhelix.errors import UsageError
from libhelix.index.numbered import numbered
from libhelix.loader import Loader
from libhelix.mixture import Mixture
from libhelix.plan.state import State, decoded
from libhelix.recipe import Recipe
from libhelix.recipes.chains import DatasetChain
from libhelix.recipes.dataset import PAYLOAD, DatasetBatch, DatasetSample
from libhelix.recipes.parcel import opened
from libhelix.recipes.run import load_recipe
from libhelix.wire.settings import Base, Position, Start

Source = str | Path | Sequence[str | Path] | Mixture


def replay(
    state: Mapping[str, Any],
    source: Source | None = None,
    *,
    step: int,
    rank: int = 0,
    micro: int = 0,
    epoch: int | None = None,
    recipe: Recipe | None = None,
    on_bad: Literal["mask", "replace"] = "mask",
) -> Batch:
    """The batch of a rank at a step, as it was delivered or will be: decoded here, from `state_dict()`.

    `source` is what the loader read: not needed for `Loader.from_torch`, and a list in the order of the
    weights for a mixture. `epoch` is by default that of the state; earlier epochs are taken to have had its
    ranks and quarantine. `recipe` replaces one that cannot be imported, and `on_bad` is the loader's.
    Raises UsageError where there is no such batch, and where the epoch was begun with other ranks or
    settings, so that its earlier steps do not follow from this state; ResumeMismatch for other data.
    """
    saved = decoded(state)
    where = Position(saved.epoch if epoch is None else epoch, step, micro)
    if not 0 <= rank < saved.dp_size or not 0 <= micro < saved.micro_batches:
        raise UsageError(
            f"rank {rank}, micro-batch {micro}: the state is of {saved.dp_size} ranks with "
            f"{saved.micro_batches} micro-batches"
        )
    recipe = recipe or load_recipe(saved.recipe)
    loader = _loader(saved, source, recipe, rank, on_bad)
    loader.load_state_dict(state)
    inline = loader.planned_as(saved.quarantine)
    base = saved.base.restored()
    if where.epoch != base.epoch or where.step < base.step:
        begin = Base(where.epoch, 0, 0)
        if where.epoch == base.epoch and inline.window_at(begin, base.step) != base:
            raise UsageError(
                f"step {where.step}: epoch {base.epoch} was begun with other ranks or settings than those of "
                "the state, and its steps until then do not follow from it; give a state of before that"
            )
        base = begin
    found = inline.window_at(base, step)
    if found is None:
        raise UsageError(f"epoch {where.epoch} has no step {step}")
    batch = inline.next(Start(found, where)).batch
    if isinstance(recipe, DatasetBatch | DatasetChain):
        batch[PAYLOAD] = opened(batch[PAYLOAD][0])
    return batch


def _loader(saved: State, source: Source | None, recipe: Recipe, rank: int, on_bad: Any) -> Loader:
    if source is None:
        if not isinstance(recipe, DatasetSample | DatasetBatch | DatasetChain):
            raise UsageError("a state does not say where its samples lie; give the loader's source")
        noun = "sample" if isinstance(recipe, DatasetSample) else "batch"
        source = numbered(saved.samples, "replay", noun)
    if saved.sources and not isinstance(source, Mixture):
        source = _mixture(saved, source)
    return Loader(
        source,
        recipe=recipe,
        batching=saved.batching,
        seed=saved.seed,
        shuffle=saved.shuffle,
        shuffle_block=saved.shuffle_block,
        name="replay",
        dp_rank=rank,
        dp_size=saved.dp_size,
        micro_batches=saved.micro_batches,
        on_bad=on_bad,
        end=saved.end,  # type: ignore[arg-type]  # one of them
        backend="inline",
    )


def _mixture(saved: State, source: str | Path | Sequence[str | Path]) -> Mixture:
    sources = [source] if isinstance(source, str | Path) else list(source)
    if len(sources) != len(saved.sources):
        raise UsageError(
            f"the state is of a mixture of {len(saved.sources)} sources, {len(sources)} are given; give all, "
            "in the order of their weights"
        )
    weights = {s.first: dict(zip(sources, s.weights)) for s in saved.schedule}
    later = {first: each for first, each in weights.items() if first}
    return Mixture(weights[0], saved.epoch_draws, later)


def content(tensor: torch.Tensor) -> bytes:
    """Its bytes, row by row."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def saved_to(batch: Batch, file: Any) -> None:
    """Write a batch for `torch.load`: its fields, and what its samples are."""
    about = {"ids": batch.ids, "keys": batch.sample_keys, "sources": batch.sample_sources}
    at = {"epoch": batch.epoch, "step": batch.step, "micro": batch.micro}
    torch.save({"fields": dict(batch), "host": batch.host, "valid": batch.valid, **about, **at}, file)
