"""What broke planning once: caps that bind, states that do not fit, seeks that cross, epochs again."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image as Pil

import libhelix as hx
from libhelix.errors import MediaError, Oversize, RecipeError, UsageError
from libhelix.index.build import build
from libhelix.plan.coverage import coverage
from libhelix.plan.state import decoded
from libhelix.wire.settings import Base, Position, Start

SAMPLES = 60
Backend = Literal["daemon", "inline"]
both = pytest.mark.parametrize("backend", ["daemon", "inline"])


class Made(hx.Recipe, frozen=True):
    """No media: `size` bytes a sample, or as many times its number; `bad` ones fail in describe."""

    size: int = 100
    padded: bool = False
    tokens: str = "one"
    bad: tuple[int, ...] = ()

    def describe(self, sample: hx.Sample, rng: hx.Rng) -> hx.Descriptor:
        if sample.id in self.bad:
            raise MediaError("made to fail")
        n = self.size * (1 + sample.id % 7) if self.padded else self.size
        costs = {"one": {"tokens": 1}, "id": {"tokens": 1 + sample.id % 5}, "none": {}}[self.tokens]
        layout = hx.Pad() if self.padded else hx.Stack()
        return hx.Descriptor((hx.Field("x", "uint8", (n,), layout),), costs={**costs, "targets": 1})

    def fill(
        self, sample: hx.Sample, desc: hx.Descriptor, part: hx.Part, out: Mapping[str, np.ndarray]
    ) -> None:
        out["x"][...] = sample.id


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of small images."""
    folder = tmp_path_factory.mktemp("images")
    for i in range(SAMPLES):
        Pil.new("RGB", (8, 8), (i, 0, 0)).save(folder / f"{i:03d}.png")
    build([folder], folder / "images.arrow")
    return folder / "images.arrow"


def _loader(index: Path, batching: Any, backend: Backend, recipe: Made = Made(), **options: Any) -> hx.Loader:  # noqa: B008  # frozen
    return hx.Loader(index, recipe=recipe, batching=batching, backend=backend, **options)


@both
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.filterwarnings("ignore:.*masked")
def test_a_byte_cap_holds_with_padding_and_bad_samples(
    images: Path, job: str, backend: Backend, padded: bool
) -> None:
    recipe = Made(padded=padded, bad=(5, 17, 23))
    for cap in (1000, 2500, 4000):
        with _loader(
            images, hx.TokenBudget(10**9, max_bytes=cap), backend, recipe, name=f"{cap}", end="pad"
        ) as loader:
            seen = sorted(i for batch in loader for i in batch.ids if i >= 0)
        assert seen == list(range(SAMPLES))


@both
def test_where_bytes_bind_windows_stay_short(images: Path, job: str, backend: Backend) -> None:
    with _loader(images, hx.TokenBudget(1000, max_bytes=600), backend) as loader:
        batches = iter(loader)
        next(batches)
        window = loader._progress.window
        assert window is not None
        assert window.steps <= 9


@both
@pytest.mark.parametrize("batching", [hx.TokenBudget(10), hx.Packed(10), hx.Buckets(10)])
def test_a_cost_that_recipes_do_not_declare_is_named(
    images: Path, job: str, backend: Backend, batching: Any
) -> None:
    with (
        _loader(images, batching, backend, Made(tokens="none")) as loader,
        pytest.raises(RecipeError, match=r"declares no cost 'tokens', which .* counts; it declares targets"),
    ):
        next(iter(loader))


