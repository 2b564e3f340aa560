"""A rank whose accelerator is a sleep: `python -m bench.ablate.rank`, told what to do by side.py."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

import libhelix as hx
from bench.ablate.barrier import Place
from bench.ablate.requests import Step, Train, Trained
from bench.child import serve
from bench.order import batches
from bench.torch_loader import TOKENS, data_loader
from libhelix.index.read import Index

PREFETCH = 2
"""Batches ahead in the DataLoader's worker; with the one in the trainer as many as a ring has."""


class Fed(NamedTuple):
    """A batch, for as long as it is held."""

    tensors: Any
    tokens: int
    epoch: int
    ids: tuple[int, ...]


def train(told: Train) -> Trained:
    """Take batches, sleep, meet the other ranks."""
    os.sched_setaffinity(0, told.cores)
    with closing(Place(told.barrier)) as place, _source(told) as source:
        steps = []
        for _ in range(told.steps):
            place.wait()
            steps.append(_step(source, told.per_token_s, place))
    return Trained(tuple(steps))


def _step(source: Iterator[Fed], per_token_s: float, place: Place) -> Step:
    asked_s = time.monotonic()
    fed = next(source)
    wait_s = time.monotonic() - asked_s
    window_s = fed.tokens * per_token_s
    time.sleep(window_s)
    place.wait()
    return Step(wait_s=wait_s, window_s=window_s, done_at_s=time.monotonic(), epoch=fed.epoch, ids=fed.ids)


@contextmanager
def _source(told: Train) -> Iterator[Iterator[Fed]]:
    if told.socket is None:
        with closing(_local(told)) as found:
            yield found
        return
    os.environ["HELIX_SOCKET"] = told.socket
    loader = hx.Loader(
        told.index,
        recipe=told.recipe,
        batching=hx.FixedBatch(told.batch, regroup=told.regroup),
        seed=told.seed,
        epochs=None,
        job=told.job,
        dp_rank=told.rank,
        dp_size=told.ranks,
    )
    with loader:
        yield (Fed(b, b.num_tokens, b.epoch, b.ids) for b in loader)


def _local(told: Train) -> Generator[Fed, None, None]:
    """A DataLoader of this rank; the worker ends with the iterator."""
    samples = len(Index.open(told.index))

    def order() -> Iterator[Any]:
        return batches(samples=samples, batch=told.batch, seed=told.seed, rank=told.rank, ranks=told.ranks)

    loader = data_loader(
        index=Path(told.index),
        recipe=told.recipe,
        batches=order(),
        seed=told.seed,
        workers=1,
        prefetch=PREFETCH,
        sharing="file_descriptor",
    )
    for batch, visits in zip(loader, order()):
        yield Fed(batch, int(batch[TOKENS].sum()), visits[0].epoch, tuple(v.sample for v in visits))


def main() -> None:
    """Until the parent closes stdin."""
    torch.set_num_threads(1)
    serve(Train, train)


if __name__ == "__main__":
    main()
