"""PyTorch datasets through the pool: what a DataLoader gives, with a daemon and without."""

from __future__ import annotations

import os
import random
import signal
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate, get_worker_info

import libhelix as hx
from libhelix.errors import MediaError, RecipeNotImportable, Stalled, UsageError
from libhelix.recipes import chains
from tests.system.datasets import Pairs, Shards, Stream, padded
from tests.system.processes import eventually, maps, of_job


def _equal(a: Any, b: Any) -> bool:
    """The same structure, types, dtypes and values."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(_equal, a, b))
    if hasattr(a, "__dict__"):
        return type(a) is type(b) and _equal(vars(a), vars(b))
    return bool(a == b)


def _pairs(samples: list[Any]) -> Any:
    """As default_collate, which is known for what it is."""
    return default_collate(samples)


def _generators() -> list[Any]:
    return [random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()]


def _copied(value: Any) -> Any:
    return [b if not isinstance(b, dict) else dict(b) for b in value]


@pytest.mark.parametrize("kind", ["tuple", "named", "dict", "nested", "text", "list"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_gives_what_a_data_loader_gives(job: str, kind: str, drop_last: bool) -> None:
    dataset = Pairs(kind=kind)
    expected = list(DataLoader(dataset, 4, drop_last=drop_last))
    assert len(expected) == (2 if drop_last else 3)
    for backend in ("inline", "daemon") if kind in ("nested", "text") and not drop_last else ("inline",):
        with hx.Loader.from_torch(dataset, 4, drop_last=drop_last, backend=backend) as loader:
            assert len(loader) == len(expected)
            assert _equal(_copied(loader), expected)


def test_a_collate_function_of_ones_own_runs_in_the_pool_and_may_return_anything(job: str) -> None:
    dataset = Pairs(kind="ragged")
    expected = list(DataLoader(dataset, 3, collate_fn=padded))
    for backend in ("inline", "daemon"):
        with hx.Loader.from_torch(dataset, 3, collate_fn=padded, backend=backend, ring=9) as loader:
            assert _equal(list(loader), expected)
    with hx.Loader.from_torch(dataset, None, backend="inline") as loader:
        assert _equal(list(loader), list(DataLoader(dataset, None)))


def test_an_epoch_is_shuffled_anew_and_has_each_sample_once(job: str) -> None:
    for whole in (None, _pairs):
        with hx.Loader.from_torch(Pairs(), 2, shuffle=True, backend="inline", collate_fn=whole) as loader:
            epochs = [[label for _, labels in loader for label in labels.tolist()] for _ in range(2)]
        assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 2
        assert epochs[0] != epochs[1]


@pytest.mark.parametrize("whole", [False, True], ids=["samples", "batches"])
def test_what_is_drawn_follows_from_the_seed_wherever_it_is_drawn(job: str, whole: bool) -> None:
    collate = torch.stack if whole else None
    dataset = Tensors(kind="drawn") if whole else Pairs(kind="drawn")

    def drawn(backend: str, seed: int) -> list[list[float]]:
        how: Any = {"backend": backend, "seed": seed, "name": f"{seed}"}
        with hx.Loader.from_torch(dataset, 2, collate_fn=collate, **how) as loader:
            return [batch.tolist() for _ in range(2) for batch in loader]

    before = _generators()
    one = drawn("inline", 3)
    assert _generators() == before  # they are the trainer's
    assert one == drawn("daemon", 3)
    assert one != drawn("inline", 4)
    assert len({x for batch in one for x in batch}) == 20  # in each epoch others


class Tensors(Pairs):
    """Numbers as tensors."""

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.tensor(super().__getitem__(i))


def test_ranks_share_the_samples_and_a_state_gives_exactly_the_rest(job: str) -> None:
    def loader(rank: int, size: int, **options: Any) -> Any:
        return hx.Loader.from_torch(
            Pairs(12),
            6 // size,
            shuffle=True,
            backend="inline",
            dp_rank=rank,
            dp_size=size,
            job=job,
            **options,
        )

    def labels(batches: Any) -> list[list[int]]:
        return [labels.tolist() for _, labels in batches]

    one = loader(0, 1, epochs=2)
    batches = iter(one)
    first = labels([next(batches)])
    state, rest = one.state_dict(), labels(batches)
    halves = []
    for rank in range(2):
        half = loader(rank, 2, epochs=2)
        half.load_state_dict(state)
        halves.append(labels(half))
    assert [sorted(a + b) for a, b in zip(*halves)] == [sorted(batch) for batch in rest]
    assert sorted(first[0] + rest[0]) == list(range(12))


def test_what_a_data_loader_takes_for_no_shuffling_is_taken_for_that(job: str) -> None:
    with hx.Loader.from_torch(Pairs(4), 2, shuffle=None, backend="inline") as loader:  # type: ignore[arg-type]
        assert [batch[1].tolist() for batch in loader] == [[0, 1], [2, 3]]


def test_a_dataset_may_be_named_by_what_makes_it(job: str) -> None:
    with hx.Loader.from_torch("tests.system.datasets:made", 3) as loader:
        assert [labels.tolist() for _, labels in loader] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(UsageError, match='write "my_module:make"'):
        hx.Loader.from_torch("tests.system.datasets")


def test_a_broken_sample_raises_with_its_number_and_cause(job: str) -> None:
    for backend, collate in (("daemon", None), ("inline", _pairs)):
        with hx.Loader.from_torch(Pairs(broken=5), 2, collate_fn=collate, backend=backend) as loader:
            batches = iter(loader)
            before = [next(batches)[1].tolist() for _ in range(2)]
            with pytest.raises(MediaError, match=r"raised ValueError: a broken file \(.*datasets.py"):
                next(batches)  # not a masked sample first, as a loader of the usual kind
        assert before == [[0, 1], [2, 3]]


def test_a_sample_of_another_shape_is_named(job: str) -> None:
    with (
        hx.Loader.from_torch(Pairs(kind="ragged"), 2, backend="inline") as loader,
        pytest.raises(
            MediaError, match=r"sample 1: 'sample' is int64 \[2\], in the first sample it was int64 \[1\]"
        ),
    ):
        list(loader)


def test_a_batch_that_is_larger_than_was_said_names_the_cure(job: str) -> None:
    dataset = Pairs(kind="ragged")
    with (
        hx.Loader.from_torch(dataset, 3, collate_fn=padded, max_bytes=600) as loader,
        pytest.raises(MediaError, match=r"there is room for 600; give max_bytes="),
    ):
        list(loader)


def test_what_cannot_be_shared_out_or_sent_is_refused_with_a_cure() -> None:
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (object(), {}, "is no dataset: it has no __getitem__"),
        (Pairs(), {"sampler": [1, 2]}, "sampler=: the loader shuffles"),
        (Pairs(), {"worker_init_fn": print}, "worker_init_fn=: workers are the daemon's"),
        (Pairs(), {"batch_size": 11}, "the dataset has 10 samples"),
        (
            Pairs(),
            {"batch_size": 5, "dp_rank": 0, "dp_size": 2, "job": "a", "micro_batches": 2},
            "10 do not divi",
        ),
        (Pairs(), {"batch_size": 3, "dp_rank": 0, "dp_size": 2, "job": "a"}, "give drop_last=True"),
        (Pairs(), {"collate_fn": lambda samples: samples}, "collate_fn cannot be pickled"),
        (Pairs(), {"collate_fn": padded, "device": "auto"}, "device=: a batch that is made whole"),
        (Pairs(), {"collate_fn": padded, "on_bad": "mask"}, "on_bad='mask': a batch that is made whole"),
    ]
    for dataset, options, text in refused:
        with pytest.raises(UsageError, match=text):
            hx.Loader.from_torch(dataset, **options)


def test_what_is_defined_in_the_script_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensors, "__module__", "__main__")
    with pytest.raises(RecipeNotImportable, match="__main__:Tensors: workers import what they run by name"):
        hx.Loader.from_torch(Tensors())


def test_arguments_without_effect_are_warned_about_once(job: str) -> None:
    with pytest.warns(hx.HelixWarning, match="num_workers, pin_memory: without effect") as caught:
        hx.Loader.from_torch(Pairs(), 2, num_workers=4, pin_memory=True, timeout=0)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_a_pickle_that_others_may_write_is_not_read(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path))
    loader = hx.Loader.from_torch(Pairs(), 2)
    (path,) = (tmp_path / "objects").glob("*.pickle")
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o660)
    with loader, pytest.raises(hx.RecipeError, match="or others may read or write it; remove it"):
        next(iter(loader))


def test_workers_see_no_accelerator_and_no_rank_and_torch_is_only_in_them(
    job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    with hx.Loader.from_torch(Seeing(), 2, epochs=None) as loader:
        seen = next(iter(loader))
        assert seen["devices"].tolist() == [0, 0]
        assert seen["threads"].tolist() == [1, 1]
        assert seen["ranks"].tolist() == [0, 0]
        (daemon,), workers = of_job(job, "helixd"), of_job(job, "w")
        assert "torch" not in maps(daemon)
        eventually("torch is in a worker", lambda: any("torch" in maps(pid) for pid in workers))


def test_workers_of_streams_have_no_rank_either(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with hx.Loader.from_torch(SeeingStream(4), None) as loader:
        assert list(loader) == [["", 1, 0]] * 4  # no accelerator, one thread, no rank


class SeeingStream(Shards):
    """Says what its process sees."""

    def __iter__(self) -> Any:
        ranks = len({"RANK", "WORLD_SIZE"} & os.environ.keys())
        devices = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        return ([devices, torch.get_num_threads(), ranks] for _ in super().__iter__())


class Seeing(Pairs):
    """Says what its process sees."""

    def __getitem__(self, i: int) -> dict[str, int]:
        return {
            "devices": len(os.environ.get("CUDA_VISIBLE_DEVICES", "all")),
            "threads": torch.get_num_threads(),
            "ranks": len({"RANK", "WORLD_SIZE", "LOCAL_RANK"} & os.environ.keys()),
        }


# ---- iterable datasets -----------------------------------------------------------------------------


def _numbers(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_an_iterable_dataset_gives_what_a_data_loader_gives(job: str, streams: int, drop_last: bool) -> None:
    dataset = Shards(37)
    chosen: Any = {"drop_last": drop_last, "num_workers": streams}
    expected = _numbers(DataLoader(dataset, 4, multiprocessing_context="fork", **chosen))
    for backend in ("inline", "daemon"):
        name = f"of-{backend}"
        with hx.Loader.from_torch(dataset, 4, backend=backend, name=name, **chosen) as loader:
            assert len(loader) == len(expected)
            assert _numbers(loader) == expected
            assert _numbers(loader) == [[i + 1000 for i in batch] for batch in expected]  # set_epoch


def test_a_stream_without_end_goes_on_over_epochs_and_begins_anew(
    job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("libhelix.torch_loader.ENDLESS", 2)
    dataset = Shards(7, told=False)
    with pytest.raises(UsageError, match="give it __len__, or epochs=None"):
        hx.Loader.from_torch(dataset, 2)
    expected = [[0, 1], [2, 3], [4, 5], [6], [1000, 1001], [1002, 1003], [1004, 1005], [1006], [2000, 2001]]
    for backend in ("inline", "daemon"):
        options: Any = {"backend": backend, "name": backend, "epochs": None}
        with hx.Loader.from_torch(dataset, 2, **options) as loader:
            assert _numbers(islice(loader, 5)) == expected[:5]
            state = loader.state_dict()
        with hx.Loader.from_torch(dataset, 2, **options) as loader:
            loader.load_state_dict(state)
            assert _numbers(islice(loader, 4)) == expected[5:9]


def test_ranks_share_the_streams_and_a_state_goes_on_with_other_ranks(job: str) -> None:
    def loaders(ranks: int, streams: int) -> list[Any]:
        return [
            hx.Loader.from_torch(
                Shards(48), 2, num_workers=streams, backend="inline", dp_rank=rank, dp_size=ranks, job=job
            )
            for rank in range(ranks)
        ]

    two, four = loaders(2, 2), loaders(4, 1)
    iterators = [iter(loader) for loader in two]
    before = [_numbers(islice(batches, 4)) for batches in iterators]
    assert all(i % 2 == rank for rank, of in enumerate(before) for batch in of for i in batch)
    state, rest = two[0].state_dict(), [_numbers(batches) for batches in iterators]
    for loader in four:
        loader.load_state_dict(state)
    later = [_numbers(loader) for loader in four]
    assert sorted(b for of in later for b in of) == sorted(b for of in rest for b in of)
    assert sorted(i for of in (*before, *rest) for batch in of for i in batch) == list(range(48))


def test_a_worker_that_is_killed_changes_nothing_of_its_streams(job: str) -> None:
    how: Any = {"num_workers": 3, "seed": 5, "epochs": 2}
    with hx.Loader.from_torch(Drawing(90), 3, backend="inline", **how) as loader:
        expected = _numbers(loader)
    assert len({x for batch in expected for x in batch}) == 180  # all are drawn anew
    with hx.Loader.from_torch(Drawing(90), 3, **how) as loader:
        found = []
        for number, batch in enumerate(loader):
            found.append(batch.tolist())
            if number in (7, 30):
                for pid in of_job(job, "w"):
                    os.kill(pid, signal.SIGKILL)
    assert found == expected


class Drawing(Shards):
    """Draws its samples."""

    def __iter__(self) -> Any:
        return (i + random.random() + np.random.rand() + torch.rand(()).item() for i in super().__iter__())


def test_a_shard_that_is_broken_raises_where_it_is(job: str) -> None:
    for backend in ("inline", "daemon"):
        options: Any = {"backend": backend, "name": backend}
        with hx.Loader.from_torch(Shards(20, broken=13), 2, num_workers=2, **options) as loader:
            batches = iter(loader)
            assert _numbers(islice(batches, 6)) == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11]]
            assert next(batches).tolist() == [12, 14]
            with pytest.raises(MediaError, match="ValueError: a broken shard"):
                next(batches)


def test_streams_that_are_alike_are_warned_about_and_those_without_samples_raise(job: str) -> None:
    with pytest.warns(hx.HelixWarning, match=r"Stream does not ask .* gives all 2 the same samples"):
        hx.Loader.from_torch(Stream(), 1, num_workers=2, epochs=None)
    with (
        hx.Loader.from_torch(
            Shards(2, told=False), 1, num_workers=3, epochs=None, backend="inline"
        ) as loader,
        pytest.raises(MediaError, match=r"stream 2 of 3 gives no samples, .* give a smaller num_workers="),
    ):
        list(islice(loader, 3))
    with (
        hx.Loader.from_torch(Shards(0, told=False), 1, max_bytes=99, epochs=None, backend="inline") as loader,
        pytest.raises(MediaError, match=r"batch 0: the dataset gives no samples, a batch needs 1$"),
    ):
        next(iter(loader))
    refused: list[tuple[dict[str, Any], str]] = [
        ({"shuffle": True}, "shuffle=: the dataset says"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"batch_size": 40, "drop_last": True}, "30 samples in 1 streams make no batch of 40"),
        ({"num_workers": -1}, "num_workers=-1: each rank needs a stream"),
        ({"max_bytes": 1 << 41}, r"max_bytes=\d+ must be from 1 to \d+"),
        ({"placement": "dynamic"}, "its samples can only be made in their order"),
        ({"device": "auto"}, "device=: a batch that is made whole"),
        ({"on_bad": "mask"}, "on_bad='mask': a batch that is made whole"),
        ({"dp_rank": 0, "dp_size": 4, "job": "a", "batch_size": 7}, "give drop_last=True"),
    ]
    for options, text in refused:
        with pytest.raises(UsageError, match=text):
            hx.Loader.from_torch(Shards(30), **options)


def test_past_batches_of_an_iterable_dataset_come_once_more(job: str) -> None:
    with hx.Loader.from_torch(Shards(40), 4, num_workers=2, backend="inline") as loader:
        batches = _numbers(loader)
        state = loader.state_dict()
    for step in (3, 0, 8):
        assert hx.replay(state, step=step, epoch=0)["batch"].tolist() == batches[step]


def test_without_batch_size_a_sample_is_converted_and_given_to_the_function_as_a_data_loader_does(
    job: str,
) -> None:
    for dataset in (Pairs(3, kind="dict"), Dicts(3)):
        for collate in (None, sorted):
            expected = list(DataLoader(dataset, None, collate_fn=collate))
            assert collate or isinstance(expected[0]["image"], torch.Tensor)
            for backend in ("inline", "daemon"):
                options: Any = {"collate_fn": collate, "backend": backend, "name": f"{collate}-{backend}"}
                with hx.Loader.from_torch(dataset, None, ring=4, **options) as loader:
                    assert _equal(list(loader), expected)


class Dicts(Shards):
    """Samples with arrays."""

    def __iter__(self) -> Any:
        return ({"image": np.full(3, i), "label": i} for i in super().__iter__())


def test_the_seed_of_a_stream_is_another_in_every_epoch_and_pass(job: str) -> None:
    def seeds(backend: str, **options: Any) -> list[int]:
        with hx.Loader.from_torch(Seeds(2), 1, num_workers=2, backend=backend, **options) as loader:
            return [seed for batch in islice(loader, 8) for seed in batch.tolist()]

    told = seeds("inline", epochs=4)
    assert [told[i + 1] - told[i] for i in range(0, 8, 2)] == [1] * 4  # as a DataLoader's
    assert len(set(told)) == 8
    assert seeds("inline", epochs=None, max_bytes=999) == told  # a pass after the other
    assert seeds("daemon", epochs=4) == told


class Seeds(Shards):
    """Samples are the seed that a stream is told."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        assert info is not None
        return (info.seed for _ in super().__iter__())


