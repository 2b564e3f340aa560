"""Finished samples change ranks over gloo: real processes, every layout, the same samples bit for bit."""

from __future__ import annotations

import copy
import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import libhelix as hx
from bench.child import leave_group
from libhelix.errors import MediaError, UsageError
from libhelix.index.numbered import numbered
from libhelix.rebalancing import _through

RANKS = 3
SAMPLES = 50


class Heard(hx.Recipe, frozen=True):
    """Sample i turns out to have many words or few; all layouts are there. Every 11th cannot be decoded."""

    def describe(self, sample: hx.Sample, rng: hx.Rng) -> hx.Descriptor:
        n = 1 + sample.id % 4
        return hx.Descriptor(
            (
                hx.Field("words", "int64", (40,), hx.Ragged(), bounded=True),
                hx.Field("sound", "bfloat16", (n, 3), hx.Ragged()),
                hx.Field("number", "int32", ()),
                hx.Field("small", "uint16", (3,)),
                hx.Field("flags", "bool", (2, 1)),
                hx.Field("caption", "uint8", (6,), hx.Pad(1), bounded=True),
                hx.Field("ids", "int64", (n,), hx.Pack(counts="tokens", value=-7)),
                hx.Field("patches", "uint8", (3, 2 * n), hx.Pack(axis=1, counts="patches", value=9)),
            ),
            costs={"tokens": n, "patches": 2 * n, "targets": 1},
        )

    def fill(
        self, sample: hx.Sample, desc: hx.Descriptor, part: hx.Part, out: Mapping[str, np.ndarray]
    ) -> Mapping[str, tuple[int, ...]]:
        if sample.id % 11 == 3:
            raise MediaError(f"sample {sample.id} is broken")
        draws = np.random.default_rng(sample.id)
        for field in out.values():
            field[...] = (
                draws.integers(0, 2, field.shape)
                if field.dtype == bool
                else draws.integers(0, 200, field.shape)
            )
        return {"words": (words(sample.id),), "caption": (1 + sample.id % 6,)}


def words(sample: int) -> int:
    return 40 if sample % 5 == 0 else 1 + sample % 3


class Padded(hx.Recipe, frozen=True):
    """Pictures that are padded to the largest of their batch."""

    def describe(self, sample: hx.Sample, rng: hx.Rng) -> hx.Descriptor:
        return hx.Descriptor(
            (hx.Field("picture", "uint8", (1 + sample.id, 2), hx.Pad()),), costs={"tokens": 1}
        )

    def fill(self, sample: Any, desc: Any, part: Any, out: Mapping[str, np.ndarray]) -> None:
        out["picture"][...] = 1


OPTIONS: dict[str, dict[str, Any]] = {
    "fixed": {"batching": hx.FixedBatch(4)},
    "fillers": {"batching": hx.FixedBatch(4, per_step=8), "end": "pad"},
    "micro-batches": {"batching": hx.FixedBatch(3), "micro_batches": 2},
    "budget": {"batching": hx.TokenBudget(12, regroup=2)},
    "padded": {"batching": hx.Packed(16, pad_to=4, max_patches=40)},
    "one length": {"batching": hx.Packed(16, pad_to=16, max_patches=32)},
}


def _loader(rank: int, ranks: int = RANKS, recipe: hx.Recipe | None = None, **options: Any) -> hx.Loader:
    return hx.Loader(
        numbered(SAMPLES, "rebalance", "sample"),
        recipe=recipe or Heard(),
        dp_rank=rank,
        dp_size=ranks,
        backend="inline",
        bad_budget=hx.BadBudget(count=100),
        **options,
    )


def _crc(tensor: torch.Tensor) -> int:
    return zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def _tensors_of(batch: hx.Batch, i: int) -> dict[str, torch.Tensor]:
    """What sample i has, found by what a trainer sees of a batch."""
    found = {}
    for name, value in batch.items():
        bounds = batch.host.get(f"{name}_cu_seqlens")
        if bounds is None:
            found[name] = value[i]
        else:
            begin, end = bounds[i : i + 2].tolist()
            found[name] = value.narrow(1 if name == "patches" else 0, begin, end - begin)
    return found


