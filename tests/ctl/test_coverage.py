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
from libhelix.ctl.coverage import _WORDS
from libhelix.ctl.main import cli
from libhelix.errors import ResumeMismatch, UsageError
from libhelix.index.build import build
from libhelix.plan.coverage import coverage
from libhelix.plan.state import State, decoded
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


def _saved(loader: hx.Loader, path: Path, **changes: Any) -> str:
    path.write_text(json.dumps({**loader.state_dict(), **changes}))
    return str(path)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 30 small images."""
    folder = tmp_path_factory.mktemp("other")
    for i in range(30):
        Pil.new("RGB", (8, 8), (0, i, 0)).save(folder / f"o{i:03d}.png")
    build([folder], folder / "other.arrow")
    return folder / "other.arrow"


def test_draws_of_a_mixture_are_counted_by_source_and_named(index: Path, other: Path, tmp_path: Path) -> None:
    mixture = hx.Mixture({index: 0.75, other: 0.25}, epoch_samples=40)
    loader = hx.Loader(mixture, recipe=Drawn(), batching=hx.FixedBatch(5), backend="inline", epochs=None)
    seen = [key for _, batch in zip(range(12), loader) for key in batch.sample_keys]
    of_index = sum(not key.startswith("o") for key in seen)
    state, names = _saved(loader, tmp_path / "s"), ["--index", str(index), "--index", str(other)]
    lines = _run(state, *names).splitlines()
    assert lines[0] == "53 samples, 40 draws in an epoch"
    assert lines[1] == "epoch 0: each draw delivered once"
    assert lines[2].split() == ["epoch", "draws", "delivered", "left", "out", "still", "to", "come"]
    assert lines[3].split() == ["1", "20", "0", "20"]
    assert lines[5].split() == [
        str(index),
        "23",
        str(of_index),
        f"{of_index / 60:.2%}",
        f"{of_index / 60:.2%}",
    ]
    assert lines[6].split()[0] == str(other)
    assert _run(state).splitlines()[5].split()[0] == "0"
    rest = Counter(f"{other if key.startswith('o') else index}: {key}" for key in _rest_of(loader, 4))
    assert Counter(json.loads(_run(state, *names, "--json"))["still_to_come"]) == rest
    with pytest.raises(UsageError, match="is given 1 times, the state is of a mixture of 2 sources"):
        _run(state, "--index", str(index))
    with pytest.raises(ResumeMismatch, match="these, in this order, is"):
        _run(state, "--index", str(other), "--index", str(index))


def _rest_of(loader: hx.Loader, steps: int) -> list[str]:
    state = loader.state_dict()
    loader.load_state_dict(state)
    return [key for _, batch in zip(range(steps), loader) for key in batch.sample_keys]


def test_long_lists_are_cut_and_empty_ones_left_out(index: Path, tmp_path: Path) -> None:
    loader = hx.Loader(index, recipe=Drawn(), batching=hx.FixedBatch(1), backend="inline", epochs=2)
    for _ in zip(range(SAMPLES), loader):
        pass
    state = _saved(loader, tmp_path / "s")
    text = _run(state, "--index", str(index))
    assert text.splitlines()[1] == "epoch 0: each sample delivered once"
    assert "left out:" not in text
    listed = text.partition("still to come:\n")[2].splitlines()
    assert len(listed) == 21
    assert listed[-1] == "  ... and 3 more (--json lists all)"
    assert len(json.loads(_run(state, "--index", str(index), "--json"))["still_to_come"]) == SAMPLES


def test_earlier_epochs_say_what_they_left_out(index: Path, tmp_path: Path) -> None:
    loader = hx.Loader(index, recipe=Drawn(), batching=hx.FixedBatch(5), backend="inline", epochs=9)
    for _ in loader:
        pass
    lines = _run(_saved(loader, tmp_path / "s")).splitlines()
    assert lines[1] == "epochs 0 to 4: each sample delivered once, but for 15 left out"


def test_states_of_different_steps_are_refused(index: Path, tmp_path: Path) -> None:
    loader = hx.Loader(index, recipe=Drawn(), batching=hx.FixedBatch(5), backend="inline")
    batches = iter(loader)
    next(batches)
    one = _saved(loader, tmp_path / "a")
    next(batches)
    other = _saved(loader, tmp_path / "b")
    with pytest.raises(ResumeMismatch) as raised:
        _run(one, other)
    assert str(raised.value) == (
        f"{one} is of step 1 of epoch 0, {other} of step 2 of epoch 0: save all ranks at the same step"
    )
    (tmp_path / "c").write_text("[1]")
    for name, said in (("c", "no state of a loader"), ("d", "No such file")):
        with pytest.raises(UsageError, match=said):
            _run(str(tmp_path / name))


def test_states_of_different_jobs_differ_in_words(index: Path, tmp_path: Path) -> None:
    loader = hx.Loader(index, recipe=Drawn(), batching=hx.FixedBatch(5), backend="inline")
    one, state = _saved(loader, tmp_path / "a"), loader.state_dict()
    other = _saved(loader, tmp_path / "b", seed=3, dp_size=2, rest={**state["rest"], "draw": 5})
    with pytest.raises(ResumeMismatch, match="in what is still to come, the seed, the number of ranks: they"):
        _run(one, other)
    assert set(State.__struct_fields__) - {"epoch", "step", "micro"} == _WORDS.keys()
