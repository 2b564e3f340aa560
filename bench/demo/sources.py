"""Where a rank takes its batches from: DataHelix, or a DataLoader of its own over the same samples."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor

from bench.demo.records import TrainSettings
from bench.order import batches
from bench.torch_loader import TOKENS, Tensors, data_loader
from libhelix.index.read import Index


class Fed(NamedTuple):
    """A batch as the trainer needs it. It must be let go of before the next one is asked for."""

    video: Tensor
    cu_seqlens: Tensor
    label: Tensor
    tokens: int
    ids: tuple[int, ...]
    epoch: int
    masked: int


class Source(Protocol):
    """Batches without end."""

    def next(self) -> Fed:
        """The next batch."""

    def close(self) -> None:
        """End what decodes."""


def source_of(settings: TrainSettings, rank: int, ranks: int) -> Source:
    """What the settings name."""
    if settings.data_loader is None:
        return _Helix(settings)
    return _DataLoader(settings, rank, ranks)


class _Helix:
    def __init__(self, settings: TrainSettings) -> None:
        import libhelix as hx

        self._loader = hx.Loader(
            settings.index,
            recipe=settings.recipe,
            batching=hx.FixedBatch(settings.batch),
            seed=settings.seed,
            name="demo",
            epochs=None,
        )
        self._batches = iter(self._loader)

    def next(self) -> Fed:
        batch = next(self._batches)
        return Fed(
            video=batch["video"],
            cu_seqlens=batch.host["video_cu_seqlens"],
            label=batch["label"],
            tokens=batch.num_tokens,
            ids=batch.ids,
            epoch=batch.epoch,
            masked=int((~batch.valid).sum()),
        )

    def close(self) -> None:
        self._loader.close()


class _DataLoader:
    def __init__(self, settings: TrainSettings, rank: int, ranks: int) -> None:
        tuned = settings.data_loader
        assert tuned is not None, "asked for"

        samples = len(Index.open(settings.index))
        order = partial(
            batches, samples=samples, batch=settings.batch, seed=settings.seed, rank=rank, ranks=ranks
        )
        self._order = order()
        loader = data_loader(
            index=Path(settings.index),
            recipe=settings.recipe,
            batches=order(),
            seed=settings.seed,
            workers=tuned.workers,
            prefetch=tuned.prefetch,
            sharing="file_descriptor",
        )
        self._batches: Iterator[Tensors] | None = iter(loader)

    def next(self) -> Fed:
        assert self._batches is not None, "not closed"
        batch = next(self._batches)
        visits = next(self._order)
        return Fed(
            video=batch["video"],
            cu_seqlens=batch["video_cu_seqlens"],
            label=batch["label"],
            tokens=int(batch[TOKENS].sum()),
            ids=tuple(v.sample for v in visits),
            epoch=visits[0].epoch,
            masked=0,
        )

    def close(self) -> None:
        self._batches = None  # its workers end
