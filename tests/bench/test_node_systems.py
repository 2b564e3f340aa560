"""Systems of `bench node` that move samples after decoding, or take them as they are ready."""

from __future__ import annotations

import os
import queue
import random
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.progress import Progress

from bench.node import flat
from bench.node.case import Case, read_rows
from bench.node.prepare import Prepared, case_of, prepare
from bench.node.queues import FastSlow, Ready, stretches
from bench.node.recipe import loaded
from bench.node.runs import Ranks, Run
from bench.node.system import system
from bench.node.systems import minato
from bench.node.systems import ray as ray_system
from bench.node.systems.alltoall import level
from bench.node.systems.dataloader import joined
from bench.samples import Visit, read_samples
from bench.torch_loader import RecipeDataset, collate
from libhelix.recipe import Descriptor
from tests.bench.test_handoff import marked_by_us
from tests.bench.test_node_run import BATCH, RANKS, SAMPLES, WORKLOAD, a_shape, visits

LOOKAHEAD = 3


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    with Progress(disable=True) as progress:
        return prepare(WORKLOAD, SAMPLES, tmp_path_factory.mktemp("cache"), progress)


@pytest.fixture
def case(prepared: Prepared) -> Case:
    return case_of(prepared, a_shape(), LOOKAHEAD)


# ---- all-to-all -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_levelling_keeps_every_sample_and_the_sizes_of_batches(seed: int) -> None:
    draws = random.Random(seed)
    ranks, batch = draws.randint(1, 9), draws.randint(1, 9)
    costs = [[draws.lognormvariate(0, 1.5) for _ in range(batch)] for _ in range(ranks)]
    found = level(costs, [0.0] * ranks)
    assert [len(own) for own in found] == [batch] * ranks
    places = [(r, i) for r in range(ranks) for i in range(batch)]
    assert sorted(place for own in found for place in own) == places


def test_levelled_ranks_are_more_alike() -> None:
    draws = random.Random(7)
    before, after = [], []
    for _ in range(50):
        costs = [[draws.lognormvariate(0, 1.0) for _ in range(4)] for _ in range(8)]
        # No assignment can do better.
        bound = max(sum(map(sum, costs)) / 8, *(max(own) for own in costs))
        before.append(max(map(sum, costs)) / bound)
        owned = level(costs, [0.0] * 8)
        after.append(max(sum(costs[r][i] for r, i in own) for own in owned) / bound)
    assert sum(before) / 50 > 1.3
    assert sum(after) / 50 < 1.1


def test_levelling_makes_up_for_what_ranks_had_before() -> None:
    costs = [[4.0, 1.0], [4.0, 1.0]]
    first, second = level(costs, [100.0, 0.0])
    assert sum(costs[r][i] for r, i in first) == 2.0
    assert sum(costs[r][i] for r, i in second) == 8.0


def test_equal_samples_stay_where_they_are() -> None:
    found = level([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]], [0.0] * 3)
    assert all(home == rank for rank, own in enumerate(found) for home, _ in own)


# ---- batches in one piece ---------------------------------------------------------------------------------


def a_batch() -> dict[str, Any]:
    return {
        "tokens": torch.tensor([3, 4, 5]),
        "stacked": torch.arange(12, dtype=torch.float32).reshape(3, 2, 2),
        "ragged": [torch.zeros(1, 3), torch.ones(2, 0), torch.ones(5)],
        "packed": torch.arange(14, dtype=torch.uint8).reshape(7, 2),
        "packed_cu_seqlens": torch.tensor([0, 3, 3, 7], dtype=torch.int32),
    }


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    def one(x: Any, y: Any) -> bool:
        if isinstance(x, list):
            return len(x) == len(y) and all(map(one, x, y))
        return bool(x.dtype == y.dtype and torch.equal(x, y))

    return sorted(a) == sorted(b) and all(one(a[name], b[name]) for name in a)


def test_a_batch_is_the_same_after_it_was_packed() -> None:
    batch = a_batch()
    out = flat.private(flat.packed_bytes(batch) + 100)
    flat.pack(batch, out)
    assert same(flat.unpack(out), batch)


