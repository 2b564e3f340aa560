"""Inline and daemon give the same; a state gives exactly the rest, across both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import libhelix as hx
from libhelix.errors import ResumeMismatch, TooManyBadSamples, UsageError
from libhelix.index.build import build
from tests.clips import make_clip
from tests.system import recipes
from tests.system.recipes import Drawn, Plain, Split

Backend = Literal["daemon", "inline"]
RECIPES: dict[str, hx.Recipe] = {
    "stack": Split(frames=9, size=(40, 72), order="TCHW"),
    "pad": Split(rate=5.0, size=(40, 72), layout="pad"),
    "pack": hx.recipes.Clip(rate=5.0, size=(40, 72), layout="pack"),
    "ragged": Split(rate=5.0, size=(40, 72), layout="ragged"),
    "bounded": Drawn(),
}


def _flat(batch: hx.Batch) -> list[torch.Tensor]:
    found: list[torch.Tensor] = [batch.valid]
    for _, value in sorted(batch.items()):
        found += value if isinstance(value, list) else [value]
    return [t.clone() for t in (*found, *(v for _, v in sorted(batch.host.items())))]


def _told(batch: hx.Batch) -> Any:
    attributes = dict(batch.__dict__)
    for name in ("valid", "host", "_sample_of", "_samples"):  # compared as tensors, or by their values
        attributes.pop(name, None)
    return batch.sample_keys, sorted(batch), attributes


def _same(a: hx.Batch, b: hx.Batch) -> None:
    assert _told(a) == _told(b)
    for x, y in zip(_flat(a), _flat(b), strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x, y)


@pytest.mark.parametrize("layout", sorted(RECIPES))
def test_inline_and_daemon_give_the_same_batches_in_the_same_order(
    index: Path, job: str, layout: str
) -> None:
    def loader(backend: Backend) -> hx.Loader:
        return hx.Loader(
            index, recipe=RECIPES[layout], batching=hx.FixedBatch(3), seed=9, epochs=2, backend=backend
        )

    with loader("daemon") as served, loader("inline") as inline:
        count = 0
        for a, b in zip(served, inline, strict=True):
            _same(a, b)
            count += 1
        assert count == len(served) == len(inline) == 4


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_they_agree_on_every_rank_and_micro_batch(index: Path, job: str, ranks: int) -> None:
    for rank in range(ranks):

        def loader(backend: Backend, rank: int = rank) -> hx.Loader:
            return hx.Loader(
                index,
                recipe=Plain(),
                batching=hx.FixedBatch(1),
                micro_batches=2,
                dp_rank=rank,
                dp_size=ranks,
                backend=backend,
                name=f"rank {rank}",
            )

        with loader("daemon") as served, loader("inline") as inline:
            for a, b in zip(served, inline, strict=True):
                _same(a, b)


def _loader(index: Path, backend: Backend, **options: Any) -> hx.Loader:
    chosen: dict[str, Any] = {
        "recipe": Plain(),
        "batching": hx.FixedBatch(2),
        "seed": 4,
        "epochs": 2,
        **options,
    }
    return hx.Loader(index, backend=backend, name=f"{backend}-{id(options)}", **chosen)


def _ids(batches: Iterator[hx.Batch] | hx.Loader) -> list[Any]:
    return [(b.epoch, b.step, b.ids) for b in batches]


@pytest.mark.parametrize("saver", ["daemon", "inline"])
@pytest.mark.parametrize("restorer", ["daemon", "inline"])
def test_a_state_of_any_step_gives_exactly_the_rest(
    index: Path, job: str, saver: Backend, restorer: Backend
) -> None:
    whole = _ids(_loader(index, "inline"))
    assert len(whole) == 8
    with _loader(index, saver) as saving:
        states = [json.loads(json.dumps(saving.state_dict()))]
        states += [json.loads(json.dumps(saving.state_dict())) for _ in saving]
    for taken, state in enumerate(states[:-1]):
        with _loader(index, restorer) as restored:
            restored.load_state_dict(state)
            assert _ids(restored) == whole[taken:]
    with _loader(index, restorer) as restored:
        restored.load_state_dict(states[-1])
        assert [e for e, _, _ in _ids(restored)] == [2] * 4 + [3] * 4  # that iteration was over


def test_a_state_belongs_to_what_was_delivered_not_to_what_was_decoded_ahead(index: Path, job: str) -> None:
    with _loader(index, "daemon") as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        assert (state["epoch"], state["step"], state["micro"]) == (0, 1, 0)
        assert len(json.dumps(state)) < 2000


def test_restoring_in_the_middle_of_an_iteration_goes_back(index: Path, job: str) -> None:
    with _loader(index, "daemon") as loader:
        batches = iter(loader)
        first = [next(batches).ids for _ in range(3)]
        state = loader.state_dict()
        rest = _ids(batches)
        loader.load_state_dict(state)
        assert _ids(loader) == rest
        loader.load_state_dict(state)
        loader.set_epoch(0)  # as trainers do at the start of the epoch they resume in
        assert _ids(loader) == rest
        loader.load_state_dict(state)
        loader.set_epoch(0)
        loader.set_epoch(1)
        loader.set_epoch(0)
        assert [ids for _, _, ids in _ids(loader)][:3] == first


def test_an_iterator_of_before_a_restore_is_over(index: Path) -> None:
    loader = _loader(index, "inline")
    batches = iter(loader)
    next(batches)
    loader.load_state_dict(loader.state_dict())
    for _ in range(2):
        with pytest.raises(UsageError, match=r"restored meanwhile.* over; take a new one: iter\(loader\)"):
            next(batches)
    assert next(iter(loader)).step == 1


def test_a_state_goes_on_with_another_number_of_ranks_if_steps_stay_the_same(index: Path) -> None:
    def ids(rank: int, size: int, state: Any = None) -> list[tuple[int, ...]]:
        loader = hx.Loader(
            index,
            recipe=Plain(),
            batching=hx.FixedBatch(4 // size),
            dp_rank=rank,
            dp_size=size,
            backend="inline",
            job="j",
        )
        if state is not None:
            loader.load_state_dict(state)
        return [b.ids for b in loader]

    loader = hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(4), backend="inline")
    next(iter(loader))
    rest = [set(x) for x in ids(0, 1)][1:]
    halves = [ids(rank, 2, loader.state_dict()) for rank in range(2)]
    assert [set(a) | set(b) for a, b in zip(*halves, strict=True)] == rest


def test_a_state_of_other_data_or_settings_is_refused_with_the_difference(
    index: Path, tmp_path: Path
) -> None:
    state = _loader(index, "inline").state_dict()
    for options, text in (
        ({"seed": 5}, "seed 4 -> 5"),
        ({"batching": hx.FixedBatch(1)}, r"batching\.samples 2 -> 1"),
        ({"shuffle": False}, "shuffle True -> False"),
        ({"recipe": Plain(size=(32, 32))}, r"recipe\.size \[48, 64\] -> \[32, 32\]: .* strict=False"),
        ({"recipe": Drawn()}, "recipe tests.system.recipes:Plain -> tests.system.recipes:Drawn"),
    ):
        with pytest.raises(ResumeMismatch, match=text):
            _loader(index, "inline", **options).load_state_dict(state)
    _loader(index, "inline", recipe=Drawn()).load_state_dict(state, strict=False)
    make_clip(tmp_path / "x.mp4", 10)
    make_clip(tmp_path / "y.mp4", 10)
    build([tmp_path], tmp_path / "other.arrow")
    with pytest.raises(ResumeMismatch, match=r"index .* samples 8 -> 2"):
        _loader(tmp_path / "other.arrow", "inline").load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"format": 99}, ResumeMismatch, "format 99, this version reads 3; update datahelix"),
        ({"format": 2}, ResumeMismatch, "restore it with the version that saved it"),
        ({"format": None}, UsageError, "no state of a loader"),
        ({"step": -1}, UsageError, "the state is damaged"),
        ({"step": 10**6}, UsageError, "no step 1000000 in epoch 0"),
    ],
)
def test_what_is_no_state_is_refused(
    index: Path, change: dict[str, Any], error: type[Exception], text: str
) -> None:
    loader = _loader(index, "inline")
    with pytest.raises(error, match=text):
        loader.load_state_dict({**loader.state_dict(), **change})


def test_inline_needs_no_importable_recipe(index: Path) -> None:
    class Local(Plain, frozen=True):
        pass

    loader = hx.Loader(index, recipe=Local(), batching=hx.FixedBatch(4), backend="inline")
    assert len(list(loader)) == 2


def test_inline_masks_and_refuses_as_the_daemon_does(tmp_path: Path, job: str) -> None:
    for i in range(6):
        make_clip(tmp_path / f"{i}.mp4", 20, size=(64, 96))
    build([tmp_path], tmp_path / "x.arrow")
    (tmp_path / "4.mp4").write_bytes(b"no longer a video")

    def loader(backend: Backend) -> hx.Loader:
        return hx.Loader(tmp_path / "x.arrow", recipe=Plain(), batching=hx.FixedBatch(3), backend=backend)

    with loader("daemon") as served, loader("inline") as inline:
        for made in (served, inline):
            with pytest.warns(UserWarning, match=r"4\.mp4: changed since it was indexed"):
                assert sorted(v for b in made for v in b.valid.tolist()) == [False] + [True] * 5
    with (
        pytest.warns(UserWarning, match="a sample is masked"),
        pytest.raises(TooManyBadSamples, match="BadFill raised ZeroDivisionError"),
    ):
        list(
            hx.Loader(
                tmp_path / "x.arrow", recipe=recipes.BadFill(), batching=hx.FixedBatch(6), backend="inline"
            )
        )


def test_a_killed_trainer_resumes_from_its_state_with_exactly_the_rest(index: Path, job: str) -> None:
    whole = _ids(_loader(index, "inline"))
    with _loader(index, "daemon") as loader:
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        state = loader.state_dict()
    with _loader(index, "daemon") as loader:
        loader.load_state_dict(state)
        got = _ids(loader)
    assert got == whole[5:]
    assert all(a < b for a, b in pairwise([(e, s) for e, s, _ in got]))
