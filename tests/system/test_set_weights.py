"""Weights that change while training: the same from daemon and inline, and after any restore."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pil

import libhelix as hx
from libhelix.errors import Conflict, ResumeMismatch, UsageError
from libhelix.index.build import build
from libhelix.plan.coverage import coverage
from libhelix.plan.mixture import Mixture
from libhelix.plan.state import decoded
from tests.system.processes import Trainer, of_job
from tests.system.recipes import Drawn, Tokens

SIZES = {"cats": 20, "dogs": 7, "owls": 3}
MADE = {"cats": 5.0, "dogs": 3.0, "owls": 2.0}
OWLS = {"cats": 0.0, "dogs": 0.0, "owls": 1.0}
BATCHINGS: dict[str, Any] = {
    "fixed": hx.FixedBatch(2),
    "fixed regrouped": hx.FixedBatch(2, regroup=3),
    "tokens": hx.TokenBudget(20, regroup=3, max_bytes=1 << 16),
    "buckets": hx.Buckets(16, regroup=2, max_bytes=1 << 16),
}
EPOCHS, EPOCH = 3, 80


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three indexes."""
    found = {}
    for name, n in SIZES.items():
        folder = tmp_path_factory.mktemp("sources") / name
        folder.mkdir()
        for i in range(n):
            Pil.new("RGB", (8, 8), (i, 0, 0)).save(folder / f"{name}{i:02d}.png")
        build([folder], folder / "index.arrow")
        found[name] = folder / "index.arrow"
    return found


def _weights(sources: dict[str, Path], weights: dict[str, float]) -> dict[str | Path, float]:
    return {sources[name]: weight for name, weight in weights.items()}


def _loader(sources: dict[str, Path], schedule: Any = (), **options: Any) -> hx.Loader:
    chosen: dict[str, Any] = {"batching": hx.FixedBatch(2), "epochs": EPOCHS, "seed": 5, **options}
    chosen = {"backend": "inline", "recipe": Tokens(), "dp_rank": 0, "dp_size": 1, **chosen}
    schedule = {first: _weights(sources, weights) for first, weights in dict(schedule).items()}
    mixture = hx.Mixture(_weights(sources, MADE), chosen.pop("epoch_samples", EPOCH), schedule)
    return hx.Loader(mixture, **chosen)


def _schedule(state: dict[str, Any]) -> dict[int, dict[str, float]]:
    """What a state says is in force, as a mixture would be made with it."""
    in_force = decoded(state).weights.in_force
    return {segment.first: dict(zip(SIZES, segment.weights, strict=True)) for segment in in_force}


def _of(batch: hx.Batch) -> Any:
    return (batch.epoch, batch.step, batch.micro, batch.ids, batch.global_costs)


def _saved(loader: hx.Loader) -> Any:
    return json.loads(json.dumps(loader.state_dict()))


def _some(rng: random.Random) -> dict[str, float]:
    return {"cats": rng.randrange(5), "dogs": rng.randrange(5), "owls": 1}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("batching", sorted(BATCHINGS))