def test_a_batch_is_the_same_after_it_was_split() -> None:
    parts = flat.split(a_batch(), 3)
    assert [int(part["tokens"]) for part in parts] == [3, 4, 5]
    assert same(joined(parts), a_batch())


@pytest.mark.parametrize("allocate", [flat.private, flat.shared])
def test_decoding_in_place_gives_what_a_dataloader_gives(case: Case, allocate: flat.Allocate) -> None:
    wanted = [Visit(sample=i, epoch=0) for i in (5, 1, 6)]
    dataset = RecipeDataset(Path(case.index), loaded(case.recipe), case.seed)
    expected = collate(frozenset({"video"}), frozenset(), dataset.__getitems__(wanted))
    decoder = flat.Decoder(case.index, case.recipe, case.seed)
    found = flat.unpack(decoder.decode(wanted, allocate))
    assert same({**found, "tokens": found["tokens"]}, expected)


# ---- who is ready -----------------------------------------------------------------------------------------


def test_a_batch_is_of_one_epoch_and_the_earliest_that_has_one() -> None:
    ready: Ready[str] = Ready(2)
    for sample, epoch in ((0, 0), (1, 1), (2, 1), (3, 0), (4, 1)):
        ready.add(Visit(sample=sample, epoch=epoch), "")
    taken = [[v.sample for v, _ in batch] for batch in iter(ready.take, None)]
    assert taken == [[0, 3], [1, 2]]


def test_a_later_epoch_may_overtake_the_last_samples_of_one() -> None:
    ready: Ready[str] = Ready(2)
    for sample, epoch in ((0, 0), (1, 1), (2, 1)):
        ready.add(Visit(sample=sample, epoch=epoch), "")
    taken = ready.take()
    assert taken is not None
    assert [v.sample for v, _ in taken] == [1, 2]
    assert ready.take() is None


@pytest.mark.parametrize("seed", range(20))
def test_whatever_order_samples_become_ready_in_each_is_handed_out_once(seed: int) -> None:
    draws = random.Random(seed)
    batch, ahead, per_epoch, epochs = draws.randint(1, 4), draws.randint(1, 4), 6, 5
    queues: FastSlow[int] = FastSlow(batch, most=batch * ahead, share=0.75, warm_up=4)
    waiting = [Visit(sample=i, epoch=e) for e in range(epochs) for i in range(batch * per_epoch)]
    everything = Counter((v.epoch, v.sample) for v in waiting)
    inside: list[Visit] = []
    handed = Counter[tuple[int, int]]()
    while waiting or inside:
        while waiting and queues.room:
            queues.begin()
            inside.append(waiting.pop(0))
        assert inside, "a loader whose look-ahead is full has something to wait for"
        visit = inside.pop(draws.randrange(len(inside)))
        queues.done(visit, 0, draws.random())
        while (found := queues.take()) is not None:
            assert len(found) == batch
            assert len({v.epoch for v, _ in found}) == 1
            handed.update((v.epoch, v.sample) for v, _ in found)
            queues.handed(len(found))
    assert handed == everything


def test_there_is_a_limit_once_enough_samples_were_timed() -> None:
    queues: FastSlow[int] = FastSlow(1, most=1, share=0.75, warm_up=5)
    for i, took_s in enumerate((1.0, 2.0, 3.0, 4.0, 5.0)):
        assert queues.limit_s is None
        queues.done(Visit(sample=i, epoch=0), 0, took_s)
    assert queues.limit_s == 4.0


def a_long_sample() -> Descriptor:
    return Descriptor(fields=(), units=40, cuts=(10, 20, 30), segment_us=(10_000, 10_000, 10_000, 10_000))


@pytest.mark.parametrize(
    ("limit_s", "ends"),
    [(None, [40]), (0.001, [10, 20, 30, 40]), (0.02, [20, 30, 40]), (0.025, [30, 40]), (0.05, [40])],
)
def test_a_worker_looks_at_the_clock_where_the_limit_may_be_passed(
    limit_s: float | None, ends: list[int]
) -> None:
    parts = stretches(a_long_sample(), limit_s)
    assert [part.end for part in parts] == ends
    assert [part.begin for part in parts] == [0, *ends[:-1]]