def _seen(batch: hx.Batch) -> dict[str, Any]:
    samples = [
        [sample, bool(batch.valid[i]), {name: _crc(t) for name, t in _tensors_of(batch, i).items()}]
        for i, sample in enumerate(batch.ids)
    ]
    assert [sample == -1 for sample in batch.ids] == [False] * batch.num_samples + [True] * batch.fillers
    ends = {name: int(bounds[-1]) for name, bounds in batch.host.items()}
    assert ends == {"ids_cu_seqlens": len(batch["ids"]), "patches_cu_seqlens": batch["patches"].shape[1]}
    for i, sample in enumerate(batch.ids):
        if batch.valid[i]:
            assert len(batch["words"][i]) == words(sample)
            assert batch.shapes["caption"][i] == (1 + sample % 6,)
            assert batch.sample_keys[i] == f"sample {sample}"
    tail = batch["ids"][int(batch.host["ids_cu_seqlens"][len(batch.ids)]) :]
    assert tail.tolist() == [-7] * len(tail)
    return {
        "samples": samples,
        "fillers": batch.fillers,
        "num_samples": batch.num_samples,
        "costs": batch.costs,
        "step": [batch.global_samples, batch.global_costs, batch.epoch, batch.step, batch.micro],
        "rows": len(batch["ids"]),
        "words": sum(len(w) for w, valid in zip(batch["words"], batch.valid) if valid),
    }


def _forget(batch: hx.Batch) -> None:
    for value in batch.values():
        for tensor in value if isinstance(value, list) else [value]:
            tensor.zero_()


def _level(rank: int, out: Path) -> None:
    """A process that levels every batch of every kind of loader, and writes down what it saw."""
    dist.init_process_group("gloo", init_method=f"file://{out}/meeting", rank=rank, world_size=RANKS)
    seen: dict[str, list[Any]] = {}
    for name, options in OPTIONS.items():
        for batch in _loader(rank, **options):
            before = _seen(batch)
            levelled = hx.rebalance(batch, cost="words")
            same = levelled is batch
            if not same:
                _forget(batch)  # what it returned must not lie there
            seen.setdefault(name, []).append([before, _seen(levelled), same])
    (out / f"{rank}.json").write_text(json.dumps(seen))
    leave_group()


