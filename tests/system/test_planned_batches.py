"""Batches planned from rows: the same from daemon and inline, resumed at any step, with any ranks."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from PIL import Image as Pil

import libhelix as hx
from libhelix.errors import Conflict, Oversize, ResumeMismatch
from libhelix.index.build import build
from tests.system.recipes import Drawn, Shrinking, Tokens

SAMPLES = 60
BATCHINGS: dict[str, Any] = {
    "fixed": hx.FixedBatch(3),
    "fixed regrouped": hx.FixedBatch(3, regroup=4),
    "tokens": hx.TokenBudget(20, max_bytes=1 << 16),
    "tokens per step": hx.TokenBudget(20, max_bytes=1 << 16, per_step=2, regroup=1),
    "packed": hx.Packed(20, max_bytes=1 << 16),
    "buckets": hx.Buckets(16, max_bytes=1 << 16, regroup=4),
}
Backend = Literal["daemon", "inline"]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of small images."""
    folder = tmp_path_factory.mktemp("many")
    for i in range(SAMPLES):
        Pil.new("RGB", (8, 8), (i, 0, 0)).save(folder / f"{i:03d}.png")
    build([folder], folder / "many.arrow")
    return folder / "many.arrow"


def _loader(index: Path, batching: Any, backend: Backend = "inline", **options: Any) -> hx.Loader:
    chosen = {"seed": 3, "name": f"{backend} {time.monotonic()}", **options}
    return hx.Loader(index, recipe=Drawn(), batching=batching, backend=backend, **chosen)


def _of(batch: hx.Batch) -> Any:
    return (batch.epoch, batch.step, batch.micro, batch.ids, batch.num_samples, batch.global_samples)


@pytest.mark.parametrize("end", ["drop", "pad"])
@pytest.mark.parametrize("batching", sorted(BATCHINGS))
def test_daemon_and_inline_give_the_same_batches(many: Path, job: str, batching: str, end: str) -> None:
    for rank in range(2):
        options = {"dp_rank": rank, "dp_size": 2, "micro_batches": 2, "epochs": 2, "end": end}
        with (
            _loader(many, BATCHINGS[batching], "daemon", **options) as served,
            _loader(many, BATCHINGS[batching], "inline", **options) as inline,
        ):
            count = 0
            for a, b in zip(served, inline, strict=True):
                assert _of(a) == _of(b)
                assert (a.costs, a.global_costs, a.sample_keys) == (b.costs, b.global_costs, b.sample_keys)
                assert torch.equal(a.valid, b.valid)
                assert torch.equal(a["draws"], b["draws"])
                assert torch.equal(a["number"][a.valid], torch.tensor(a.ids, dtype=torch.int32)[a.valid])
                count += 1
                assert served.state_dict()["base"] == inline.state_dict()["base"]
                assert served.state_dict()["rest"] == inline.state_dict()["rest"]
            assert count >= 4


@pytest.mark.parametrize("backend", ["inline", "daemon"])
@pytest.mark.parametrize("batching", sorted(BATCHINGS))
def test_a_state_of_any_step_gives_exactly_the_rest(
    many: Path, job: str, batching: str, backend: Backend
) -> None:
    options: dict[str, Any] = {"dp_rank": 0, "dp_size": 2, "epochs": 2}
    with _loader(many, BATCHINGS[batching], **options) as loader:
        states, whole = [loader.state_dict()], []
        for batch in loader:
            whole.append(_of(batch))
            states.append(json.loads(json.dumps(loader.state_dict())))
    rng = random.Random(1)
    points = range(len(whole)) if backend == "inline" else rng.sample(range(len(whole)), 2)
    for taken in points:
        with _loader(many, BATCHINGS[batching], backend, **options) as restored:
            restored.load_state_dict(states[taken])
            assert [_of(b) for b in restored] == whole[taken:]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("batching", sorted(BATCHINGS))
def test_ranks_may_change_at_any_step_and_every_sample_comes_once(
    many: Path, batching: str, seed: int
) -> None:
    rng = random.Random(f"{batching} {seed}")
    kind = hx.TokenBudget(20, max_bytes=1 << 16) if batching == "tokens per step" else BATCHINGS[batching]
    seen: Counter[int] = Counter()
    state: Any = None
    while True:
        size, steps = rng.randint(1, 6), rng.randint(1, 4)
        ranks = [_loader(many, kind, dp_rank=r, dp_size=size, end="pad") for r in range(size)]
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(state)
        iterators = [iter(loader) for loader in ranks]
        for _ in range(steps):
            batches = [next(it, None) for it in iterators]
            assert len({b is None for b in batches}) == 1, "ranks end at different steps"
            if batches[0] is None:
                break
            seen.update(i for b in batches if b is not None for i in b.ids if i >= 0)
        states = [json.loads(json.dumps(loader.state_dict())) for loader in ranks]
        assert all(s == states[0] for s in states)
        state = states[0]
        if state["epoch"] == 1:
            assert seen == Counter(range(SAMPLES))
            return


