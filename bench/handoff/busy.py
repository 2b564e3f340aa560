"""The process that keeps all cores decoding: `python -m bench.handoff.busy`, told what to do by side.py."""

from __future__ import annotations

import threading

import libhelix as hx
from bench.child import serve
from bench.handoff.requests import Decode, Decoding


def decode(request: Decode) -> Decoding:
    """Take batches for ever, in a thread; return with the first."""
    loader = hx.Loader(
        request.index,
        recipe=hx.recipes.Clip(frames=request.frames),
        batching=hx.FixedBatch(request.batch),
        name="busy",
        epochs=None,
        job=request.job,
        dp_rank=0,
        dp_size=1,
    )
    batches = iter(loader)
    next(batches)

    def take_all() -> None:
        for _ in batches:
            pass

    threading.Thread(target=take_all, name="taker", daemon=True).start()
    return Decoding()


if __name__ == "__main__":
    serve(Decode, decode)
