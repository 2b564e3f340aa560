"""Samples that take longer than the ring looks ahead: begun early by real workers, some of them killed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from click.testing import CliRunner

import libhelix as hx
from bench.peers.job import write_data
from libhelix.client import embedded_address
from libhelix.ctl import main as ctl
from libhelix.index.build import build
from tests.system.processes import of_job
from tests.system.recipes import LongDrawn, LongTokens

STEPS = 60
WINDOW_S = 0.02


def _loader(index: Path, recipe: hx.Recipe, backend: Literal["daemon", "inline"]) -> hx.Loader:
    batching = hx.FixedBatch(2, regroup=2)
    return hx.Loader(index, recipe=recipe, batching=batching, epochs=None, backend=backend)


def _values(batch: hx.Batch) -> dict[str, Any]:
    """Copies of its tensors, and what else there is of a batch."""
    lists = {name: value if isinstance(value, list) else [value] for name, value in batch.items()}
    found: dict[str, Any] = {name: [x.clone() for x in value] for name, value in lists.items()}
    return {**found, "ids": list(batch.ids), "valid": batch.valid.tolist()}


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    tensors = [(x, y) for name in one for x, y in zip(one[name], other[name], strict=True)]
    return one.keys() == other.keys() and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in tensors
    )


def _staging(job: str) -> dict[str, Any]:
    (daemon,) = json.loads(_status(job, "--json"))
    found: dict[str, Any] = daemon["jobs"][0]["loaders"][0]["staging"]
    return found


def _status(job: str, *options: str) -> str:
    args = ["status", *options, "--socket", embedded_address(job)]
    return CliRunner().invoke(ctl.cli, args, standalone_mode=False, catch_exceptions=False).output


@pytest.mark.parametrize("recipe", [LongDrawn, LongTokens])
def test_they_are_what_one_process_would_make_of_them(job: str, tmp_path: Path, recipe: type[Any]) -> None:
    build([write_data(tmp_path, 50)], tmp_path / "index.arrow")
    with _loader(tmp_path / "index.arrow", recipe(long_s=0.08), "daemon") as loader:
        batches, took = iter(loader), []
        for step in range(STEPS):
            took.append(_values(next(batches)))
            time.sleep(WINDOW_S)
            if step in (25, 40):  # whoever is at something now
                os.kill(of_job(job, "w")[0], signal.SIGKILL)
        staging = _staging(job)
        said = _status(job)
    assert staging["begun"] > 5, staging
    assert 0 <= staging["bytes"]["held"] <= staging["bytes"]["total"]
    assert " long samples were begun before their batch had its place" in said
    with _loader(tmp_path / "index.arrow", recipe(long_s=0.0), "inline") as inline:
        expected = [_values(next(batches)) for batches in [iter(inline)] for _ in range(STEPS)]
    assert all(_same(*pair) for pair in zip(took, expected, strict=True))
