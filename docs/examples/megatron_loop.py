"""A loop as Megatron's: endless iterators, from which each step takes its micro-batches.

torchrun --nproc-per-node 2 megatron_loop.py FOLDER-OR-INDEX STEPS
"""

import os
import sys

import libhelix as hx
from libhelix.adapters.megatron import iterators

MICRO_BATCHES = 2


def main(source: str, steps: int) -> None:
    """Go through so many steps."""
    loader = hx.Loader(
        source,
        recipe=hx.recipes.Clip(frames=4, size=(64, 64)),
        batching=hx.FixedBatch(1),
        epochs=None,
        micro_batches=MICRO_BATCHES,
        dp_rank=int(os.environ.get("RANK", "0")),  # mpu.get_data_parallel_rank()
        dp_size=int(os.environ.get("WORLD_SIZE", "1")),
    )
    with loader:
        (batches,) = iterators(loader)
        for _ in range(steps):
            for batch in [next(batches) for _ in range(MICRO_BATCHES)]:  # a schedule may hold them all
                print(f"epoch {batch.epoch} step {batch.step} samples {list(batch.ids)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
