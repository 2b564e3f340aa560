"""The weights that docs/planning.md gives: DDP over uneven batches has the gradient of the one even batch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from PIL import Image as Pil
from torch.nn.parallel import DistributedDataParallel

import libhelix as hx
from bench.child import leave_group
from libhelix.index.build import build
from tests.system.recipes import Tokens

RANKS, MICROS = 2, 2


def _losses(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(torch.stack([ids.double(), ids.double() ** 2], dim=1)).squeeze(1)
    return (out - ids.double() / 3) ** 2


def _model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Linear(2, 1).double()


def _loader(index: Path, rank: int) -> hx.Loader:
    return hx.Loader(
        index,
        recipe=Tokens(),
        batching=hx.FixedBatch(3),
        backend="inline",
        dp_rank=rank,
        dp_size=RANKS,
        micro_batches=MICROS,
        job="weights",
    )


def _train(rank: int, index: Path, out: Path) -> None:
    # By a file: a port that is free now may be another's in a moment.
    dist.init_process_group("gloo", init_method=f"file://{out}/meeting", rank=rank, world_size=RANKS)
    model = DistributedDataParallel(_model())
    batches = iter(_loader(index, rank))
    seen: list[int] = []
    sizes = []
    for micro in range(MICROS):
        batch = next(batches)
        assert (batch.step, batch.micro) == (0, micro)
        seen += batch["ids"].tolist()
        sizes.append(len(batch["ids"]))
        loss = _losses(model, batch["ids"]).sum() * RANKS / batch.global_targets
        if micro < MICROS - 1:
            with model.no_sync():
                loss.backward()  # type: ignore[no-untyped-call]
        else:
            loss.backward()  # type: ignore[no-untyped-call]
    np.savez(
        out / f"{rank}.npz",
        seen=np.asarray(seen),
        sizes=np.asarray(sizes),
        **{n: p.grad for n, p in _gradients(model)},
    )
    leave_group()


def _gradients(model: torch.nn.Module) -> Any:
    return [(name.removeprefix("module."), p) for name, p in model.named_parameters()]


def test_ddp_over_uneven_packs_has_the_gradient_of_the_whole_step(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("Linux only")
    for i in range(40):
        Pil.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / f"{i:03d}.png")
    build([tmp_path], tmp_path / "i.arrow")
    mp.spawn(_train, (tmp_path / "i.arrow", tmp_path), nprocs=RANKS)  # type: ignore[attr-defined, no-untyped-call]
    found = [np.load(tmp_path / f"{rank}.npz") for rank in range(RANKS)]
    ids = torch.tensor(np.concatenate([f["seen"] for f in found]))
    model = _model()
    _losses(model, ids).mean().backward()  # type: ignore[no-untyped-call]
    for name, parameter in _gradients(model):
        assert parameter.grad is not None
        for f in found:
            np.testing.assert_allclose(f[name], parameter.grad.numpy(), rtol=1e-12)
    # A mean of means would have been wrong: the batches do differ in size.
    assert len({int(size) for f in found for size in f["sizes"]}) > 1