def test_a_history_of_changes_and_restores_equals_one_go_with_its_schedule(
    sources: dict[str, Path], batching: str, seed: int
) -> None:
    rng = random.Random(f"{batching} {seed}")
    options = {"batching": BATCHINGS[batching], "dp_size": 2, "micro_batches": 1 + seed % 2}
    loader = _loader(sources, **options)
    if seed >= 2:
        loader.set_weights(_weights(sources, _some(rng)))
    batches, seen, state = iter(loader), [], _saved(loader)
    while (batch := next(batches, None)) is not None:
        seen.append(_of(batch))
        if rng.random() < 0.3:
            loader.set_weights(_weights(sources, _some(rng)))
        state = _saved(loader)
        if state["epoch"] < EPOCHS and rng.random() < 0.3:
            loader = _loader(sources, **options)
            loader.load_state_dict(state)
            assert _saved(loader) == state
            if state["rest"] is not None and rng.random() < 0.5:
                loader.set_weights(_weights(sources, _some(rng)))
            batches = iter(loader)
    assert len(state["journal"]) > 2
    assert seen == [_of(b) for b in _loader(sources, _schedule(state), **options)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("batching", sorted(BATCHINGS))
def test_with_ranks_that_change_every_draw_of_the_schedule_comes_once(
    sources: dict[str, Path], batching: str, seed: int
) -> None:
    rng = random.Random(f"{batching} {seed}")
    seen: Counter[int] = Counter()
    state: Any = None
    while state is None or state["epoch"] < EPOCHS:
        size = rng.randint(1, 4)
        options: dict[str, Any] = {"batching": BATCHINGS[batching], "dp_size": size, "end": "pad"}
        ranks = [_loader(sources, **options | {"dp_rank": r}) for r in range(size)]
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(state)
        iterators = [iter(loader) for loader in ranks]
        for _ in range(rng.randint(0, 4)):
            if rng.random() < 0.4:
                weights = _weights(sources, _some(rng))
                for loader in ranks:
                    loader.set_weights(weights)
            batches = [next(it, None) for it in iterators]
            seen.update(i for b in batches if b is not None for i in b.ids if i >= 0)
        states = [_saved(loader) for loader in ranks]
        assert all(s == states[0] for s in states)
        state = states[0]
    order = Mixture(tuple(SIZES.values()), decoded(state).weights.in_force, 5, epoch_draws=EPOCH)
    drawn = [order.draws(epoch, np.arange(EPOCH))[0].tolist() for epoch in range(EPOCHS)]
    assert len(order.schedule) > 2
    assert seen == Counter(i for ids in drawn for i in ids)


def test_every_change_gives_each_source_its_share_from_there_on(sources: dict[str, Path]) -> None:
    loader = _loader(sources, batching=hx.FixedBatch(1), epochs=None)
    batches = iter(loader)
    for weights in (
        MADE,
        {"cats": 1.0, "dogs": 1.0, "owls": 1.0},
        {"cats": 9.0, "dogs": 1.0, "owls": 0.0},
        OWLS,
    ):
        loader.set_weights(_weights(sources, weights))
        counts: Counter[str] = Counter()
        for n in range(1, 41):
            counts[next(batches).sample_keys[0][:4]] += 1
            for name, weight in weights.items():
                assert abs(counts[name] - n * weight / sum(weights.values())) < 1


@pytest.mark.parametrize(
    ("options", "taken", "left"),
    [
        ({"batching": hx.FixedBatch(2)}, 4, 0),
        ({"batching": hx.FixedBatch(2), "micro_batches": 3}, 4, 2),
        ({"batching": hx.FixedBatch(2, regroup=4)}, 4, 0),
        ({"batching": hx.FixedBatch(2, regroup=4)}, 6, 2),
    ],
)
def test_what_is_left_of_the_window_comes_as_it_was_planned(
    sources: dict[str, Path], options: Any, taken: int, left: int
) -> None:
    loader, unchanged = _loader(sources, **options), iter(_loader(sources, **options))
    batches = iter(loader)
    for _ in range(taken):
        assert next(batches).ids == next(unchanged).ids
    loader.set_weights(_weights(sources, OWLS))
    for _ in range(left):
        assert next(batches).ids == next(unchanged).ids
    assert {key[:4] for _ in range(3) for key in next(batches).sample_keys} == {"owls"}


def test_later_entries_of_the_schedule_stay(sources: dict[str, Path]) -> None:
    cats = {"cats": 1.0, "dogs": 0.0, "owls": 0.0}
    loader = _loader(sources, {20: cats}, batching=hx.FixedBatch(1), epochs=None)
    batches = iter(loader)
    names = []
    for _ in range(40):
        names.append(next(batches).sample_keys[0][:4])
        if len(names) == 8:
            loader.set_weights(_weights(sources, OWLS))
    assert names[8:] == ["owls"] * 12 + ["cats"] * 20


def test_a_state_brings_its_weights_to_a_loader_that_has_others(sources: dict[str, Path]) -> None:
    loader = _loader(sources, epochs=None)
    batches = iter(loader)
    next(batches)
    before = loader.state_dict()
    loader.set_weights(_weights(sources, OWLS))
    owls = loader.state_dict()
    expected = [next(batches).ids for _ in range(20)]
    for state, same in ((before, False), (owls, True)):
        loader.load_state_dict(state)
        batches = iter(loader)
        assert ([next(batches).ids for _ in range(20)] == expected) == same
    del before["journal"]  # as an earlier version saved it
    loader.load_state_dict(before)
    assert _saved(loader)["journal"] == []
    with pytest.raises(ResumeMismatch, match="weights"):
        _loader(sources, {9: OWLS}).load_state_dict(owls)
    damaged = {**owls, "journal": [[4, [1.0]]]}
    with pytest.raises(UsageError, match="1 entries for 3 sources"):
        _loader(sources).load_state_dict(damaged)


def test_the_account_follows_the_weights(sources: dict[str, Path]) -> None:
    loader = _loader(sources, epochs=None)
    batches, seen = iter(loader), Counter[str]()
    for n in range(40):
        seen.update(key[:4] for key in next(batches).sample_keys)
        if n == 20:
            loader.set_weights(_weights(sources, OWLS))
    assert [s.delivered for s in coverage(decoded(loader.state_dict())).sources] == [
        seen[name] for name in SIZES
    ]


def test_weights_that_mean_nothing_change_nothing(sources: dict[str, Path]) -> None:
    loader = _loader(sources)
    next(iter(loader))
    state = loader.state_dict()
    wrong: tuple[tuple[Mapping[str | Path, float], str], ...] = (
        ({"x.arrow": 1.0}, "set_weights names x.arrow, which the weights do not"),
        ({sources["cats"]: -1.0}, r"set_weights\[0\] = -1.0 is negative"),
        ({sources["cats"]: 0.0}, "set_weights sum to 0"),
        ({}, "set_weights sum to 0"),
        ({sources["dogs"]: float("nan")}, "not a number to weigh by"),
    )
    for weights, said in wrong:
        with pytest.raises(UsageError, match=said):
            loader.set_weights(weights)
    loader.set_weights(_weights(sources, MADE))
    assert loader.state_dict() == state
    loader.close()
    with pytest.raises(UsageError, match="is closed"):
        loader.set_weights(_weights(sources, OWLS))
    alone = hx.Loader(sources["cats"], recipe=Tokens(), batching=hx.FixedBatch(1), backend="inline")
    with pytest.raises(UsageError, match=r"no sources to weigh; make it with hx\.Mixture"):
        alone.set_weights({sources["cats"]: 1.0})


def test_a_state_of_inside_a_step_wants_a_batch_first(sources: dict[str, Path]) -> None:
    options: dict[str, Any] = {"micro_batches": 2, "batching": hx.TokenBudget(20, max_bytes=1 << 16)}
    loader = _loader(sources, **options)
    next(iter(loader))
    restored = _loader(sources, **options)
    restored.load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match="take a batch first"):
        restored.set_weights(_weights(sources, OWLS))
    next(iter(restored))
    restored.set_weights(_weights(sources, OWLS))


