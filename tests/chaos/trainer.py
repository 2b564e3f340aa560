"""A rank: `python -m tests.chaos.trainer JSON`. Writes a line for each batch, saves its state every few."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

import libhelix as hx
from libhelix.recipes import Clip

SAVE_EVERY = 5


def loader_of(index: str, rank: int, ranks: int, **options: Any) -> hx.Loader:
    """The loader of all of them; the oracle's too."""
    return hx.Loader(
        index,
        recipe=Clip(frames=6, size=(48, 64)),
        batching=hx.FixedBatch(2, regroup=4),
        seed=3,
        epochs=None,
        dp_rank=rank,
        dp_size=ranks,
        # Samples that workers were killed over are masked: that is not what is looked for here.
        bad_budget=hx.BadBudget(count=1 << 40, in_a_row=1 << 40),
        **options,
    )


def line_of(batch: hx.Batch) -> dict[str, Any]:
    """What is written of a batch: where it stands; of its samples number, whether valid, and checksum."""
    sums = [zlib.crc32(video.contiguous().numpy()) for video in batch["video"]]
    return {
        "at": [batch.epoch, batch.step, batch.micro],
        "samples": [list(s) for s in zip(batch.ids, batch.valid.tolist(), sums)],
    }


def main(index: str, rank: int, ranks: int, job: str, folder: str, pace_s: float) -> None:
    """Until it is killed."""
    state, log = Path(folder, f"{job}-{rank}.state"), Path(folder, f"{job}-{rank}.log")
    loader = loader_of(index, rank, ranks, job=job, timeout_s=60.0)
    after = None
    if state.exists():
        saved = json.loads(state.read_text())
        after = saved["after"]
        loader.load_state_dict(saved["state"])
    warnings.simplefilter("ignore", hx.HelixWarning)
    with log.open("a", buffering=1) as out:
        out.write(json.dumps({"begins": time.monotonic(), "pid": os.getpid(), "after": after}) + "\n")
        for number, batch in enumerate(loader):
            line = line_of(batch)
            out.write(json.dumps(line | {"t": time.monotonic()}) + "\n")
            if number % SAVE_EVERY == 0:
                partial = state.with_suffix(".new")
                partial.write_text(json.dumps({"after": line["at"], "state": loader.state_dict()}))
                partial.replace(state)
            time.sleep(pace_s)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
