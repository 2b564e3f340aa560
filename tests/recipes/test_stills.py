"""Samples whose frames are images: a Clip of them, in the order of their names."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image as Pil

import libhelix as hx
from libhelix.errors import MediaError, RecipeError, UsageError
from libhelix.index.build import build
from libhelix.index.formats import Options
from libhelix.index.read import Index
from libhelix.media import probe_file
from libhelix.recipe import MAX_CUTS, Part, Rng, Sample, check_descriptor
from libhelix.recipes import Clip
from tests.clips import make_clip, picture, read_number

RNG = Rng(0, 0, 0)
SIZE = (48, 96)


def save_frames(folder: Path, count: int, suffix: str = "png") -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{i}.{suffix}" for i in range(count)]
    for i, path in enumerate(paths):
        Pil.fromarray(picture(i, SIZE)).save(path)
    return paths


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    """Twelve frames, listed as a file system would: 0, 1, 10, 11, 2, ..."""
    paths = save_frames(tmp_path / "frames", 12)
    items = [probe_file(path) for path in sorted(paths)]
    named = [msgspec.structs.replace(item, name=Path(item.path).name) for item in items]
    return Sample(0, "s", tuple(named))


def fill(recipe: Clip, sample: Sample, bounds: tuple[int, ...] | None = None) -> np.ndarray:
    desc = check_descriptor(recipe.describe(sample, RNG), "Clip")
    out = np.full(desc.fields[0].shape, 77, np.uint8)
    for a, b in pairwise(bounds or (0, desc.units)):
        recipe.fill(sample, desc, Part(a, b, desc.units), {"video": out[a:b]})
    return out


def test_images_are_frames_in_the_order_of_their_names(sample: Sample) -> None:
    out = fill(Clip(frames=12, size=SIZE), sample)
    np.testing.assert_array_equal(out, [picture(i, SIZE) for i in range(12)])
    assert [read_number(image) for image in fill(Clip(frames=4, size=SIZE), sample)] == [1, 4, 7, 10]


def test_they_are_cut_at_every_frame_and_equal_whole_and_in_parts(sample: Sample) -> None:
    recipe = Clip(frames=24, size=(30, 40), order="TCHW", fit="letterbox", grey=9)
    desc = recipe.describe(sample, RNG)
    assert (desc.cuts, desc.kind, desc.threads) == (tuple(range(2, 24, 2)), "png", False)
    assert len(desc.segment_us) == 12
    whole = fill(recipe, sample)
    np.testing.assert_array_equal(fill(recipe, sample, (0, *desc.cuts, 24)), whole)
    np.testing.assert_array_equal(fill(recipe, sample, tuple(range(25))), whole)


def test_many_frames_have_few_cuts(tmp_path: Path) -> None:
    items = tuple(probe_file(path) for path in save_frames(tmp_path / "f", 30))
    desc = Clip(frames=30, size=SIZE).describe(Sample(0, "s", items), RNG)
    assert len(desc.cuts) == MAX_CUTS
    check_descriptor(desc, "Clip")


def test_a_rate_needs_to_know_how_many_are_a_second(sample: Sample) -> None:
    with pytest.raises(RecipeError, match=r"s: its frames are images, which have no times; .*fps=25"):
        Clip(rate=2, layout="pad").describe(sample, RNG)
    desc = Clip(rate=2, fps=4, layout="pad", size=SIZE).describe(sample, RNG)
    assert desc.draws == (0, 2, 4, 6, 8, 10)
    assert Clip(rate=3, fps=2.5, layout="pad").describe(sample, RNG).units == 15
    with pytest.raises(UsageError, match=r"Clip\(fps=0\)"):
        Clip(rate=2, fps=0, layout="pad")


def test_a_video_has_its_own_times(tmp_path: Path, sample: Sample) -> None:
    film = Sample(0, "v", (probe_file(make_clip(tmp_path / "a.mp4", 25)), *sample.items))
    for fps in (None, 3.0):
        desc = Clip(rate=5, fps=fps, layout="pad", size=SIZE).describe(film, RNG)
        assert desc.draws == (0, 5, 10, 15, 20)


def test_one_image_is_no_film_unless_it_is_called_so(sample: Sample) -> None:
    (item, *_) = sample.items
    with pytest.raises(MediaError, match="needs an item of kind video, the sample has image"):
        Clip(frames=2).describe(Sample(0, "s", (item,)), RNG)
    named = msgspec.structs.replace(item, name="video/0")
    assert Clip(frames=2).describe(Sample(0, "s", (named,)), RNG).draws == (0, 0)


def test_a_broken_frame_is_named(sample: Sample) -> None:
    path = Path(sample.items[1].path)
    body = path.read_bytes()
    path.write_bytes(body[: len(body) // 2])
    with pytest.raises(MediaError, match=path.name):
        fill(Clip(frames=12, size=SIZE), sample)


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_jsonl_lists_frames_as_a_video(suffix: str, tmp_path: Path) -> None:
    paths = save_frames(tmp_path / "frames", 11, suffix)
    Pil.fromarray(picture(99, SIZE)).save(tmp_path / "other.png")
    lines: list[dict[str, Any]] = [
        {"id": "listed", "video": [str(path) for path in paths]},
        {"id": "both", "image": "other.png", "video": [str(path) for path in paths[:3]]},
        {"id": "images", "images": [str(path) for path in paths[:10]]},
    ]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    build([tmp_path / "x.jsonl"], tmp_path / "x.arrow", options=Options())
    seen = {
        sample.key: [read_number(image) for image in fill(Clip(frames=3, size=SIZE), sample)]
        for sample in Index.open(tmp_path / "x.arrow")
    }
    assert seen == {"listed": [1, 5, 9], "both": [0, 1, 2], "images": [1, 5, 8]}


def test_a_folder_of_frames_is_a_sample(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, count in (("a", 3), ("b", 12)):
        save_frames(tmp_path / "in" / name, count, "jpg")
    output = tmp_path / "x.arrow"
    for source, keys in (("in", ["a", "b"]), ("in/b", ["b"])):
        build([tmp_path / source], output, options=Options(group="folder"), rebuild=True)
        assert build([tmp_path / source], output, options=Options(group="folder")).changed == 0
        index = Index.open(output)
        assert [sample.key for sample in index] == keys
    out = fill(Clip(frames=12, size=SIZE), index[0])
    assert [read_number(image) for image in out] == list(range(12))


def test_a_loader_gives_them(tmp_path: Path) -> None:
    paths = save_frames(tmp_path / "frames", 4)
    line = json.dumps({"id": "a", "video": [str(path) for path in paths]})
    (tmp_path / "x.jsonl").write_text(line + "\n" + line.replace('"a"', '"b"') + "\n")
    loader = hx.Loader(
        tmp_path / "x.jsonl",
        recipe=Clip(frames=4, size=SIZE),
        batching=hx.FixedBatch(2),
        shuffle=False,
        backend="inline",
    )
    with loader:
        (batch,) = list(loader)
    assert [[read_number(image) for image in clip] for clip in batch["video"].numpy()] == [[0, 1, 2, 3]] * 2