# ---- real processes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("regroup", [1, 3])
def test_ranks_that_change_weights_in_one_step_go_on_as_inline_does(
    sources: dict[str, Path], job: str, regroup: int
) -> None:
    def named(weights: dict[str, float]) -> dict[str, float]:
        return {str(source): weight for source, weight in _weights(sources, weights).items()}

    even = {"cats": 1.0, "dogs": 1.0, "owls": 1.0}
    changes = {"1": OWLS, "2": even, "4": MADE}
    trainers = [
        Trainer(
            sources["cats"],
            job,
            recipe="Tokens",
            mixture=named(MADE),
            set_weights={step: named(weights) for step, weights in changes.items()},
            samples=2,
            regroup=regroup,
            seed=5,
            dp_rank=rank,
            dp_size=2,
            step_by_step=True,
        )
        for rank in range(2)
    ]
    got: list[list[Any]] = [[], []]
    steps = 7
    for _ in range(steps):
        for trainer, batches in zip(trainers, got, strict=True):
            batches.append(trainer.event("batch")["keys"])
        for trainer in trainers:
            trainer.go()
    for trainer in trainers:
        assert trainer.finish()[0][-1]["warnings"] == []
    for rank, batches in enumerate(got):
        options = {"batching": hx.FixedBatch(2, regroup=regroup), "dp_rank": rank, "dp_size": 2, "epochs": 1}
        options["epoch_samples"] = None
        loader = _loader(sources, **options)
        for batch, keys in zip(loader, batches, strict=True):
            assert list(batch.sample_keys) == keys
            if (weights := changes.get(str(batch.step))) is not None:
                loader.set_weights(_weights(sources, weights))
        if regroup == 1:
            assert {key[:4] for key in batches[2]} == {"owls"}


def test_a_served_loader_keeps_its_batches_and_goes_back_to_the_weights_of_a_state(
    sources: dict[str, Path], job: str
) -> None:
    options: dict[str, Any] = {
        "recipe": Drawn(),
        "batching": hx.TokenBudget(20, regroup=3, max_bytes=1 << 16),
        "micro_batches": 2,
    }
    with _loader(sources, **options, backend="daemon") as served, _loader(sources, **options) as inline:
        got, daemons = [], set()
        for loader in (served, inline):
            batches = iter(loader)
            held = next(batches)
            daemons.update(of_job(job, "helixd"))
            numbers = held["draws"].clone()
            state = loader.state_dict()
            found = [held.ids]
            for weights in (OWLS, MADE, OWLS):
                loader.set_weights(_weights(sources, MADE))
                loader.set_weights(_weights(sources, weights))
                found += [next(batches).ids for _ in range(3)]
            assert (held["draws"] == numbers).all()
            loader.load_state_dict(state)
            got.append([*found, *(b.ids for b in loader)])
            daemons.update(of_job(job, "helixd"))
    assert got[0] == got[1]
    assert len(daemons) == 1


def test_ranks_that_set_other_weights_are_told_which(sources: dict[str, Path], job: str) -> None:
    ranks = [_loader(sources, dp_rank=r, dp_size=2, backend="daemon", name="train") for r in range(2)]
    iterators = [iter(loader) for loader in ranks]
    for batches in iterators:
        next(batches)
    for loader, weights in zip(ranks, (OWLS, {"cats": 1.0}), strict=True):
        loader.set_weights(_weights(sources, weights))
    next(iterators[0])
    for batches in reversed(iterators):
        with pytest.raises(
            Conflict,
            match=r"rank 1 has other settings .*: weights from draw 4 on "
            r"\(0.0, 0.0, 1.0\) there, \(1.0, 0.0, 0.0\) here",
        ):
            next(batches)
    for loader in ranks:
        loader.close()
