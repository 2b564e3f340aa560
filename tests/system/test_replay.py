"""A batch of the past, from a state: the same samples, and the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import libhelix as hx
from libhelix.ctl.main import cli
from libhelix.errors import ResumeMismatch, UsageError
from libhelix.replaying import content
from tests.system.datasets import Pairs, padded
from tests.system.recipes import Drawn, Picky, Plain, Tokens

RUNS: dict[str, dict[str, Any]] = {
    "fixed": {"recipe": Drawn(), "batching": hx.FixedBatch(1), "dp_size": 2, "micro_batches": 2},
    "regrouped": {"recipe": Drawn(), "batching": hx.FixedBatch(1, regroup=2), "dp_size": 2},
    "by tokens": {"recipe": Tokens(), "batching": hx.TokenBudget(9), "dp_size": 1, "end": "pad"},
    "packed": {"recipe": Tokens(), "batching": hx.Packed(12), "dp_size": 2, "end": "pad"},
    "as they lie": {"recipe": Drawn(), "batching": hx.FixedBatch(3), "shuffle": False, "end": "pad"},
    "replaced": {"recipe": Picky(not_filled=("b.mp4",)), "batching": hx.FixedBatch(2), "on_bad": "replace"},
}


def _tensors(batch: Any) -> list[bytes]:
    values = [v for value in batch.values() for v in (value if isinstance(value, list) else [value])]
    return [content(v) for v in values]


def _at(batch: hx.Batch) -> dict[str, Any]:
    return {"epoch": batch.epoch, "step": batch.step, "micro": batch.micro}


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.filterwarnings("ignore::libhelix.loader.HelixWarning")
def test_every_batch_of_every_rank_is_rebuilt_from_any_state(index: Path, kind: str) -> None:
    run = {"dp_size": 1, "seed": 5, **RUNS[kind]}
    ranks = range(run["dp_size"])
    loaders = [hx.Loader(index, dp_rank=r, epochs=2, backend="inline", job="a", **run) for r in ranks]
    delivered: list[tuple[int, hx.Batch]] = []
    states = []
    for batches in zip(*loaders):
        delivered += enumerate(batches)
        states.append(loaders[0].state_dict())
    on_bad = run.get("on_bad", "mask")
    for state in (states[0], states[len(states) // 2], states[-1]):
        for rank, batch in delivered:
            again = hx.replay(json.loads(json.dumps(state)), index, rank=rank, on_bad=on_bad, **_at(batch))
            assert again.ids == batch.ids
            assert again.valid.tolist() == batch.valid.tolist()
            assert _tensors(again) == _tensors(batch)


def test_a_batch_that_a_daemon_delivered_is_rebuilt_bit_by_bit(index: Path, clips: Path, job: str) -> None:
    with hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2), ring=9) as loader:
        batches = list(loader)
        state = loader.state_dict()
    again = hx.replay(state, index, **_at(batches[2]))
    assert again.sample_keys == batches[2].sample_keys
    assert again.sample_sources == tuple(str(clips / key) for key in again.sample_keys)
    assert torch.equal(again["video"], batches[2]["video"])


def test_a_mixture_whose_weights_were_set_is_rebuilt(clips: Path) -> None:
    sources = [clips / "a.mp4", clips / "b.mp4", clips / "g.mp4"]
    mixture = hx.Mixture(dict(zip(sources, (1, 2, 0))), epoch_samples=40)
    loader = hx.Loader(
        mixture, recipe=Drawn(), batching=hx.FixedBatch(4), backend="inline", dp_rank=0, dp_size=1
    )
    batches = []
    for batch in loader:
        batches.append(batch)
        if batch.step == 3:
            loader.set_weights({sources[2]: 1})
    for batch in batches:
        again = hx.replay(loader.state_dict(), [*map(str, sources)], **_at(batch))
        assert again.ids == batch.ids
        assert _tensors(again) == _tensors(batch)
    with pytest.raises(UsageError, match="a mixture of 3 sources, 1 are given"):
        hx.replay(loader.state_dict(), sources[0], step=0)


@pytest.mark.parametrize("collate", [None, padded])
def test_a_pytorch_dataset_needs_no_source(collate: Any) -> None:
    kind = "drawn" if collate is None else "ragged"
    loader = hx.Loader.from_torch(Pairs(kind=kind), 2, True, collate_fn=collate, backend="inline")
    batches = [batch if collate is None else batch.ids for batch in loader]
    again = hx.replay(loader.state_dict(), epoch=0, step=1)
    if collate is None:
        assert torch.equal(again["sample"], batches[1])
    else:
        assert torch.equal(again["batch"].ids, batches[1])


def test_what_does_not_follow_from_a_state_is_refused(index: Path, clips: Path) -> None:
    def loader(samples: int, ranks: int) -> hx.Loader:
        batching = hx.FixedBatch(samples)
        return hx.Loader(
            index, recipe=Drawn(), batching=batching, backend="inline", dp_rank=0, dp_size=ranks, job="a"
        )

    one = loader(2, 1)
    next(iter(one))
    state = one.state_dict()
    other = loader(1, 1)
    other.load_state_dict(state, strict=False)
    next(iter(other))
    changed = other.state_dict()
    refused: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (state, {"step": 4}, "epoch 0 has no step 4"),
        (state, {"step": 0, "rank": 1}, "the state is of 1 ranks with 1 micro-batches"),
        (changed, {"step": 0}, "was begun with other ranks or settings"),
    ]
    for saved, what, text in refused:
        with pytest.raises(UsageError, match=text):
            hx.replay(saved, index, **what)
    with pytest.raises(UsageError, match="give the loader's source"):
        hx.replay(state, step=0)
    with pytest.raises(ResumeMismatch, match="index"):
        hx.replay(state, [clips / "a.mp4", clips / "b.mp4"], step=0)
    third = loader(1, 1)
    third.load_state_dict(changed)
    assert hx.replay(changed, index, step=third.state_dict()["step"]).ids == next(iter(third)).ids


def test_helixctl_says_what_is_in_a_batch_and_writes_it(index: Path, tmp_path: Path) -> None:
    loader = hx.Loader(
        index, recipe=Drawn(), batching=hx.FixedBatch(2), backend="inline", dp_rank=0, dp_size=1
    )
    first, second, *_ = loader
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    args = ["replay", str(tmp_path / "state.json"), str(index), "--epoch", "0", "--step", "1"]
    done = CliRunner().invoke(cli, [*args, "-o", str(tmp_path / "batch.pt")], standalone_mode=False)
    assert done.exception is None
    assert "epoch 0, step 1, micro-batch 0, rank 0" in done.stdout
    assert all(key in done.stdout for key in second.sample_keys)
    saved = torch.load(tmp_path / "batch.pt")
    assert saved["ids"] == second.ids != first.ids
    assert _tensors(saved["fields"]) == _tensors(second)
    told = json.loads(CliRunner().invoke(cli, [*args, "--json"], standalone_mode=False).stdout)
    assert [sample["key"] for sample in told["samples"]] == list(second.sample_keys)
    assert {field["name"]: field["dtype"] for field in told["fields"]}["half"] == "bfloat16"
    bad = CliRunner().invoke(cli, ["replay", str(index), str(index), "--step", "1"], standalone_mode=False)
    assert isinstance(bad.exception, UsageError)
    assert "no state saved as JSON" in str(bad.exception)
