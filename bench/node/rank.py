"""The loop of a rank, the same for all systems: `python -m bench.node.rank`, told what to do by side.py.

meet the others; ask; note the wait; compute (sleep for the window); meet the others; ...
"""

from __future__ import annotations

import os
import time
import traceback
import zlib
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import torch

from bench.ablate.barrier import Place
from bench.child import serve
from bench.node.case import Step, Train, Trained, read_rows
from bench.node.system import Fed, system

_STRIDE = 61
"""Of the bytes that are in a checksum; a prime, so that it meets all channels and columns."""


def train(told: Train) -> Trained:
    """Take batches, compute, meet the other ranks. What goes wrong is in the answer."""
    case, steps = told.case, list[Step]()
    os.sched_setaffinity(0, case.cores)
    began_s = time.monotonic()
    first_s = 0.0
    try:
        under_test = system(told.system)
        with (
            closing(Place(told.barrier)) as place,
            under_test.batches(case, told.variant, told.rank, told.facts) as source,
        ):
            for number in range(case.all_steps * case.micro_batches):
                if number % case.micro_batches == 0:
                    place.wait()
                steps.append(_step(source, told, place, last=(number + 1) % case.micro_batches == 0))
                first_s = first_s or steps[0].asked_at_s + steps[0].wait_s - began_s
            place.wait()  # nobody takes apart what others still use
    except Exception as e:  # noqa: BLE001 - systems may raise anything
        where = traceback.format_exc(limit=-3)
        return Trained(steps=tuple(steps), first_batch_s=first_s, error=f"{type(e).__name__}: {e}\n{where}")
    return Trained(steps=tuple(steps), first_batch_s=first_s)


def _step(source: Iterator[Fed], told: Train, place: Place, *, last: bool) -> Step:
    case = told.case
    asked_s = time.monotonic()
    fed = next(source)
    wait_s = time.monotonic() - asked_s
    rows = read_rows(case.rows)
    tokens = [rows.tokens[i] for i in fed.ids]
    window_s = case.window.seconds(tokens)
    crcs = sample_crcs(fed.tensors, len(fed.ids)) if told.checksums else ()
    time.sleep(window_s)
    if last:
        place.wait()
    return Step(
        asked_at_s=asked_s,
        wait_s=wait_s,
        window_s=window_s,
        done_at_s=time.monotonic(),
        epoch=fed.epoch,
        ids=fed.ids,
        tokens=sum(tokens),
        decode_s=sum(case.decode_s(i, rows.recorded_us[i]) for i in fed.ids),
        crcs=crcs,
    )


def sample_crcs(tensors: dict[str, Any], samples: int) -> tuple[int, ...]:
    """A checksum of every sample of a batch: of some of the bytes of each field, by its name."""
    found = [0] * samples
    for name in sorted(tensors):
        bounds = tensors.get(f"{name}_cu_seqlens")
        values = tensors[name]
        if name.endswith("_cu_seqlens") or name == "tokens":
            continue
        for i in range(samples):
            one = values[i] if bounds is None else values[int(bounds[i]) : int(bounds[i + 1])]
            flat = torch.as_tensor(one).contiguous().reshape(-1).view(torch.uint8)
            found[i] = zlib.crc32(flat[::_STRIDE].numpy().tobytes(), found[i])
    return tuple(found)


def main() -> None:
    """Until the parent closes stdin."""
    torch.set_num_threads(1)
    serve(Train, train)


if __name__ == "__main__":
    main()