def test_fillers_complete_the_last_step_and_weigh_nothing(many: Path, job: str) -> None:
    with _loader(many, hx.FixedBatch(8), "daemon", end="pad") as loader:
        assert len(loader) == 8
        for batch in loader:
            last = batch
            del batch
    assert (last.num_samples, last.fillers, last.global_samples) == (4, 4, 4)
    assert [i >= 0 for i in last.ids] == last.valid.tolist()
    assert sorted(last.valid.tolist()) == [False] * 4 + [True] * 4
    assert all((key == "") == (i < 0) for key, i in zip(last.sample_keys, last.ids, strict=True))
    assert last.num_targets == 4


def test_a_token_budget_is_kept_and_nearly_filled(many: Path, job: str) -> None:
    budget = hx.TokenBudget(30, max_bytes=1 << 16)
    with _loader(many, budget, "daemon", epochs=3) as loader:
        tokens = [batch.num_tokens for batch in loader]
    assert max(tokens) <= 30
    assert sorted(tokens)[len(tokens) // 2] >= 28
    with pytest.raises(TypeError, match="helixctl describe"):
        len(loader)


@pytest.mark.parametrize("backend", ["inline", "daemon"])
def test_packs_have_one_shape_and_their_padding_is_a_stretch_of_its_own(
    many: Path, job: str, backend: Backend
) -> None:
    batching = hx.Packed(32, pad_to=32, max_patches=96)
    with hx.Loader(many, recipe=Tokens(), batching=batching, backend=backend) as loader:
        count = 0
        for batch in loader:
            assert batch["ids"].shape == batch["labels"].shape == (32,)
            assert batch["patches"].shape == (2, 96)
            bounds = batch.host["ids_cu_seqlens"]
            assert bounds.dtype == torch.int32
            at = 0
            for sample in batch.ids:
                n = sample % 7 + 1
                assert batch["ids"][at : at + n].tolist() == [sample] * n
                assert batch["labels"][at : at + n].tolist() == list(range(n))
                at += n
                assert at in bounds.tolist()
            assert batch.num_tokens == at
            assert batch["ids"][at:].tolist() == [0] * (32 - at)
            assert batch["labels"][at:].tolist() == [-100] * (32 - at)
            assert (batch["patches"][:, 2 * at :] == 9).all()
            assert bounds[-1] == 32
            assert len(bounds) == len(batch.ids) + 1 + (at < 32)
            count += 1
        assert count >= 7


@pytest.mark.parametrize("backend", ["inline", "daemon"])
def test_a_sample_that_no_batch_can_hold_is_an_error_that_counts(
    many: Path, job: str, backend: Backend
) -> None:
    with (
        _loader(many, hx.TokenBudget(6, max_bytes=1 << 16), backend) as loader,
        pytest.raises(Oversize, match=r"\d+ of \d+ samples .* exceed 6 tokens, .*skip\"") as raised,
    ):
        next(iter(loader))
    number, name = re.search(r"the largest, sample (\d+) \((\S+)\), has 8; ", str(raised.value)).groups()  # type: ignore[union-attr]
    assert name == f"{int(number):03d}.png"


@pytest.mark.parametrize("backend", ["inline", "daemon"])
def test_skipped_samples_are_told_once_in_an_epoch_and_the_first_by_name(
    many: Path, job: str, backend: Backend
) -> None:
    skipping = hx.TokenBudget(6, max_bytes=1 << 16, oversize="skip", regroup=1)
    with (
        _loader(many, skipping, backend, epochs=2) as loader,
        pytest.warns(hx.HelixWarning, match="leaves out samples") as warned,
    ):
        seen = [(batch.epoch, i) for batch in loader for i in batch.ids]
    texts = [text for w in warned if "leaves out samples" in (text := str(w.message))]
    assert len(texts) == 2
    for epoch, text in enumerate(texts):
        said = rf"of epoch {epoch} that .*: \d+ of the next \d+, the first is sample (\d+) \((\S+)\)"
        number, name = re.search(said, text).groups()  # type: ignore[union-attr]
        assert name == f"{int(number):03d}.png"
        assert (epoch, int(number)) not in seen


@pytest.mark.parametrize(
    "batching", [hx.TokenBudget(6, oversize="shrink"), hx.Packed(6, pad_to=6, oversize="shrink")]
)
def test_daemon_and_inline_shrink_the_same_samples_to_the_same_numbers(
    many: Path, job: str, batching: Any
) -> None:
    options: dict[str, Any] = {"recipe": Shrinking(), "batching": batching, "end": "pad", "epochs": 2}
    with (
        hx.Loader(many, backend="daemon", **options) as served,
        hx.Loader(many, backend="inline", **options) as inline,
        hx.Loader(many, backend="inline", **{**options, "batching": hx.TokenBudget(9)}) as larger,
    ):
        whole: dict[tuple[int, int], list[int]] = {}
        for batch in larger:
            bounds = batch.host["x_cu_seqlens"].tolist()
            for i, (a, b) in zip(batch.ids, pairwise(bounds)):
                whole[batch.epoch, i] = batch["x"][a:b].tolist()
        assert {len(numbers) for numbers in whole.values()} == set(range(1, 9))
        seen: Counter[tuple[int, int]] = Counter()
        for a, b in zip(served, inline, strict=True):
            assert _of(a) == _of(b)
            assert a.costs == b.costs
            assert torch.equal(a["x"], b["x"])
            bounds = a.host["x_cu_seqlens"].tolist()
            for i, (begin, end) in zip(a.ids, pairwise(bounds)):
                if i >= 0:
                    assert a["x"][begin:end].tolist() == whole[a.epoch, i][:6]
                    seen[a.epoch, i] += 1
            del a, b
    assert seen == Counter((epoch, i) for epoch in range(2) for i in range(SAMPLES))


@pytest.mark.parametrize("backend", ["inline", "daemon"])
def test_a_sample_that_cannot_shrink_is_an_error_that_says_so(many: Path, job: str, backend: Backend) -> None:
    options: dict[str, Any] = {
        "batching": hx.TokenBudget(1, oversize="shrink", regroup=64),
        "backend": backend,
    }
    with (
        hx.Loader(many, recipe=Shrinking(stiff=tuple(range(0, SAMPLES, 2))), **options) as loader,
        pytest.raises(Oversize, match=r"of 60 .* exceed 1 tokens, .*:Shrinking cannot shrink these"),
    ):
        next(iter(loader))


def test_a_state_of_another_batching_is_refused_or_gone_on_with(many: Path) -> None:
    loader = _loader(many, hx.TokenBudget(20), end="pad")
    batches = iter(loader)
    seen = Counter(i for _ in range(3) for i in next(batches).ids if i >= 0)
    state = loader.state_dict()
    other = _loader(many, hx.TokenBudget(40), end="pad")
    with pytest.raises(ResumeMismatch, match=r"batching\.tokens 20 -> 40.*strict=False"):
        other.load_state_dict(state)
    other.load_state_dict(state, strict=False)
    seen.update(i for b in other for i in b.ids if i >= 0)
    assert seen == Counter(range(SAMPLES))


def test_a_state_of_inside_a_step_wants_the_same_ranks(many: Path) -> None:
    loader = _loader(many, hx.FixedBatch(2), micro_batches=3)
    next(iter(loader))
    with pytest.raises(ResumeMismatch, match="saved inside a step"):
        _loader(many, hx.FixedBatch(2), micro_batches=3, dp_rank=0, dp_size=2).load_state_dict(
            loader.state_dict()
        )


def test_ranks_restored_from_different_states_are_told_so(many: Path, job: str) -> None:
    saving = _loader(many, hx.FixedBatch(2, regroup=4), dp_rank=0, dp_size=2)
    batches = iter(saving)
    next(batches)
    state = saving.state_dict()
    name = "train"
    one = _loader(many, hx.FixedBatch(2, regroup=4), "daemon", dp_rank=0, dp_size=2, name=name)
    other = _loader(many, hx.FixedBatch(2, regroup=4), "daemon", dp_rank=1, dp_size=2, name=name)
    with one, other:
        one.load_state_dict({**state, "base": state["rest"]})
        next(iter(one))
        other.load_state_dict(state)
        with pytest.raises(Conflict, match="restored from states that differ"):
            next(iter(other))