@both
def test_a_data_set_of_samples_that_are_all_too_large_is_an_error(
    images: Path, job: str, backend: Backend
) -> None:
    batching = hx.TokenBudget(10, max_bytes=50, oversize="skip")
    with (
        _loader(images, batching, backend) as loader,
        pytest.raises(Oversize, match="all 60 samples are larger"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("end", ["drop", "pad"])
def test_a_step_has_a_sample_whatever_is_skipped(images: Path, end: Any) -> None:
    batching = hx.TokenBudget(2, oversize="skip", regroup=1)
    with (
        _loader(images, batching, "inline", Made(tokens="id"), end=end, epochs=3) as loader,
        pytest.warns(hx.HelixWarning, match="leaves out samples") as warned,
    ):
        steps = list(loader)
    assert [str(w.message).partition(" of epoch ")[2][0] for w in warned] == ["0", "1", "2"]
    last = max(b.step for b in steps)
    assert all(b.global_samples > 0 for b in steps if b.step < last)


def test_fewer_places_with_more_samples_get_a_ring_that_fits(images: Path, job: str) -> None:
    saving = _loader(images, hx.FixedBatch(2), "daemon", micro_batches=2, name="a")
    batches = iter(saving)
    for _ in range(2):
        next(batches)
    state = saving.state_dict()
    saving.close()
    with _loader(images, hx.FixedBatch(4), "daemon", name="b") as loader:
        loader.load_state_dict(state)
        assert len(next(iter(loader)).ids) == 4


def test_a_state_saved_right_after_a_restore_is_as_good(images: Path) -> None:
    batching = hx.FixedBatch(3, regroup=4)
    loader = _loader(images, batching, "inline", dp_rank=0, dp_size=2)
    next(iter(loader))
    state = loader.state_dict()
    again = _loader(images, batching, "inline", dp_rank=0, dp_size=2)
    again.load_state_dict(state)
    assert again.state_dict() == state
    other = _loader(images, batching, "inline", dp_rank=0, dp_size=1)
    other.load_state_dict(again.state_dict())
    assert sum(b.num_samples for b in other) == SAMPLES - 6
    again.set_epoch(1)
    assert coverage(decoded(again.state_dict())).epochs[0].delivered == 6


def test_ranks_go_back_to_a_state_of_other_ranks_one_after_the_other(images: Path, job: str) -> None:
    batching = hx.FixedBatch(3, regroup=4)
    saving = _loader(images, batching, "inline")
    batches = iter(saving)
    for _ in range(2):
        next(batches)
    state = json.loads(json.dumps(saving.state_dict()))
    ranks = [_loader(images, batching, "daemon", dp_rank=r, dp_size=2, name="t") for r in range(2)]
    seen: list[int] = []

    def run(loader: hx.Loader) -> None:
        next(iter(loader))
        loader.load_state_dict(state)
        seen.extend(i for b in loader for i in b.ids)

    threads = [threading.Thread(target=run, args=(loader,)) for loader in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for loader in ranks:
        loader.close()
    assert len(seen) == len(set(seen)) == SAMPLES - 6


@pytest.mark.filterwarnings("ignore:.*masked")
@both
def test_an_epoch_may_be_gone_through_again_and_again(images: Path, job: str, backend: Backend) -> None:
    with _loader(images, hx.FixedBatch(4), backend, Made(bad=(5, 17, 20, 30))) as loader:
        for _ in range(4):
            loader.set_epoch(0)
            assert sum(int((~batch.valid).sum()) for batch in loader) == 4


def test_a_seek_beyond_a_window_ends_that_loader_and_no_other(images: Path, job: str) -> None:
    with (
        _loader(images, hx.FixedBatch(2), "daemon", name="good", epochs=None) as good,
        _loader(images, hx.FixedBatch(3, regroup=4), "daemon", name="odd", epochs=None) as odd,
    ):
        batches, others = iter(good), iter(odd)
        next(batches)
        next(others)
        start = Start(Base(7, 0, 0), Position(7, 500, 0))
        odd._progress.go_to(start)
        odd._source.seek(start)
        with pytest.raises(UsageError, match=r"asks for step 500 of epoch 7, and its window ends with step"):
            next(others)
        for _ in range(40):
            next(batches)


def test_a_start_beyond_a_window_is_told_at_once(images: Path, job: str) -> None:
    with (
        _loader(images, hx.FixedBatch(3, regroup=4), "daemon") as odd,
        pytest.raises(UsageError, match="asks for step 500"),
    ):
        odd._source.next(Start(Base(0, 0, 0), Position(0, 500, 0)))


def test_bad_states_and_epochs_are_usage_errors(images: Path) -> None:
    loader = _loader(images, hx.TokenBudget(9), "inline")
    next(iter(loader))
    state = loader.state_dict()
    for change in (
        {"base": {**state["base"], "bits": "é"}},
        {"recipe": {**state["recipe"], "params": "x"}},
        {"rest": {**state["rest"], "draw": 10**6}},
        {"left_out": [{**state["rest"], "draw": 10**6}]},
    ):
        with pytest.raises(UsageError, match="damaged"):
            loader.load_state_dict({**state, **change})
    with pytest.raises(UsageError, match="must lie in"):
        loader.set_epoch(2**61)
