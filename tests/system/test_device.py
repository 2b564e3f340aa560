"""Device batches are the same as host batches, and inline ones."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import libhelix as hx
from libhelix import loader as loader_module
from tests.late import Late
from tests.system.recipes import Drawn, Picky, Plain, Tokens


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Late:
    """An accelerator for `device="cpu"`."""
    accelerator = Late()
    monkeypatch.setattr(loader_module, "resolved", lambda device: torch.device(device))
    monkeypatch.setattr(loader_module, "TorchAccelerator", lambda device: accelerator)
    return accelerator


def _batches(index: Path, **how: Any) -> list[tuple[tuple[str, ...], torch.Tensor]]:
    with hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2), epochs=3, ring=4, **how) as loader:
        return [(batch.sample_keys, batch["video"].clone()) for batch in loader]


def test_device_host_and_inline_batches_are_the_same(index: Path, job: str, late: Late) -> None:
    device = _batches(index, device="cpu")
    assert late.registered == late.unregistered == 1
    for others in (_batches(index), _batches(index, backend="inline")):
        assert [keys for keys, _ in device] == [keys for keys, _ in others]
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(device, others))


@pytest.mark.parametrize("recipe", [Drawn(), Tokens()], ids=["ragged and padded", "packed"])
def test_so_they_are_in_every_layout_with_all_that_a_batch_says(
    index: Path, job: str, late: Late, recipe: hx.Recipe
) -> None:
    given: list[list[Any]] = []
    hows: list[dict[str, Any]] = [{"device": "cpu"}, {}, {"backend": "inline"}]
    for how in hows:
        with hx.Loader(index, recipe=recipe, batching=hx.FixedBatch(2), epochs=2, ring=4, **how) as loader:
            given.append([_all_of(batch) for batch in loader])
    assert late.copying == 0
    assert given[0] == given[1] == given[2]
    assert len(given[0]) == 8


def _all_of(batch: hx.Batch) -> dict[str, Any]:
    """Values, types and places of all tensors, and what the batch says besides."""
    found: dict[str, Any] = {}
    for name, value in batch.items():
        tensors = value if isinstance(value, list) else [value]
        found[name] = [(t.dtype, tuple(t.shape), t.tolist()) for t in tensors]
    found["host"] = {name: t.tolist() for name, t in batch.host.items()}
    shapes = {name: torch.as_tensor(of).tolist() for name, of in batch.shapes.items()}
    return {**found, "shapes": shapes, "ids": list(batch.ids), "valid": batch.valid.tolist()}


def test_a_state_does_not_count_what_was_copied_ahead(index: Path, job: str, late: Late) -> None:
    how: dict[str, Any] = {"recipe": Plain(), "batching": hx.FixedBatch(2), "epochs": 2, "ring": 4}
    with hx.Loader(index, device="cpu", **how) as loader:
        keys = [batch.sample_keys for _, batch in zip(range(3), loader)]
        state = loader.state_dict()
    with hx.Loader(index, device="cpu", **how) as loader:
        next(iter(loader))  # and others are copied ahead
        loader.load_state_dict(state)
        keys += [batch.sample_keys for batch in loader]
    with hx.Loader(index, **how) as loader:
        assert keys == [batch.sample_keys for batch in loader]


def test_bad_samples_of_batches_that_were_copied_ahead_are_told_with_their_batch(
    index: Path, job: str, late: Late, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path / "cache"))
    bad = ("b.mp4", "e.mp4")
    how: dict[str, Any] = {"recipe": Picky(not_filled=bad), "batching": hx.FixedBatch(2), "epochs": 2}
    told = masked = 0
    enough = hx.BadBudget(count=100)
    with hx.Loader(index, device="cpu", ring=5, bad_budget=enough, **how) as loader:
        batches = iter(loader)
        for _ in range(len(loader)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", hx.HelixWarning)
                batch = next(batches)
            told += sum("is masked" in str(w.message) for w in caught)
            masked += int((~batch.valid).sum())
            assert told == masked
            time.sleep(0.05)  # until what follows is decoded
    assert masked > 0


def test_set_epoch_drops_what_was_copied_ahead(index: Path, job: str, late: Late) -> None:
    how: dict[str, Any] = {"recipe": Plain(), "batching": hx.FixedBatch(2), "ring": 5}
    given = []
    for device in (None, "cpu"):
        with hx.Loader(index, device=device, **how) as loader:
            next(iter(loader))
            time.sleep(0.2)  # until what follows is decoded
            next(iter(loader))
            loader.set_epoch(7)
            given.append([(batch.epoch, batch.sample_keys, batch["video"].clone()) for batch in loader])
    assert [batch[:2] for batch in given[0]] == [batch[:2] for batch in given[1]]
    assert all(torch.equal(a[2], b[2]) for a, b in zip(*given))
