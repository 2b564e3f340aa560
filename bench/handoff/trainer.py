"""The process that is measured: `python -m bench.handoff.trainer`, told what to do by side.py."""

from __future__ import annotations

import gc
import time

import libhelix as hx
from bench.child import serve
from bench.handoff.recipe import Blocks
from bench.handoff.requests import (
    ColdStart,
    ColdStartTimes,
    Handoffs,
    HandoffTimes,
    TrainerRequest,
)
from bench.handoff.watch import Watch

GIVE_UP = 5
"""Batches are asked for at most so many times as often as are to be measured."""

PAUSE_GROWS = 1.2


def handoffs(request: Handoffs) -> HandoffTimes:
    """Sleep, ask, drop: the batch is made while we sleep, and only the asking is timed."""
    loader = hx.Loader(
        request.index,
        recipe=Blocks(nbytes=request.batch_bytes // request.batch),
        batching=hx.FixedBatch(request.batch),
        name="measured",
        epochs=None,
        job=request.job,
        dp_rank=0,
        dp_size=1,
    )
    seconds: list[float] = []
    cpu_seconds: list[float] = []
    unready, batch_bytes, pause_s = 0, 0, request.pause_s
    with loader, Watch() as watch:
        loader.start()
        batches = iter(loader)
        for taken in range(request.warm_up + GIVE_UP * request.count):
            time.sleep(pause_s)
            asks_before = watch.asks
            asked_s, asked_cpu_s = time.perf_counter(), time.thread_time()
            batch = next(batches)
            took_s, took_cpu_s = time.perf_counter() - asked_s, time.thread_time() - asked_cpu_s
            batch_bytes = sum(t.nbytes for t in batch.values())
            del batch
            if taken < request.warm_up:
                continue
            if watch.asks == asks_before:
                seconds.append(took_s)
                cpu_seconds.append(took_cpu_s)
            else:
                unready += 1
                pause_s *= PAUSE_GROWS
            if len(seconds) == request.count:
                break
    return HandoffTimes(seconds=seconds, cpu_seconds=cpu_seconds, unready=unready, batch_bytes=batch_bytes)


def cold_start(request: ColdStart) -> ColdStartTimes:
    """The daemon and the worker host of this job do not exist yet."""
    with Watch() as watch:
        began_s = time.perf_counter()
        loader = hx.Loader(
            request.index,
            recipe=Blocks(nbytes=request.batch_bytes // request.batch),
            batching=hx.FixedBatch(request.batch, max_bytes=request.ring_bytes // request.ring),
            ring=request.ring,
            epochs=None,
            job=request.job,
            dp_rank=0,
            dp_size=1,
        )
        constructed_s = time.perf_counter()
        with loader:
            loader.start()  # the first next() would do it
            attached_s = time.perf_counter()
            next(iter(loader))
            filled_s = time.perf_counter()
    return ColdStartTimes(
        construct_s=constructed_s - began_s,
        connect_s=watch.connected_at_s - constructed_s,
        attach_s=attached_s - watch.connected_at_s,
        fill_s=filled_s - attached_s,
    )


def handle(request: TrainerRequest) -> HandoffTimes | ColdStartTimes:
    """Answer a request."""
    return handoffs(request) if isinstance(request, Handoffs) else cold_start(request)


if __name__ == "__main__":
    # A full collection takes 70 ms over what torch has imported, and comes when it comes: it is no hand-off.
    gc.collect()
    gc.freeze()
    serve(TrainerRequest, handle)  # type: ignore[arg-type]  # a union is a type to msgspec
