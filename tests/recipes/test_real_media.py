"""On real files, from many encoders: what describe predicts is what decoding gives, for every one."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np
import pytest

from libhelix.errors import MediaError
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.recipe import Part, Recipe, Rng, Sample, VideoInfo, check_descriptor
from libhelix.recipes import Audio, Clip, Image

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
MOST_SECONDS = 100
"""Longer ones are not decoded whole."""
CLIPS = (
    Clip(frames=3, size=(32, 48)),
    Clip(rate=1, max_frames=4, size=(48, 32), order="TCHW", layout="pad"),
)
IMAGES = (Image(size=(32, 48)), Image(size=(24, 16), order="CHW"))
SOUNDS = (Audio(), Audio(rate=24_000, dtype="int16", seconds=1.5, start="random", layout="stack"))
BY_KIND: dict[str, tuple[Recipe, ...]] = {"video": CLIPS, "image": IMAGES, "audio": SOUNDS}


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
        for kind in dict.fromkeys(item.kind for item in sample.items):
            for recipe in BY_KIND.get(kind, ()):
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
        if isinstance(recipe, Audio):
            assert costs["samples"] == len(out), sample.key
            continue
        assert isinstance(recipe, (Clip, Image))
        h, w = recipe.size
        frames = out.size // (h * w * 3)
        assert costs["tokens"] == max(1, frames * (h // 16) * (w // 16)), sample.key
        if isinstance(recipe, Clip):
            assert costs["frames"] == frames == len(out), sample.key
            video = sample.item("video").video
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


def test_every_sound_has_the_samples_that_the_index_counts(index: Index) -> None:
    counted = 0
    for sample in index:
        for item in sample.all("audio"):
            assert item.audio is not None
            if item.audio.duration_s > MOST_SECONDS:
                continue
            with av.open(item.path, metadata_errors="replace") as container:
                decoded = sum(_sizes(container, item.audio.stream))
            # What the last frame of an mp4 holds behind its end is not heard.
            rest = 1023 if container.format.name.startswith("mov") else 0
            assert 0 <= decoded - item.audio.samples <= rest, sample.key
            counted += 1
    assert counted > 50


def _sizes(container: Any, stream: int) -> Iterator[int]:
    for packet in container.demux(container.streams[stream]):
        try:
            yield from (frame.samples for frame in packet.decode())
        except av.error.FFmpegError:
            continue  # one mp3 begins with a packet that is none


def test_every_sound_is_as_long_as_its_publisher_says(index: Index) -> None:
    """Against the list that comes with the files, which was not made by this code."""
    listed = Path(index.root).parent / "manifest.csv"
    with open(listed, newline="") as file:
        told = {
            row["path"].removeprefix("media/"): row
            for row in csv.DictReader(file)
            if row["modality"] == "audio"
        }
    checked = 0
    for sample in index:
        if sample.key not in told:
            continue
        info, row = sample.item("audio").audio, told[sample.key]
        assert info is not None
        rest = 1023 if row["container"] == "mov" else 0
        assert 0 <= int(row["frames"]) - info.samples <= rest, sample.key
        assert (info.rate, info.channels) == (int(row["sample_rate"]), int(row["channels"])), sample.key
        checked += 1
    assert checked == len(told) > 30
