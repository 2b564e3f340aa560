"""On real files, from many encoders: what describe predicts is what decoding gives, for every one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest

from libhelix.errors import MediaError
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.recipe import Part, Recipe, Rng, Sample, VideoInfo, check_descriptor
from libhelix.recipes import Clip, Image

ROOT = Path(__file__).resolve().parents[2]
PLACES = [Path(os.environ.get("HELIX_TEST_DATA", ROOT / "shared" / "data")), ROOT.parent / "shared" / "data"]
BAD = {
    "broken/bad_huffman.jpg",
    "broken/corrupt.jpg",
    "broken/demo.ogv",
    "image/ax_jpeg_pixel-motion-photo-shortened.jpg",  # one byte short, by FFmpeg's count
}
"""Those that only decoding shows to be bad."""
MOST_FRAMES = 2000
"""Longer ones are not decoded whole."""
CLIPS = (
    Clip(frames=3, size=(32, 48)),
    Clip(rate=1, max_frames=4, size=(48, 32), order="TCHW", layout="pad"),
)
IMAGES = (Image(size=(32, 48)), Image(size=(24, 16), order="CHW"))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    media = next((place / "media" for place in PLACES if (place / "media").is_dir()), None)
    if media is None:
        pytest.skip(f"no real media: neither of {', '.join(map(str, PLACES))} is there")
    path = tmp_path_factory.mktemp("index") / "real.arrow"
    build([media], path)
    return Index.open(path)


def _written(recipe: Recipe, sample: Sample, value: int) -> tuple[dict[str, int], np.ndarray]:
    """Declared costs, and the field after all parts were filled over `value`."""
    desc = check_descriptor(recipe.describe(sample, Rng(0, 0, sample.id)), "recipe")
    (field,) = desc.fields
    out = np.full(field.shape, value, field.dtype)
    for a, b in pairwise((0, *desc.cuts, desc.units)):
        rows = out[a:b] if field.rows_per_unit else out
        recipe.fill(sample, desc, Part(a, b, desc.units), {field.name: rows})
    return dict(desc.costs), out


def _cases(index: Index) -> Iterator[tuple[Sample, Recipe]]:
    for sample in index:
        kind = sample.items[0].kind
        for recipe in CLIPS if kind == "video" else IMAGES if kind == "image" else ():
            yield sample, recipe


def test_every_file_fills_exactly_the_shape_that_was_predicted(index: Index) -> None:
    bad = set()
    for sample, recipe in _cases(index):
        try:
            costs, out = _written(recipe, sample, 0xAA)
            _, again = _written(recipe, sample, 0x55)
        except MediaError:
            bad.add(sample.key)
            continue
        # What was over 0xAA and 0x55 the same was written, all of it.
        np.testing.assert_array_equal(out, again, err_msg=sample.key)
        assert isinstance(recipe, (Clip, Image))
        h, w = recipe.size
        frames = out.size // (h * w * 3)
        assert costs["tokens"] == max(1, frames * (h // 16) * (w // 16)), sample.key
        if isinstance(recipe, Clip):
            assert costs["frames"] == frames == len(out), sample.key
            video = sample.items[0].video
            assert video is not None
            assert frames == (recipe.frames or _frames_at_one_per_second(video)), sample.key
    assert bad == BAD


def _frames_at_one_per_second(video: VideoInfo) -> int:
    return min(4, max(1, int(np.ceil(round(video.duration_s, 6)))))


def test_every_file_has_the_frames_that_the_index_counts(index: Index) -> None:
    counted = 0
    for sample in index:
        video = sample.items[0].video
        if video is None or video.frames > MOST_FRAMES or sample.key in BAD:
            continue
        with av.open(sample.items[0].path) as container:
            stream = container.streams[video.stream]
            stream.codec_context.thread_type = "AUTO"
            assert sum(1 for _ in container.decode(stream)) == video.frames, sample.key
        counted += 1
    assert counted > 30
