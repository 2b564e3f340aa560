"""The demo's recipe, and its loops over a real index."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from bench.ceiling import LoopSettings, Ring, measure
from bench.clips import ClipPlan, encode
from bench.demo.recipe import LabelledClip, class_of
from bench.results import BenchFailed
from bench.samples import Visit, one_epoch, read_samples, write_index
from libhelix.errors import RecipeError
from libhelix.recipe import Part, Rng, Sample, check_descriptor

RECIPE = LabelledClip(rate=12.0, max_frames=8, size=(32, 48))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    for i, frames in enumerate((6, 12, 48)):
        name = f"class{i}/clip{i}.mp4"
        plan = ClipPlan(name, codec="mpeg4", width=64, height=48, frames=frames, direction=i, seed=i)
        encode(plan, folder / "clips")
    return write_index(folder / "clips", folder / "index.arrow")


@pytest.fixture(scope="module")
def samples(index: Path) -> list[Sample]:
    return read_samples(index)


def test_the_class_is_the_number_of_the_parent_folder() -> None:
    assert class_of("class3/clip.mp4") == 3
    assert class_of("deep/er/class12/clip.mp4") == 12


@pytest.mark.parametrize("key", ["clip.mp4", "class1/more/clip.mp4", "class/clip.mp4", "classy/clip.mp4"])
def test_other_folders_are_an_error_that_names_the_key(key: str) -> None:
    with pytest.raises(RecipeError, match=key):
        class_of(key)


def test_tokens_follow_the_frames_up_to_the_limit(samples: list[Sample]) -> None:
    described = [check_descriptor(RECIPE.describe(s, Rng(0, 0, s.id)), "LabelledClip") for s in samples]
    assert [d.units for d in described] == [3, 6, 8]
    assert [d.costs["tokens"] for d in described] == [3 * 6, 6 * 6, 8 * 6]
    assert all([f.name for f in d.fields] == ["video", "label"] for d in described)


def test_the_label_is_written_with_the_first_part_only(samples: list[Sample]) -> None:
    for sample in samples:
        desc = RECIPE.describe(sample, Rng(0, 0, sample.id))
        video = np.zeros((desc.units, 32, 48, 3), np.uint8)
        label = np.full((), -1, np.int64)
        middle = desc.units // 2
        RECIPE.fill(sample, desc, Part(middle, desc.units, desc.units), {"video": video[middle:]})
        RECIPE.fill(sample, desc, Part(0, middle, desc.units), {"video": video[:middle], "label": label})
        assert label == class_of(sample.key)
        assert all(frame.std() > 10 for frame in video)


def test_the_bare_loops_decode_every_visit(index: Path, samples: list[Sample]) -> None:
    visits = tuple(one_epoch(samples, seed=1)) * 3
    seen: list[int] = []
    loops = LoopSettings(index=index, recipe=RECIPE, seed=0, visits=visits, ring_bytes=100_000)
    ceiling = measure(loops, sorted(os.sched_getaffinity(0))[:2], seen.append)
    assert ceiling.samples == 9
    assert ceiling.samples_per_s > 0
    assert seen[-1] >= 9
    assert not multiprocessing.active_children()


def test_a_loop_that_fails_fails_the_demo_and_leaves_no_process(index: Path) -> None:
    missing = LoopSettings(
        index=index.with_name("none.arrow"), recipe=RECIPE, seed=0, visits=(Visit(0, 0),), ring_bytes=1
    )
    with pytest.raises(BenchFailed, match="ended early"):
        measure(missing, sorted(os.sched_getaffinity(0))[:1], lambda _: None)
    assert not multiprocessing.active_children()


def test_the_ring_wraps_and_keeps_its_alignment(samples: list[Sample]) -> None:
    desc = RECIPE.describe(samples[2], Rng(0, 0, 2))
    ring = Ring(2 * 8 * 32 * 48 * 3)
    for _ in range(5):
        out = ring.take(desc)
        assert out["video"].shape == (8, 32, 48, 3)
        assert out["label"].shape == ()
        assert all(a.ctypes.data % 128 == 0 for a in out.values())
