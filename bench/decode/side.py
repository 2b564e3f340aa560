"""A trainer that only takes batches: `python -m bench.decode.side`, told what to do by bench/side.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import libhelix as hx
from bench.child import serve
from bench.decode.requests import HelixSide, Request, Take, Taken, TorchSide
from bench.order import batches
from bench.torch_loader import data_loader
from libhelix.index.read import Index


class Trainer:
    """Takes batches from the loader that it was told to make."""

    def __init__(self) -> None:
        self._batches: Iterator[Any] = iter(())
        self._batch = 0

    def handle(self, request: Request) -> Taken:
        """Answer a request."""
        match request:
            case Take():
                return self._take(request)
            case HelixSide():
                self._batches = iter(_helix(request))
            case TorchSide():
                self._batches = iter(_torch(request))
        self._batch = request.batch
        return Taken(samples=0, wall_s=0.0)

    def _take(self, request: Take) -> Taken:
        began_s = time.monotonic()
        taken = 0
        while taken < request.batches or time.monotonic() < began_s + request.seconds:
            next(self._batches)  # and dropped at once
            taken += 1
        return Taken(samples=taken * self._batch, wall_s=time.monotonic() - began_s)

    def close(self) -> None:
        """Let go of the loader; workers end then."""
        self._batches = iter(())


def _helix(request: HelixSide) -> hx.Loader:
    return hx.Loader(
        request.index,
        recipe=request.recipe,
        batching=hx.FixedBatch(request.batch),
        seed=request.seed,
        epochs=None,
        ring=request.ring,
        dp_rank=0,
        dp_size=1,
    )


def _torch(request: TorchSide) -> Any:
    order = batches(samples=len(Index.open(request.index)), batch=request.batch, seed=request.seed)
    return data_loader(
        index=Path(request.index),
        recipe=request.recipe,
        batches=order,
        seed=request.seed,
        workers=request.workers,
        prefetch=request.prefetch,
        sharing=request.sharing,
    )


def main() -> None:
    """Until the parent closes stdin."""
    torch.set_num_threads(1)
    trainer = Trainer()
    try:
        serve(Request, trainer.handle)  # type: ignore[arg-type]  # a union is a type to msgspec
    finally:
        trainer.close()


if __name__ == "__main__":
    main()
