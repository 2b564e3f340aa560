"""For loops that take iterators without end, as Megatron-LM's do, and keep micro-batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from libhelix.batch import Batch
from libhelix.errors import UsageError
from libhelix.loader import Loader


def iterators(loader: Loader, chunks: int = 1) -> list[Iterator[Batch]]:
    """An iterator for each model chunk of this rank; all of them give the same batches.

    A batch is kept until the last chunk has taken it: with an interleaved schedule make the loader with a
    `ring` for as many as are under way. Raises UsageError for a loader that has an end.
    """
    if loader.epochs is not None:
        raise UsageError(
            f"loader {loader.name!r} ends after {loader.epochs} epochs, and these iterators must not; make "
            "it with epochs=None"
        )
    batches = iter(loader)
    waiting: list[deque[Batch]] = [deque() for _ in range(chunks)]
    return [_Chunk(batches, waiting, chunk) for chunk in range(chunks)]


class _Chunk:
    """One of several over the same batches. Not itertools.tee: that keeps up to 57 after all took them."""

    def __init__(self, batches: Iterator[Batch], waiting: Sequence[deque[Batch]], chunk: int) -> None:
        self._batches = batches
        self._waiting = waiting
        self._mine = waiting[chunk]

    def __iter__(self) -> _Chunk:
        return self

    def __next__(self) -> Batch:
        if not self._mine:
            batch = next(self._batches)
            for queue in self._waiting:
                queue.append(Batch(batch))  # a dict of its own for each: loops pop fields
        return self._mine.popleft()
