"""Clip and Image: which frames, which costs, and the same pixels whole and in parts."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhelix.errors import MediaError, UsageError
from libhelix.media import probe_file
from libhelix.recipe import (
    MAX_CUTS,
    Descriptor,
    Pack,
    Pad,
    Part,
    Ragged,
    Recipe,
    Rng,
    Sample,
    Stack,
    VideoInfo,
    check_descriptor,
)
from libhelix.recipes import Clip, Image
from libhelix.recipes.clip import frames_at_rate, uniform_frames
from tests.clips import make_clip, picture, read_number
from tests.reference import decode_all, fit, reference_clip

RNG = Rng(0, 0, 0)


def sample_of(path: Path) -> Sample:
    return Sample(0, path.name, (probe_file(path),))


def fill(recipe: Recipe, sample: Sample, bounds: tuple[int, ...] | None = None) -> tuple[Descriptor, Any]:
    """All fields of a sample, written in the parts that `bounds` (whole by default) make."""
    desc = check_descriptor(recipe.describe(sample, RNG), "recipe")
    field = desc.fields[0]
    out = np.full(field.shape, 77, np.uint8)
    bounds = bounds or (0, desc.units)
    for a, b in pairwise(bounds):
        rows = out[a:b] if field.rows_per_unit else out
        recipe.fill(sample, desc, Part(a, b, desc.units), {field.name: rows})
    return desc, out


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clip(tmp_path_factory.mktemp("clip") / "a.mp4", 60, gop=12, bframes=2)


@pytest.mark.parametrize("order", ["THWC", "TCHW"])
@pytest.mark.parametrize("settings", [{}, {"rotation": 90}, {"codec": "hevc", "open_gop": True}])
def test_a_clip_equals_the_reference_whole_and_in_parts(
    settings: dict[str, Any], order: Any, tmp_path: Path
) -> None:
    path = make_clip(tmp_path / "a.mp4", 60, **settings)
    sample = sample_of(path)
    recipe = Clip(frames=9, size=(56, 72), order=order)
    desc, whole = fill(recipe, sample)
    np.testing.assert_array_equal(whole, reference_clip(path, desc.draws, (56, 72), order))
    assert desc.cuts
    for bounds in ((0, *desc.cuts, 9), (0, desc.cuts[0], 9), tuple(range(10))):
        np.testing.assert_array_equal(fill(recipe, sample, bounds)[1], whole)


def test_more_frames_than_there_are_repeat(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 3)
    desc, out = fill(Clip(frames=7, size=(48, 96)), sample_of(path))
    assert desc.draws == (0, 0, 1, 1, 1, 2, 2)
    assert [read_number(image) for image in out] == list(desc.draws)


def test_a_strided_target_is_filled(clip: Path) -> None:
    recipe = Clip(frames=4, size=(48, 96))
    sample = sample_of(clip)
    desc, whole = fill(recipe, sample)
    base = np.zeros((4, 48, 2 * 96, 3), np.uint8)
    recipe.fill(sample, desc, Part(0, 4, 4), {"video": base[:, :, ::2]})
    np.testing.assert_array_equal(base[:, :, ::2], whole)
    assert not base[:, :, 1::2].any()


def test_the_descriptor_says_what_will_come(clip: Path) -> None:
    desc = Clip(frames=8, size=(32, 64)).describe(sample_of(clip), RNG)
    assert desc.draws == (3, 11, 18, 26, 33, 41, 48, 56)
    assert desc.cuts == (2, 3, 5, 6)
    assert desc.units == 8
    assert desc.costs == {"tokens": 8 * 2 * 4, "frames": 8}
    assert desc.fields[0].shape == (8, 32, 64, 3)
    assert Clip(frames=1, size=(8, 8)).describe(sample_of(clip), RNG).costs["tokens"] == 1
    assert Clip(frames=8, size=(32, 64)).describe(sample_of(clip), RNG) == desc


def test_cuts_stay_few(tmp_path: Path) -> None:
    sample = sample_of(make_clip(tmp_path / "a.mp4", 60, gop=1, bframes=0))
    desc = Clip(frames=60, size=(16, 16)).describe(sample, RNG)
    assert len(desc.cuts) == MAX_CUTS
    check_descriptor(desc, "Clip")


def test_files_that_cannot_seek_are_not_cut(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.ts", 48)
    desc, out = fill(Clip(frames=6, size=(48, 96)), sample_of(path))
    assert desc.cuts == ()
    np.testing.assert_array_equal(out, reference_clip(path, desc.draws, (48, 96)))


@given(st.integers(1, 5000), st.integers(1, 64))
def test_uniform_frames_lie_in_the_middle_of_equal_stretches(total: int, n: int) -> None:
    frames = uniform_frames(total, n)
    assert len(frames) == n
    assert all(0 <= f < total for f in frames)
    assert all(f <= Fraction((2 * i + 1) * total, 2 * n) < f + 1 for i, f in enumerate(frames))


def test_a_rate_takes_the_frame_on_screen(tmp_path: Path) -> None:
    times = [0, 1, 2, 5, 6, 13, 15, 16, 17, 27]
    path = make_clip(tmp_path / "a.mp4", 10, fps=50, pts=times, gop=5, start=50)
    recipe = Clip(rate=10, layout="pad", size=(48, 96))
    desc, out = fill(recipe, sample_of(path))
    # Shown at 0, 5, 10, ... fiftieths of a second after the first frame.
    expected = [max(i for i, t in enumerate(times) if t <= at) for at in range(0, 28, 5)]
    assert list(desc.draws[: len(expected)]) == expected
    decoded = decode_all(path)
    for image, frame in zip(out, desc.draws, strict=True):
        np.testing.assert_array_equal(image, fit(decoded[frame], (48, 96)))


def test_a_rate_of_the_video_itself_takes_every_frame(clip: Path) -> None:
    info = probe_file(clip).video
    assert info is not None
    assert frames_at_rate(info, 25, None) == tuple(range(60))
    assert frames_at_rate(info, 12.5, None) == tuple(range(0, 60, 2))
    assert frames_at_rate(info, 25, 4) == (7, 22, 37, 52)
    assert frames_at_rate(info, 0.01, None) == (0,)


@given(
    rate=st.sampled_from([0.1, 0.3, 1, 2, 23.976, 29.97, 240]),
    base=st.sampled_from([(1, 1000), (1, 90000), (1001, 30000), (1, 1)]),
    frames=st.integers(1, 400),
    step=st.integers(1, 3003),
)
def test_times_of_a_rate_are_exact(rate: float, base: tuple[int, int], frames: int, step: int) -> None:
    num, den = base
    info = VideoInfo(
        codec="h264",
        stream=0,
        width=2,
        height=2,
        rotation=0,
        frames=frames,
        fps=1.0,
        duration_s=frames * step * num / den,
        time_base=base,
        start_pts=7,
        pts_step=step,
    )
    most = 50
    chosen = frames_at_rate(info, rate, most)
    period = 1 / Fraction(str(rate))
    duration = Fraction(frames * step * num, den)
    wanted = [i * period for i in range(2 * most) if i * period < duration]
    if len(wanted) <= most:
        assert [int(t / Fraction(step * num, den)) for t in wanted] == list(chosen)
    assert 1 <= len(chosen) <= most
    assert list(chosen) == sorted(chosen)


@pytest.mark.parametrize(
    ("name", "layout"), [("stack", Stack), ("pad", Pad), ("pack", Pack), ("ragged", Ragged)]
)
def test_layouts(name: Any, layout: type, clip: Path) -> None:
    assert isinstance(Clip(frames=2, layout=name).describe(sample_of(clip), RNG).fields[0].layout, layout)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"frames": 8, "rate": 2},
        {"frames": 0},
        {"frames": 8, "max_frames": 4},
        {"rate": 2},
        {"rate": 0, "layout": "pad"},
        {"rate": 2, "max_frames": 0, "layout": "pad"},
        {"frames": 8, "size": (0, 5)},
        {"frames": 8, "size": (224, 224, 3)},
        {"frames": 8, "size": 32},
        {"frames": 8, "order": "CHW"},
        {"frames": 8, "layout": "list"},
    ],
)
def test_wrong_parameters_say_what_to_write(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"Clip"):
        Clip(**settings)


def test_the_wrong_kind_of_sample_is_named(clip: Path) -> None:
    with pytest.raises(
        MediaError, match="needs an item of kind image, the sample has video; leave such samples out"
    ):
        Image().describe(sample_of(clip), RNG)


@pytest.mark.parametrize("order", ["HWC", "CHW"])
def test_an_image_is_one_unit(order: Any, tmp_path: Path) -> None:
    from PIL import Image as Pil

    Pil.fromarray(picture(9, (40, 60))).save(tmp_path / "a.png")
    desc, out = fill(Image(size=(40, 60), order=order), sample_of(tmp_path / "a.png"))
    expected = picture(9, (40, 60))
    np.testing.assert_array_equal(out, expected if order == "HWC" else expected.transpose(2, 0, 1))
    assert desc.units == 1
    with pytest.raises(UsageError):
        Image(size=(1, 2), order="THWC")  # type: ignore[arg-type]


def test_parameters_travel_as_plain_values() -> None:
    recipe = Clip(rate=2, max_frames=8, layout="pad")
    assert msgspec.convert(msgspec.to_builtins(recipe), Clip) == recipe


# ---- shrinking ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["pad", "pack", "ragged"])
@pytest.mark.parametrize("clip_of", [{"frames": 12}, {"rate": 5.0}, {"rate": 5.0, "max_frames": 11}])
@pytest.mark.parametrize(("cap", "frames"), [(9 * 8, 8), (9 * 3 + 8, 3), (9, 1)])
def test_a_clip_shrinks_to_the_frames_that_fit(
    clip: Path, layout: Any, clip_of: dict[str, Any], cap: int, frames: int
) -> None:
    sample = sample_of(clip)
    recipe = Clip(size=(48, 56), layout=layout, **clip_of)
    whole = recipe.describe(sample, RNG)
    assert whole.units > 8
    shrunk = recipe.shrink(sample, RNG, {"tokens": cap})
    assert shrunk is not None
    check_descriptor(shrunk, "Clip")
    assert (shrunk.units, shrunk.costs) == (frames, {"tokens": 9 * frames, "frames": frames})
    fewer = {"frames": frames} if "frames" in clip_of else {**clip_of, "max_frames": frames}
    assert shrunk == Clip(size=(48, 56), layout=layout, **fewer).describe(sample, RNG)
    assert recipe.shrink(sample, RNG, {"tokens": cap, "frames": 2}) == recipe.shrink(
        sample, RNG, {"frames": min(2, frames)}
    )


def test_clips_of_one_length_and_single_frames_do_not_shrink(clip: Path) -> None:
    sample = sample_of(clip)
    assert Clip(frames=12, size=(48, 56)).shrink(sample, RNG, {"tokens": 20}) is None
    assert Clip(frames=12, size=(48, 56), layout="pad").shrink(sample, RNG, {"tokens": 8}) is None
    assert Clip(frames=12, size=(48, 56), layout="pad").shrink(sample, RNG, {"patches": 8}) is None
    assert Image(size=(48, 56)).shrink(sample, RNG, {"tokens": 8}) is None


def test_a_recipe_over_clip_shrinks_by_its_own_describe(clip: Path) -> None:
    class Marked(Clip, frozen=True):
        def describe(self, sample: Sample, rng: Rng) -> Descriptor:
            return msgspec.structs.replace(super().describe(sample, rng), group="mine")

    shrunk = Marked(frames=12, size=(48, 56), layout="pad").shrink(sample_of(clip), RNG, {"tokens": 20})
    assert shrunk is not None
    assert (shrunk.units, shrunk.group) == (2, "mine")
