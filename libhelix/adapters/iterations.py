"""What trainers assume of an iterable, and a loader may not keep: checked before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Iterator

from libhelix.batch import Batch
from libhelix.errors import UsageError
from libhelix.loader import Loader


class Batches:
    """A loader without `set_epoch`: its own state says which epoch comes, a trainer's count may not."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


def batches_of(loader: Loader) -> int | None:
    """Batches of one iteration; None where it has no end."""
    try:
        return len(loader)
    except TypeError:
        return None


def check_iterations(loader: Loader, iterations: float, accumulate: int) -> None:
    """Raise UsageError where a trainer would be wrong that takes every iteration for as long as the first."""
    batches = batches_of(loader)
    if batches is None:
        return
    if batches % accumulate:
        raise UsageError(
            f"loader {loader.name!r} has {batches} batches, which do not divide into steps of {accumulate}; "
            f"make it with micro_batches={accumulate}"
        )
    if iterations > 1 and not loader.equal_epochs:
        raise UsageError(
            f"loader {loader.name!r}: epochs of planned batches differ in length, and the trainer takes them "
            f"to be as long as the first; make the loader with epochs={math.ceil(iterations)}, and have the "
            "trainer take one"
        )
