"""What helixctl says was delivered is what was delivered."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image as Pil

import libhelix as hx
from libhelix.ctl.main import cli
from libhelix.errors import ResumeMismatch, UsageError
from libhelix.index.build import build
from libhelix.plan.coverage import coverage
from libhelix.plan.state import decoded
from tests.system.recipes import Drawn

SAMPLES = 23


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of small images."""
    folder = tmp_path_factory.mktemp("images")
    for i in range(SAMPLES):
        Pil.new("RGB", (8, 8), (i, 0, 0)).save(folder / f"{i:03d}.png")
    build([folder], folder / "images.arrow")
    return folder / "images.arrow"


def _run(*args: str) -> Any:
    done = CliRunner().invoke(cli, ["coverage", *args], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.stdout


@pytest.mark.parametrize("end", ["drop", "pad"])
@pytest.mark.parametrize(
    "batching", [hx.FixedBatch(2), hx.FixedBatch(2, regroup=3), hx.TokenBudget(9, oversize="skip")]
)
def test_every_sample_is_accounted_for_at_every_step(index: Path, batching: Any, end: Any) -> None:
    loaders = [
        hx.Loader(
            index,
            recipe=Drawn(),
            batching=batching,
            backend="inline",
            end=end,
            dp_rank=r,
            dp_size=2,
            epochs=3,
        )
        for r in range(2)
    ]
    seen: dict[int, Counter[int]] = {}
    for batches in zip(*loaders, strict=True):
        for batch in batches:
            seen.setdefault(batch.epoch, Counter()).update(i for i in batch.ids if i >= 0)
        states = [decoded(loader.state_dict()) for loader in loaders]
        assert states[0] == states[1]
        found = coverage(states[0])
        for epoch in found.epochs:
            assert epoch.delivered == sum(seen.get(epoch.epoch, Counter()).values())
            assert epoch.delivered + epoch.left_out + epoch.to_come == SAMPLES
    assert all(max(counts.values()) == 1 for counts in seen.values())


def test_ranks_that_change_leave_an_account(index: Path) -> None:
    rng = random.Random(4)
    state, seen = None, 0
    for _ in range(6):
        size = rng.randint(1, 4)
        loaders = [
            hx.Loader(
                index, recipe=Drawn(), batching=hx.FixedBatch(3), backend="inline", dp_rank=r, dp_size=size
            )
            for r in range(size)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        if decoded(loaders[0].state_dict()).epoch:
            break
        seen += sum(next(iter(loader)).num_samples for loader in loaders)
        state = loaders[0].state_dict()
        found = coverage(decoded(state))
        assert found.epochs[0].delivered == seen
    state = loaders[0].state_dict()
    (over, *_) = coverage(decoded(state)).epochs
    assert (over.epoch, over.delivered + over.left_out, over.delivered) == (0, SAMPLES, seen)


def test_the_command_shows_it_and_names_what_is_left(index: Path, tmp_path: Path) -> None:
    loader = hx.Loader(index, recipe=Drawn(), batching=hx.FixedBatch(5), backend="inline", epochs=None)
    batches = iter(loader)
    got = [next(batches) for _ in range(5)]
    (tmp_path / "s.json").write_text(json.dumps(loader.state_dict()))
    text = _run(str(tmp_path / "s.json"))
    assert [line.split() for line in text.splitlines()[-2:]] == [
        ["0", "20", "3", "0"],
        ["1", "5", "0", "18"],
    ]
    found = json.loads(_run(str(tmp_path / "s.json"), "--index", str(index), "--json"))
    assert set(found["still_to_come"]) == {f"{i:03d}.png" for i in range(SAMPLES)} - set(got[-1].sample_keys)
    assert found["epochs"][1]["to_come"] == len(found["still_to_come"]) == 18


def test_an_epoch_that_was_left_in_the_middle_is_listed(index: Path) -> None:
    loader = hx.Loader(index, recipe=Drawn(), batching=hx.FixedBatch(5), backend="inline", epochs=None)
    batches = iter(loader)
    next(batches)
    loader.set_epoch(3)
    (first, *between, last) = coverage(decoded(loader.state_dict())).epochs
    assert (first.epoch, first.delivered, first.left_out) == (0, 5, 18)
    assert [(e.epoch, e.delivered, e.left_out) for e in between] == [(1, 0, SAMPLES), (2, 0, SAMPLES)]
    assert (last.epoch, last.delivered, last.to_come) == (3, 0, SAMPLES)


def test_states_of_different_steps_are_refused(index: Path, tmp_path: Path) -> None:
    loader = hx.Loader(index, recipe=Drawn(), batching=hx.FixedBatch(5), backend="inline")
    batches = iter(loader)
    for name in ("a", "b"):
        next(batches)
        (tmp_path / name).write_text(json.dumps(loader.state_dict()))
    with pytest.raises(ResumeMismatch, match=r"differ in .*step.*: they are not of one step"):
        _run(str(tmp_path / "a"), str(tmp_path / "b"))
    (tmp_path / "c").write_text("[1]")
    for name, said in (("c", "no state of a loader"), ("d", "No such file")):
        with pytest.raises(UsageError, match=said):
            _run(str(tmp_path / name))
