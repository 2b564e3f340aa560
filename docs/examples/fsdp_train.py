"""A loop of one's own with FSDP, over a mesh: ranks have batches of their own, their state is one.

torchrun --nproc-per-node 2 fsdp_train.py FOLDER-OR-INDEX CHECKPOINT [EPOCHS]
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import libhelix as hx

SAVE_EVERY = 2


def main(source: str, checkpoint: str, epochs: int = 1) -> None:
    """Train to the end of the epochs, from the checkpoint if there is one."""
    kind = (
        torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    )
    assert kind is not None
    dist.init_process_group("gloo" if kind.type == "cpu" else None)
    mesh = init_device_mesh(kind.type, (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    loader = hx.Loader(
        source,
        recipe=hx.recipes.Clip(frames=4, size=(64, 64)),
        batching=hx.FixedBatch(2),
        epochs=epochs,
        mesh=mesh,
        device=None if kind.type == "cpu" else "auto",
    )
    model = torch.nn.Sequential(torch.nn.Linear(64 * 64 * 3, 8), torch.nn.Linear(8, 1)).to(kind)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if os.path.exists(checkpoint):
        weights = get_model_state_dict(model)
        dcp.load(weights, checkpoint_id=checkpoint)
        set_model_state_dict(model, weights)
        loader.load_state_dict(torch.load(f"{checkpoint}/loader.pt"))
    with loader:
        for batch in loader:
            loss = model(batch["video"].flatten(2).float() / 255).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            where = f"rank {dist.get_rank()} epoch {batch.epoch} step {batch.step}"
            print(f"{where} samples {list(batch.ids)}", flush=True)
            if batch.step % SAVE_EVERY == SAVE_EVERY - 1:
                dcp.save(get_model_state_dict(model), checkpoint_id=checkpoint)
                if dist.get_rank() == 0:  # it is the same on all ranks
                    torch.save(loader.state_dict(), f"{checkpoint}/loader.pt")
                dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
