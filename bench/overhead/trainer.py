"""The process that takes batches at a pace: `python -m bench.overhead.trainer`, told by side.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from unittest import mock

import torch

import libhelix as hx
from bench.child import serve
from bench.overhead.requests import Begin, Request, Take, Taken
from libhelix.session import Attachment
from libhelix.wire import messages as m
from libhelix.wire.settings import Position


class Decoded:
    """While it is open: CPU time that helixd says decoding the batches has taken that came here."""

    def __init__(self) -> None:
        self.us = 0

    def __enter__(self) -> Decoded:
        take = Attachment.take

        def counting(attachment: Attachment, at: Position) -> m.Ready | None:
            ready = take(attachment, at)
            if ready is not None:
                self.us += ready.decode_us
            return ready

        self._patch = mock.patch.object(Attachment, "take", counting)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()


class Trainer:
    """Takes batches from the loader that it was told to make."""

    def __init__(self, decoded: Decoded) -> None:
        self._decoded = decoded
        self._batches: Iterator[hx.Batch] = iter(())

    def handle(self, request: Request) -> Taken:
        """Answer a request."""
        match request:
            case Begin():
                return self._begin(request)
            case Take():
                return self._take(request)

    def _begin(self, begin: Begin) -> Taken:
        loader = hx.Loader(
            begin.index,
            recipe=begin.decode.recipe,
            batching=hx.FixedBatch(begin.batch, regroup=begin.regroup),
            job=begin.job,
            epochs=None,
            micro_batches=begin.micro_batches,
            ring=begin.ring,
            dp_rank=0,
            dp_size=begin.dp_size,
        )
        self._batches = iter(loader)
        next(self._batches)
        return Taken()

    def _take(self, take: Take) -> Taken:
        batches = samples = 0
        next_cpu_s = release_cpu_s = 0.0
        decoded_before_us = self._decoded.us
        began_s = due_s = time.monotonic()
        while time.monotonic() < began_s + take.seconds:
            due_s = max(due_s + take.period_s, time.monotonic())  # a late batch is not made up for
            before_s = time.thread_time()
            batch = next(self._batches)
            taken_s = time.thread_time()
            batches, samples = batches + 1, samples + batch.num_samples
            next_cpu_s += taken_s - before_s
            time.sleep(max(0.0, due_s - time.monotonic()))  # the accelerator computes
            before_s = time.thread_time()
            del batch
            release_cpu_s += time.thread_time() - before_s
        return Taken(
            batches=batches,
            samples=samples,
            wall_s=time.monotonic() - began_s,
            next_cpu_s=next_cpu_s,
            release_cpu_s=release_cpu_s,
            decode_cpu_s=(self._decoded.us - decoded_before_us) * 1e-6,
        )


def main() -> None:
    """Until the parent closes stdin."""
    torch.set_num_threads(1)
    with Decoded() as decoded:
        serve(Request, Trainer(decoded).handle)  # type: ignore[arg-type]  # a union is a type to msgspec


if __name__ == "__main__":
    main()