def test_a_length_that_is_not_implemented_is_none(job: str) -> None:
    with hx.Loader.from_torch(Unmeasured(5), 2, epochs=None, backend="inline") as loader:
        assert _numbers(islice(loader, 3)) == [[0, 1], [2, 3], [4]]


class Unmeasured(Shards):
    """Does not know its length, and says so in its own way."""

    def __len__(self) -> int:
        raise NotImplementedError


def test_what_becomes_of_the_dataset_in_the_trainer_changes_no_batch(job: str) -> None:
    dataset = Counting(4)
    with hx.Loader.from_torch(dataset, 2, backend="inline", max_bytes=999) as loader:
        assert next(iter(dataset)) == 0
        assert _numbers(loader) == [[0, 1], [2, 3]]


class Counting(Shards):
    """Is its own iterator."""

    at = -1

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at >= self.samples:
            raise StopIteration
        return self.at


def test_a_named_dataset_has_streams_without_a_warning(job: str, recwarn: pytest.WarningsRecorder) -> None:
    with hx.Loader.from_torch(f"{__name__}:ten", 5, num_workers=2, backend="inline") as loader:
        assert _numbers(loader) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    assert not [w for w in recwarn if issubclass(w.category, hx.HelixWarning)]


def ten() -> Shards:
    """As named by "module:function"."""
    return Shards(10)


