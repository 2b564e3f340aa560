"""The process that waits for the batch: `python -m bench.split.trainer`, told what to do by side.py."""

from __future__ import annotations

import hashlib
import itertools
import tempfile
import time
from pathlib import Path

import torch

import libhelix as hx
from bench.child import serve
from bench.split.recipe import NotedClip, busiest_cpu_s, take_notes
from bench.split.requests import Request, Wait, Waited

QUIET_S = 0.5
"""After this the workers have ended what they still had to do for the loader before."""


class Trainer:
    """Holds a loader that keeps daemon and workers, and makes a new one for every wait."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._numbers = itertools.count(1)
        self._keeper: hx.Loader | None = None

    def handle(self, request: Request) -> Waited:
        """Answer a request."""
        if isinstance(request, Wait):
            return self._wait(request)
        recipe = hx.recipes.Clip(frames=1, size=(16, 16))
        self._keeper = self._loader(request, recipe, "keeper")
        next(iter(self._keeper))
        return Waited()

    def _wait(self, wait: Wait) -> Waited:
        """A loader of its own has not learned how long the trainer computes: its first batch is cut into
        parts for all workers."""
        recipe = NotedClip(frames=wait.frames, size=wait.size, notes=str(self._notes))
        time.sleep(QUIET_S)
        take_notes(self._notes)
        with self._loader(wait, recipe, f"wait{next(self._numbers)}") as loader:
            began_s = time.monotonic()
            loader.start()
            batch = next(iter(loader))
            seconds = time.monotonic() - began_s
            parts = take_notes(self._notes)
            digest = hashlib.blake2b(batch["video"].numpy(), digest_size=16).hexdigest()
        return Waited(
            seconds=seconds,
            busiest_cpu_s=busiest_cpu_s(parts),
            digest=digest,
            parts=len(parts),
            workers=len({p.pid for p in parts}),
            threads=max((p.threads for p in parts), default=0),
        )

    @staticmethod
    def _loader(request: Request, recipe: hx.Recipe, name: str) -> hx.Loader:
        return hx.Loader(
            request.index,
            recipe=recipe,
            batching=hx.FixedBatch(1),
            epochs=None,
            name=name,
            job=request.job,
            ring=1,  # nothing is decoded beside the batch that is waited for
            dp_rank=0,
            dp_size=1,
        )


def main() -> None:
    """Until the parent closes stdin."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="helix-bench-") as notes:
        serve(Request, Trainer(Path(notes)).handle)  # type: ignore[arg-type]  # a union is a type to msgspec


if __name__ == "__main__":
    main()