# ---- the slow queue, with real decoding -------------------------------------------------------------------


class Told(list[Any]):
    """The end of a pipe that a worker writes to."""

    def send(self, one: Any) -> None:
        self.append(one)


class Tasks(queue.SimpleQueue[Any]):
    """A queue of a worker in this process, which ends when it is empty."""

    def get(self, *_: Any, **__: Any) -> Any:
        if self.empty():
            raise EOFError
        return super().get()


@pytest.fixture
def unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers pin their process and its threads; here that is ours."""
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda *_: None)


def begun(case: Case, limit_s: float, rests: Any) -> tuple[list[Any], int]:
    """What a fast worker says of a sample with cuts, and the sample."""
    cut = next(s.id for s in read_samples(Path(case.index)) if flat_cuts(case, s.id))
    tasks, told = Tasks(), Told()
    tasks.put(minato.Task(Visit(sample=cut, epoch=0), limit_s))
    with pytest.raises(EOFError):
        minato.work_fast(case, tasks, rests, told)  # type: ignore[arg-type]
    return told, cut


def flat_cuts(case: Case, sample: int) -> tuple[int, ...]:
    return flat.Decoder(case.index, case.recipe, case.seed).describe(Visit(sample=sample, epoch=0)).cuts


@pytest.mark.usefixtures("unpinned")
def test_a_slow_sample_moves_on_and_is_finished_by_another(case: Case) -> None:
    rests = Tasks()
    told, cut = begun(case, 1e-9, rests)
    assert not told
    rest = rests.get()
    assert 0 < rest.begin < 40
    rests.put(rest)
    with pytest.raises(EOFError):
        minato.work_slow(case, None, rests, told)  # type: ignore[arg-type]
    (result,) = told
    assert not result.error
    assert result.took_s > rest.took_s
    whole = flat.Decoder(case.index, case.recipe, case.seed).decode(
        [Visit(sample=cut, epoch=0)], flat.private
    )
    assert same(flat.unpack(result.flat), flat.unpack(whole))


@pytest.mark.usefixtures("unpinned")
def test_a_sample_within_the_limit_stays_where_it_was_begun(case: Case) -> None:
    rests = Tasks()
    told, _ = begun(case, 60.0, rests)
    assert rests.empty()
    assert [result.error for result in told] == [""]


@pytest.mark.usefixtures("unpinned")
def test_a_lone_worker_finishes_slow_samples_when_it_has_no_other(case: Case) -> None:
    told, _ = begun(case, 1e-9, None)
    assert [result.error for result in told] == [""]


@pytest.mark.usefixtures("unpinned")
def test_a_sample_that_cannot_be_decoded_ends_the_run_with_its_name(case: Case) -> None:
    tasks, told = Tasks(), Told()
    tasks.put(minato.Task(Visit(sample=10**6, epoch=0), None))
    with pytest.raises(EOFError):
        minato.work_fast(case, tasks, None, told)  # type: ignore[arg-type]
    assert "sample 1000000" in told[0].error


# ---- runs -------------------------------------------------------------------------------------------------


def crcs(run: Run) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for step in (s for rank in run.ranks for s in rank.steps):
        for i, crc in zip(step.ids, step.crcs, strict=True):
            found.setdefault(i, set()).add(crc)
    return found


@pytest.fixture(scope="module")
def pixels(prepared: Prepared) -> dict[int, set[int]]:
    """Those that a DataLoader gives."""
    case = case_of(prepared, a_shape(), LOOKAHEAD)
    with Ranks(RANKS) as ranks:
        one = system("dataloader")
        return crcs(ranks.run(case, one, one.variants(case)[0], checksums=True))


def test_all_to_all_gives_every_sample_once_and_levels_ranks(
    prepared: Prepared, pixels: dict[int, set[int]]
) -> None:
    case = case_of(prepared, a_shape(batch=4), LOOKAHEAD)
    epochs = case.all_steps * RANKS * case.batch // SAMPLES
    one = system("alltoall")
    variants = one.variants(case)
    assert {variant.options["ahead"] for variant in variants} == {0, 1}
    with Ranks(RANKS) as ranks:
        for variant in (variants[0], variants[-1]):
            run = ranks.run(case, one, variant, checksums=True)
            assert visits(run, case) == Counter((e, i) for e in range(epochs) for i in range(SAMPLES))
            assert crcs(run) == pixels
            assert run.decode_processes == max(case.decoders, RANKS)
            assert unevenness(run) < 0.5 * unevenness_of_slices(case)
    assert not marked_by_us()


def unevenness(run: Run) -> float:
    """Mean over steps of max/mean of the windows, less 1."""
    columns = zip(*(rank.steps for rank in run.ranks))
    windows = [[step.window_s for step in column] for column in columns]
    return float(np.mean([max(w) / np.mean(w) for w in windows])) - 1


def unevenness_of_slices(case: Case) -> float:
    from itertools import islice

    from bench.node import plans

    tokens = read_rows(case.rows).tokens
    columns = zip(*(islice(plans.slices(case, rank), case.all_steps) for rank in range(RANKS)))
    windows = [[case.window.seconds([tokens[v.sample] for v in b]) for b in column] for column in columns]
    return float(np.mean([max(w) / np.mean(w) for w in windows])) - 1


@pytest.mark.parametrize("name", ["minato", "spdl", "ray-data", "energon"])
def test_samples_that_overtake_one_another_are_still_the_same_ones(
    name: str, prepared: Prepared, pixels: dict[int, set[int]]
) -> None:
    one = system(name)
    if why := one.missing():
        pytest.skip(why)
    case = case_of(prepared, a_shape(), LOOKAHEAD)
    with Ranks(RANKS) as ranks:
        for variant in one.variants(case):
            run = ranks.run(case, one, variant, checksums=True)
            seen = visits(run, case)
            assert max(seen.values()) == 1, "a sample comes once an epoch"
            assert sum(seen.values()) == case.all_steps * RANKS * BATCH
            # Who is behind is within the look-ahead.
            late = {(e, i) for e in range(max(e for e, _ in seen)) for i in range(SAMPLES)} - set(seen)
            assert len(late) <= LOOKAHEAD * RANKS * BATCH
            assert all(found <= pixels[i] for i, found in crcs(run).items())
            assert run.decode_processes == max(case.decoders, RANKS)
    assert not marked_by_us()


def test_emulated_cores_are_split_over_fast_and_slow_workers(prepared: Prepared) -> None:
    case = case_of(prepared, a_shape(emulated_cores=8), LOOKAHEAD)
    one = system("minato")
    assert {v.options["slow"] for v in one.variants(case)} == {1, 2}
    with Ranks(RANKS) as ranks:
        run = ranks.run(case, one, one.variants(case)[0])
    assert run.decode_processes == 8
    assert all(len(rank.steps) == case.all_steps and not rank.error for rank in run.ranks)


def test_ray_has_as_many_batches_in_work_as_a_rank_may_have_ahead(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a rank computes on one batch; without Ray, whose calls are stubs here."""
    case = case_of(prepared, a_shape(), 4)
    asked: list[Any] = []

    def submit(visits: Any) -> int:
        asked.append(visits)
        return len(asked) - 1

    def get(refs: list[int]) -> list[dict[str, Any]]:
        return [{"x": np.zeros((len(asked[ref]), 1))} for ref in refs]

    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(get=get))
    monkeypatch.setattr(ray_system, "_submit", lambda *_: submit)
    for way, parts in (("tasks of batches", 1), ("tasks of samples", BATCH)):
        asked.clear()
        fed = ray_system.Ray()._fed(case, way, 0)
        for taken in range(1, 6):
            next(fed)
            assert len(asked) == (taken + case.lookahead - 1) * parts