def test_a_stream_that_has_failed_is_not_gone_through_again_for_what_would_follow() -> None:
    stream = chains.DatasetChain(f"{__name__}:failing", 1, 0, 2, False, "", 999)
    begun = Failing.begun
    for number in (1, 1, 2, 7):
        with pytest.raises(ValueError, match="a broken shard"):
            stream.parcel(number, 0, 0)
    assert Failing.begun == begun + 1


class Failing(Shards):
    """Counts how often it is gone through."""

    begun = 0

    def __iter__(self) -> Any:
        Failing.begun += 1
        return super().__iter__()


def failing() -> Shards:
    """As named by "module:function"."""
    return Failing(10, broken=3)


def test_batches_that_a_stream_passed_over_are_not_kept_for_good() -> None:
    stream = chains.DatasetChain(f"{__name__}:ten", 1, 4096, 1, False, "", 999)
    for number in (50, 49, 51, 52, 53, 54, 55):  # nearly in order
        stream.parcel(number, 0, 0)
    (going,) = chains._open[stream].values()
    assert not going._kept


def test_what_was_gone_through_to_learn_sizes_is_closed_in_the_trainer(job: str) -> None:
    with hx.Loader.from_torch(Closing(9), 1, num_workers=2, max_bytes=999, epochs=None):
        assert Closing.closed


class Closing(Shards):
    """Notes that its iterator is closed."""

    closed = False

    def __iter__(self) -> Any:
        try:
            yield from super().__iter__()
        finally:
            Closing.closed = True


def test_who_waits_for_a_stream_to_come_as_far_as_it_was_is_told_that_it_takes_time(job: str) -> None:
    with hx.Loader.from_torch(Hanging(4), 1, max_bytes=999) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [0]
        loader._source._timeout_s = 0.5  # type: ignore[union-attr]  # not five minutes
        with pytest.raises(Stalled, match=r"makes all its samples once more; give timeout_s= as much"):
            next(batches)


class Hanging(Shards):
    """Gives one sample."""

    def __iter__(self) -> Any:
        yield next(iter(super().__iter__()))
        time.sleep(20)
