"""A rank of a job on several nodes, started by torchrun: takes batches, sleeps as if it computed, and meets
the others at the end of every step. Writes what it took, and when, to OUT/rank-R.jsonl, a line a step."""

from __future__ import annotations

import argparse
import json
import os
import time
import zlib
from pathlib import Path

import torch
import torch.distributed as dist

import libhelix as hx
from bench.child import leave_group
from bench.peers.recipe import Paced

ENOUGH = "enough"


def main() -> None:
    """Until the steps are done, or OUT/enough is there."""
    args = argparse.ArgumentParser()
    args.add_argument("index", type=Path)
    args.add_argument("out", type=Path)
    args.add_argument("--steps", type=int, default=8)
    args.add_argument("--batch", type=int, default=4)
    args.add_argument("--regroup", type=int, default=1)
    args.add_argument("--ring", type=int, default=3)
    args.add_argument("--window-ms", type=float, default=0.0)
    args.add_argument("--placement", choices=("static", "dynamic"), default="static")
    args.add_argument("--mean-us", type=int, default=2_000)
    args.add_argument("--sigma", type=float, default=1.0)
    args.add_argument("--nbytes", type=int, default=4096)
    args.add_argument("--timeout-s", type=float, default=60.0)
    args.add_argument("--apart", action="store_true", help="INDEX/N.arrow on node N, for its ranks alone")
    chosen = args.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    of_node: tuple[int, int] | tuple[None, None] = (None, None)
    if chosen.apart:
        of_node = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        chosen.index = chosen.index / f"{os.environ['GROUP_RANK']}.arrow"
    loader = hx.Loader(
        chosen.index,
        recipe=Paced(mean_us=chosen.mean_us, sigma=chosen.sigma, nbytes=chosen.nbytes),
        batching=hx.FixedBatch(chosen.batch, regroup=chosen.regroup),
        placement=chosen.placement,
        ring=chosen.ring,
        epochs=None,
        timeout_s=chosen.timeout_s,
        dp_rank=of_node[0],
        dp_size=of_node[1],
    )
    with loader, open(chosen.out / f"rank-{rank}.jsonl", "w", buffering=1) as out:
        batches = iter(loader)
        for step in range(chosen.steps):
            asked = time.monotonic()
            batch = next(batches)
            wait_s = time.monotonic() - asked
            took = {
                "step": step,
                "ids": list(batch.ids),
                "crc": zlib.crc32(batch["x"].numpy().tobytes()),
                "wait_s": wait_s,
                "at": time.monotonic(),
            }
            time.sleep(chosen.window_ms * 1e-3)
            enough = torch.tensor([(chosen.out / ENOUGH).exists()], dtype=torch.int64)
            dist.all_reduce(enough, dist.ReduceOp.MAX)
            print(json.dumps(took), file=out)
            if enough.item():
                break
    dist.barrier()
    leave_group()


if __name__ == "__main__":
    main()
