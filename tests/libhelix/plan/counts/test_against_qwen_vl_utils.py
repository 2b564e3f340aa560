"""The counts equal those of qwen-vl-utils, over thousands of random shapes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhelix.plan.counts import qwen

from .shapes import many, outcome, rates, sides, totals

torch = pytest.importorskip("torch", reason="qwen-vl-utils needs torch")
pytest.importorskip("torchvision", reason="qwen-vl-utils needs torchvision")
utils = pytest.importorskip(
    "qwen_vl_utils.vision_process", reason="qwen-vl-utils, an independent oracle of the counts, is missing"
)

limits = st.tuples(st.integers(1, 2_000_000), st.integers(0, 20_000_000)).map(lambda n: (n[0], n[0] + n[1]))


@many
@given(sides, sides, st.sampled_from([28, 32]), limits)
def test_smart_resize(height: int, width: int, factor: int, limits: tuple[int, int]) -> None:
    theirs = outcome(lambda: utils.smart_resize(height, width, factor, *limits))
    if theirs is not None and 0 in theirs:
        theirs = None  # no picture can have this size
    assert outcome(lambda: qwen.smart_resize(height, width, factor, *limits, "qwen-vl-utils")) == theirs


@many
@given(sides, sides)
def test_images(height: int, width: int) -> None:
    theirs = outcome(lambda: utils.smart_resize(height, width, 28))
    ours = outcome(lambda: qwen.image(height, width))
    assert theirs == (ours and (ours.height, ours.width))


@pytest.mark.parametrize("model", ["qwen2.5-vl", "qwen3-vl"])
@pytest.mark.parametrize(
    ("frames", "height", "width"), [(4, 36, 64), (8, 240, 320), (2, 70, 42), (6, 300, 20), (500, 9, 16)]
)
@pytest.mark.parametrize(
    "options",
    [{}, {"total_pixels": 1_000_000}, {"min_pixels": 50_000, "max_pixels": 60_000}],
    ids=["defaults", "total", "limits"],
)
def test_videos(model: Any, frames: int, height: int, width: int, options: dict[str, Any]) -> None:
    image = pytest.importorskip("PIL.Image", reason="qwen-vl-utils reads pictures with Pillow")
    patch = 14 if model == "qwen2.5-vl" else 16
    video = [image.new("RGB", (width, height))] * frames
    resized: list[tuple[int, int]] = []

    def resize(_: Any, size: list[int], **__: Any) -> Any:
        resized.append((size[0], size[1]))
        return torch.zeros(1)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(utils, "fetch_image", lambda ele, *_: ele["image"])
        patched.setattr(utils.transforms.functional, "resize", resize)
        utils.fetch_video({"video": video, **options}, image_patch_size=patch)
    counts = qwen.video(height, width, frames, model=model, **options)
    assert [(counts.height, counts.width)] == resized


@many
@given(totals, rates, st.floats(0.1, 8), st.integers(1, 60), st.none() | st.integers(60, 900))
def test_frame_counts(total: int, fps: float, rate: float, least: int, most: int | None) -> None:
    asked = {"fps": rate, "min_frames": least} | ({} if most is None else {"max_frames": most})
    ours = outcome(lambda: qwen.frame_count(total, fps, rate=rate, min_frames=least, max_frames=most or 768))
    assert ours == outcome(lambda: utils.smart_nframes(asked, total, fps))


@many
@given(totals, rates, st.integers(1, 900))
def test_given_frame_counts(total: int, fps: float, frames: int) -> None:
    ours = outcome(lambda: qwen.frame_count(total, fps, frames=frames))
    assert ours == outcome(lambda: utils.smart_nframes({"nframes": frames}, total, fps))


@many
@given(st.integers(2, 300_000), st.integers(1, 384), st.integers(0, 5000))
def test_frame_indices(total: int, pairs: int, first: int) -> None:
    theirs = torch.linspace(first, first + total - 1, 2 * pairs).round().long().tolist()
    assert list(qwen.frame_indices(total, 2 * pairs, first=first)) == theirs


@many
@given(totals, rates, st.none() | st.floats(-1, 400), st.none() | st.floats(-1, 400))
def test_clips(total: int, fps: float, begin: float | None, end: float | None) -> None:
    asked = {"video_start": begin, "video_end": end}
    theirs = outcome(lambda: utils.calculate_video_frame_range(asked, total, fps))
    assert outcome(lambda: qwen.clip_range(total, fps, begin, end)) == (theirs and theirs[::2])
