"""Clips of video diffusion transformers: frames, sizes, groups and tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import libhelix as hx
from libhelix.errors import MediaError, UsageError
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.plan.counts.buckets import bucket_for, bucket_sizes
from libhelix.recipe import Rng
from libhelix.recipes import VideoDiT
from tests.clips import make_clip


def test_sizes_of_480p() -> None:
    sizes = bucket_sizes(480 * 832)
    assert (480, 832) in sizes
    assert (832, 480) in sizes
    assert bucket_for(720, 1280, 480 * 832) == (480, 832)
    assert bucket_for(1080, 1080, 480 * 832) == (640, 624)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(64 * 64, 2000 * 2000))
def test_sizes_are_multiples_of_about_the_area(height: int, width: int, area: int) -> None:
    h, w = bucket_for(height, width, area)
    assert h % 16 == w % 16 == 0
    assert 0 < h * w <= area + 16 * (h + w)
    assert all((b, a) in bucket_sizes(area) for a, b in bucket_sizes(area))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("clips")
    for frames, size in ((48, (160, 96)), (20, (96, 160)), (3, (160, 96)), (120, (128, 128))):
        make_clip(folder / f"{frames:03}.mp4", frames, size=size)
    build([folder], folder / "x.arrow")
    return Index.open(folder / "x.arrow")


def test_a_clip_has_4k_plus_1_frames_in_its_bucket(index: Index) -> None:
    recipe = VideoDiT(area=96 * 160, frames=33, rate=None)
    found = [recipe.describe(sample, Rng(0, 0, sample.id)) for sample in index]
    assert [d.units for d in found] == [1, 17, 33, 33]
    assert [d.group for d in found] == ["1x160x96", "17x96x160", "33x160x96", "33x128x112"]
    assert [d.costs["tokens"] for d in found] == [60, 5 * 60, 9 * 60, 9 * 56]
    assert [f.shape for f in found[1].fields] == [(17, 3, 96, 160)]


def test_where_a_stretch_begins(index: Index) -> None:
    sample = index[3]  # 120 frames

    def begins(start: str, seed: int = 0) -> int:
        recipe = VideoDiT(area=96 * 160, frames=33, rate=None, start=start)  # type: ignore[arg-type]
        chosen = recipe.describe(sample, Rng(seed, 0, 3)).draws
        assert chosen == tuple(range(chosen[0], chosen[0] + 33))
        return int(chosen[0])

    assert begins("head") == 0
    assert begins("middle") == 43
    drawn = {begins("random", seed) for seed in range(200)}
    assert min(drawn) < 10
    assert max(drawn) > 77
    assert all(0 <= begin <= 87 for begin in drawn)


def test_too_short_a_clip_is_named(index: Index) -> None:
    with pytest.raises(MediaError, match=r"003\.mp4: has 3 frames at this rate, 5 are wanted"):
        VideoDiT(rate=None, least=5).describe(index[0], Rng(0, 0, 0))


def test_a_clip_shrinks_by_whole_groups(index: Index) -> None:
    recipe = VideoDiT(area=96 * 160, frames=33, rate=None)
    shrunk = recipe.shrink(index[3], Rng(0, 0, 3), {"tokens": 300})
    assert shrunk is not None
    assert shrunk.units == 17
    assert shrunk.costs["tokens"] == 280
    assert recipe.shrink(index[3], Rng(0, 0, 3), {"tokens": 55}) is None


@pytest.mark.parametrize(
    "wrong", [{"frames": 80}, {"area": 10}, {"rate": 0.0}, {"rule": "x"}, {"start": "end"}, {"order": "HW"}]
)
def test_settings_without_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="VideoDiT"):
        VideoDiT(**wrong)  # type: ignore[arg-type]


def test_batches_are_of_one_bucket(index: Index) -> None:
    loader = hx.Loader(
        index.path,
        recipe=VideoDiT(area=96 * 160, frames=33, rate=None),
        batching=hx.Buckets(1200),
        end="pad",
        backend="inline",
    )
    shapes = set()
    with loader:
        for batch in loader:
            valid = batch["video"][batch.valid]
            shapes.add(tuple(valid.shape[1:]))
            assert valid.float().std() > 1
    assert {(33, 3, 160, 96), (33, 3, 128, 112), (17, 3, 96, 160)} <= shapes
