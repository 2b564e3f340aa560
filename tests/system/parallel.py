"""One of four processes of a mesh: `python -m tests.system.parallel JSON`. Prints what it saw as JSON."""

from __future__ import annotations

import json
import sys
import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import libhelix as hx
from bench.child import leave_group
from tests.system.recipes import Told


def main(index: str, notes: str, names: list[str], shape: list[int], **options: Any) -> None:
    """Iterate, and have the peers along "tp" say what they see."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", tuple(shape), mesh_dim_names=tuple(names))
    seen = []
    with hx.Loader(index, recipe=Told(notes), batching=hx.FixedBatch(2), mesh=mesh, **options) as loader:
        for batch in loader:
            value = zlib.crc32(batch["x"].numpy().tobytes())
            group = mesh["tp"].get_group()
            peers = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
            dist.all_gather(peers, torch.tensor([value]), group)
            same = all(int(peer) == value for peer in peers)
            seen.append([batch.epoch, batch.step, batch.ids, batch["x"][:, 0].tolist(), same])
        state = loader.state_dict()
    print(json.dumps({"at": mesh.get_coordinate(), "seen": seen, "state": state}), flush=True)
    leave_group()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
