"""Ray Train with DataHelix: Ray places the ranks, the helixd of each node decodes for those that are there.

python ray_train.py FOLDER-OR-INDEX [RANKS] [CPUS-OF-EACH]
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model

import libhelix as hx


def train(config: dict[str, Any]) -> None:
    """One rank. torch.distributed is there already, and says which one."""
    loader = hx.Loader(
        config["source"],
        recipe=hx.recipes.Clip(frames=4, size=(64, 64)),
        batching=hx.FixedBatch(2),
        epochs=config["epochs"],
        device="auto",
    )
    model = prepare_model(torch.nn.Linear(64 * 64 * 3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    saved = ray.train.get_checkpoint()
    if saved is not None:
        with saved.as_directory() as folder:
            loader.load_state_dict(json.loads((Path(folder) / "data.json").read_text()))
    with loader:
        for batch in loader:
            loss = model(batch["video"].flatten(2).float() / 255).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if batch.step % config["save_every"] == config["save_every"] - 1:
                _save(batch.step, loader.state_dict())


def _save(step: int, state: dict[str, Any]) -> None:
    """Save the state beside the model; it is the same on all ranks, so that one does."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            (Path(folder) / "data.json").write_text(json.dumps(state))
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"step": step}, checkpoint=checkpoint)


def main(source: str, ranks: int = 2, cpus: int = 1) -> None:
    """Train for an epoch. `cpus` are what Ray reckons with; it binds no rank, so helixd sees all cores."""
    trainer = TorchTrainer(
        train,
        train_loop_config={"source": str(Path(source).resolve()), "epochs": 1, "save_every": 2},
        scaling_config=ray.train.ScalingConfig(
            num_workers=ranks, use_gpu=torch.cuda.is_available(), resources_per_worker={"CPU": cpus}
        ),
        run_config=ray.train.RunConfig(failure_config=ray.train.FailureConfig(max_failures=2)),
    )
    print(trainer.fit().metrics)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