@pytest.fixture(scope="module")
def levelled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """By kind of loader, what each rank saw of every micro-batch: before, after, whether it is the same."""
    out = tmp_path_factory.mktemp("levelled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELIX_CACHE", str(out))
        patch.setenv("PYTHONWARNINGS", "ignore")
        mp.spawn(_level, (out,), nprocs=RANKS)  # type: ignore[attr-defined, no-untyped-call]
    ranks = [json.loads((out / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return {name: list(zip(*(seen[name] for seen in ranks))) for name in OPTIONS}


def _counted(seen: Any, which: int) -> Counter[str]:
    return Counter(json.dumps(sample) for rank in seen for sample in rank[which]["samples"])


@pytest.mark.parametrize("name", OPTIONS)
def test_a_step_keeps_its_samples_bit_for_bit_and_its_heaviest_rank_becomes_lighter(
    levelled: dict[str, list[Any]], name: str
) -> None:
    lighter = 0
    for seen in levelled[name]:
        assert _counted(seen, 0) == _counted(seen, 1)
        before, after = (max(rank[which]["words"] for rank in seen) for which in (0, 1))
        assert after < before or all(same for _, _, same in seen)
        lighter += after < before
    assert lighter >= 2


@pytest.mark.parametrize("name", OPTIONS)
def test_what_concerns_the_step_stays_and_what_concerns_the_rank_follows(
    levelled: dict[str, list[Any]], name: str
) -> None:
    for seen in levelled[name]:
        for before, after, same in seen:
            assert before["step"] == after["step"]
            assert before["fillers"] == after["fillers"]
            assert len(after["samples"]) == after["num_samples"] + after["fillers"]
            masked = [[s for s in told["samples"] if not s[1]] for told in (before, after)]
            assert sorted(map(str, masked[0])) == sorted(map(str, masked[1]))
            if same:
                assert before == after
            else:
                assert after["costs"].keys() == {"tokens", "patches"}  # what packed fields count
        for cost in ("tokens", "patches"):
            before, after = (sum(rank[which]["costs"].get(cost, 0) for rank in seen) for which in (0, 1))
            assert before == after


@pytest.mark.parametrize("name", ["budget", "padded", "one length"])
def test_no_pack_gets_longer_than_the_longest_of_its_step(levelled: dict[str, list[Any]], name: str) -> None:
    multiple = {"budget": 1, "padded": 4, "one length": 16}[name]
    for seen in levelled[name]:
        assert max(rank[1]["rows"] for rank in seen) <= max(rank[0]["rows"] for rank in seen)
        assert all(rank[1]["rows"] % multiple == 0 for rank in seen)


def test_a_rank_that_neither_gives_nor_takes_has_the_batch_that_it_gave(
    levelled: dict[str, list[Any]],
) -> None:
    every = [rank for steps in levelled.values() for seen in steps for rank in seen]
    assert any(same for _, _, same in every)
    beside = [seen for steps in levelled.values() for seen in steps if 0 < sum(r[2] for r in seen) < RANKS]
    assert beside  # also where the other two exchange samples


def _wrong(rank: int) -> dict[str, Callable[[], Any]]:
    """What two ranks do that cannot work, by what is wrong with it."""
    batches = iter(_loader(rank, 2, batching=hx.FixedBatch(4)))
    batch, later = next(batches), next(batches)
    packs = next(iter(_loader(rank, 2, batching=hx.Packed(16, pad_to=16))))
    twice = next(iter(_loader(0, 2, batching=hx.FixedBatch(4))))
    padded = next(iter(_loader(rank, 2, Padded(), batching=hx.FixedBatch(4))))
    more, fewer, other = hx.Batch(batch), hx.Batch(batch), hx.Batch(packs)
    more["mask"] = torch.ones(4)
    if rank:
        del fewer["flags"]
    other["ids"] = other["ids"].float()
    return {
        "steps": lambda: hx.rebalance(later if rank else batch, cost="words"),
        "the same rank": lambda: hx.rebalance(twice, cost="words"),
        "one rank's costs": lambda: hx.rebalance(batch, cost=[1] * (4 - rank)),
        "halves": lambda: hx.rebalance(batch, cost=[0.5] * 4),  # type: ignore[list-item]
        "no such field": lambda: hx.rebalance(batch, cost="noise"),
        "terms": lambda: hx.rebalance(batch, cost="words", least_gain=0.1 + rank),
        "no number": lambda: hx.rebalance(batch, cost="words", per_byte=float("nan")),
        "more fields": lambda: hx.rebalance(more, cost="words"),
        "fewer fields": lambda: hx.rebalance(fewer, cost="words"),
        "converted": lambda: hx.rebalance(other, cost="words"),
        "pickled": lambda: hx.rebalance(copy.copy(batch), cost="words"),
        "padded": lambda: hx.rebalance(padded, cost="picture"),
        "no batch": lambda: hx.rebalance(dict(batch), cost="words"),  # type: ignore[arg-type]
    }


def _err(rank: int, out: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{out}/meeting", rank=rank, world_size=2)
    said: dict[str, Any] = {}
    for name, wrong in _wrong(rank).items():
        with pytest.raises(UsageError) as error:
            wrong()
        said[name] = str(error.value)
    # Nobody was left waiting: the next one works.
    costs = torch.tensor([[90, 80, 10, 10], [1, 1, 1, 1]][rank])
    batch = next(iter(_loader(rank, 2, batching=hx.FixedBatch(4), end="pad")))
    levelled = hx.rebalance(batch, cost=costs)
    said["ids"] = [batch.ids, levelled.ids]
    if rank or levelled is not batch:
        with pytest.raises(UsageError, match=r"changed ranks .* of 'targets' is not known"):
            _ = levelled.num_targets
        assert levelled.global_targets == batch.global_targets
    alone = dist.new_group([0])
    if rank:
        with pytest.raises(UsageError, match="not in group="):
            hx.rebalance(batch, cost="words", group=alone)
    else:
        assert hx.rebalance(batch, cost="words", group=alone) is batch
    (out / f"{rank}.json").write_text(json.dumps(said))
    leave_group()


def test_what_cannot_work_is_the_same_error_on_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    mp.spawn(_err, (tmp_path,), nprocs=2)  # type: ignore[attr-defined, no-untyped-call]
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    (before, after), (before_too, after_too) = one.pop("ids"), other.pop("ids")
    assert sorted(before + before_too) == sorted(after + after_too)
    assert len(after) < 4 < len(after_too) or (len(after), len(after_too)) == (4, 4)
    assert one == other
    beginnings = {
        "steps": "rank 1 of the group has micro-batch 0 of step 1 of epoch 0, rank 0 has micro-batch 0 of",
        "the same rank": "ranks 0 and 1 of the group share the batches of data-parallel rank 0; give",
        "one rank's costs": "rank 1 of the group: cost=[1, 1, 1] is not a whole number >= 0 for each of",
        "halves": "rank 0 of the group: cost=[0.5, 0.5, 0.5, 0.5] is not a whole number",
        "no such field": "rank 0 of the group: cost='noise' is none of the fields ['words', ",
        "terms": "rank 1 of the group has (least_gain, per_byte) (1.1, 0.0), rank 0 has (0.1, 0.0)",
        "no number": "rank 0 of the group: least_gain=0.02, per_byte=nan must be numbers >= 0",
        "more fields": "rank 0 of the group: the batch has ['mask'], which its recipe does not give",
        "fewer fields": "rank 1 of the group has fields [",
        "converted": "rank 0 of the group: field 'ids' is padded with -7 as int64, and has become float32",
        "pickled": "rank 0 of the group: this Batch is not a batch as a loader gives it",
        "padded": "field 'picture' (pad) has samples of (",
        "no batch": "rank 0 of the group: this dict is not a batch as a loader gives it",
    }
    assert one.keys() == beginnings.keys()
    for name, beginning in beginnings.items():
        assert one[name].startswith(f"rebalance: {beginning}"), name


def test_a_process_alone_has_nothing_to_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path))
    batch = next(iter(_loader(0, 1, Padded(), batching=hx.FixedBatch(4))))
    assert hx.rebalance(batch, cost="picture") is batch
    with pytest.raises(UsageError, match=r"^rebalance: cost='words' is none of the fields \['picture'\]$"):
        hx.rebalance(batch, cost="words")


@pytest.mark.parametrize(
    ("backends", "device", "through"),
    [
        ("cpu:gloo,cuda:gloo", "cpu", "cpu"),
        ("cpu:gloo,cuda:gloo", "cuda", "cpu"),  # gloo exchanges host tensors alone
        ("cpu:gloo,cuda:nccl", "cuda", "cuda"),
        ("cuda:nccl", "cuda", "cuda"),
        ("cuda:nccl", "cpu", "cuda"),
        ("cpu:mpi,cuda:mpi", "cuda", "cuda"),
    ],
)
def test_bytes_go_where_the_group_can_exchange_them(
    monkeypatch: pytest.MonkeyPatch, backends: str, device: str, through: str
) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda group: backends)
    assert _through(torch.device(device), None).type == through
