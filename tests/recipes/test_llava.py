"""LLaVA-OneVision: crops of one picture, squares of several, frames of videos, and the tokens for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image as Pil

import libhelix as hx
from libhelix.errors import MediaError, RecipeError, UsageError
from libhelix.media import tiles
from libhelix.plan.counts import llava
from libhelix.recipe import Rng
from libhelix.recipes import InternVL, LlavaOneVision
from tests.clips import make_clip, picture, read_number
from tests.vlms import INTERNVL, LLAVA, checkpoint, filled, learned, sample_of, words

SAID = [("human", "<image>\nWhat is it?"), ("gpt", "A cat.")]
WATCHED = [("human", "<video>\nWhat is it?"), ("gpt", "A cat.")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llava")


@pytest.fixture(scope="module")
def ours(folder: Path) -> str:
    return checkpoint(folder / "ours", LLAVA)


@pytest.fixture(scope="module")
def wide(folder: Path) -> Path:
    return draw(folder / "wide.png", 1, (100, 230))


@pytest.fixture(scope="module")
def small(folder: Path) -> Path:
    return draw(folder / "small.png", 2, (60, 50))


@pytest.fixture(scope="module")
def clip(folder: Path) -> Path:
    return make_clip(folder / "a.mp4", 60, gop=12)


def draw(path: Path, number: int, size: tuple[int, int]) -> Path:
    Pil.fromarray(picture(number, size)).save(path)
    return path


def test_a_lone_picture_becomes_its_crops(folder: Path, ours: str, wide: Path) -> None:
    desc, out = filled(LlavaOneVision(ours), sample_of(folder, SAID, wide))
    counts = llava.anyres(100, 230)
    assert (counts.rows, counts.columns) == (1, 1)
    assert words(ours, out["input_ids"]) == (
        f"<|im_start|>user <image>*{counts.tokens}\nWhat is it?<|im_end|>"
        "<|im_start|>assistant \nA cat.<|im_end|>"
    )
    assert learned(ours, out) == ["\nA cat.<|im_end|>"]
    expected = np.empty((2, 3, 384, 384), np.uint8)
    tiles.anyres(np.asarray(Pil.open(wide)), 1, 1, expected, "exact")
    np.testing.assert_array_equal(out["pixel_values"], expected)
    assert out["image_sizes"].tolist() == [[100, 230]]
    assert out["batch_num_images"] == 1
    assert out["pixel_values_videos"].shape == (0, 3, 384, 384)
    assert out["num_frames"].shape == (0,)
    assert desc.costs == {
        "tokens": len(out["input_ids"]),
        "targets": int((out["labels"] != -100).sum()),
        "tiles": 2,
    }


def test_pictures_behind_the_text_leave_no_line_breaks(folder: Path, ours: str, wide: Path) -> None:
    turns = [("human", "What is it?\n<image>"), ("gpt", "A cat.")]
    _, out = filled(LlavaOneVision(ours), sample_of(folder, turns, wide))
    assert f"user <image>*{llava.anyres(100, 230).tokens}\nWhat is it?<|im_end|>" in words(
        ours, out["input_ids"]
    )


def test_a_large_picture_has_more_crops_than_tokens_of_them_remain(folder: Path, ours: str) -> None:
    large = draw(folder / "large.png", 3, (900, 1500))
    _, out = filled(LlavaOneVision(ours), sample_of(folder, SAID, large))
    assert out["pixel_values"].shape == (1 + 3 * 4, 3, 384, 384)
    assert f"<image>*{llava.anyres(900, 1500).tokens}\n" in words(ours, out["input_ids"])
    _, fewer = filled(LlavaOneVision(ours, max_crops=4), sample_of(folder, SAID, large))
    assert fewer["pixel_values"].shape == out["pixel_values"].shape
    assert f"<image>*{llava.anyres(900, 1500, 4).tokens}\n" in words(ours, fewer["input_ids"])


def test_several_pictures_become_a_square_each(folder: Path, ours: str, wide: Path, small: Path) -> None:
    turns = [("human", "<image>\n<image>\nBoth?"), ("gpt", "No.")]
    _, out = filled(LlavaOneVision(ours), sample_of(folder, turns, wide, small))
    assert f"user <image>*{2 * 730}\nBoth?" in words(ours, out["input_ids"])
    assert out["image_sizes"].tolist() == [[100, 230], [60, 50]]
    assert out["batch_num_images"] == 2
    for crop, path in zip(out["pixel_values"], (wide, small)):
        expected = np.empty((3, 384, 384), np.uint8)
        tiles.square(np.asarray(Pil.open(path)), (127, 102, 76), expected, "exact")
        np.testing.assert_array_equal(crop, expected)
    assert out["pixel_values"][0, :, 0, 0].tolist() == [127, 102, 76]


def test_a_video_has_196_tokens_a_frame_and_one_more(folder: Path, ours: str, clip: Path) -> None:
    desc, out = filled(LlavaOneVision(ours), sample_of(folder, WATCHED, clip))
    assert f"user <video>*{3 * 196 + 1}\nWhat is it?" in words(ours, out["input_ids"])
    frames = [read_number(frame.transpose(1, 2, 0)) for frame in out["pixel_values_videos"]]
    assert frames == [0, 25, 50]
    assert out["num_frames"].tolist() == [3]
    assert out["batch_num_images"] == 0
    assert desc.units == 3
    assert desc.threads


@pytest.mark.parametrize(
    ("settings", "frames"),
    [
        ({"max_frames": 2}, [0, 59]),
        ({"rate": 5.0, "max_frames": 4}, [0, 19, 39, 59]),
        ({"rate": 0.5, "max_frames": None}, [0, 50]),
        ({"max_frames": 5, "force": True}, [0, 14, 29, 44, 59]),
    ],
)
def test_frames_of_videos_follow_llava_video(
    folder: Path, ours: str, clip: Path, settings: dict[str, Any], frames: list[int]
) -> None:
    recipe = LlavaOneVision(ours, **settings)
    desc = recipe.describe(sample_of(folder, WATCHED, clip), Rng(0, 0, 0))
    assert list(desc.draws.videos[0].frames) == frames


def test_parts_equal_the_whole(folder: Path, ours: str, wide: Path, clip: Path) -> None:
    turns = [("human", "<video><image><video>?"), ("gpt", "Yes.")]
    sample = sample_of(folder, turns, clip, wide, clip)
    recipe = LlavaOneVision(ours, max_frames=6, force=True)
    desc, whole = filled(recipe, sample)
    assert desc.units == 12
    assert whole["num_frames"].tolist() == [6, 6]
    assert 6 in desc.cuts
    assert len(desc.cuts) > 4
    for bounds in ((0, *desc.cuts, 12), tuple(range(13))):
        _, parts = filled(recipe, sample, bounds=bounds)
        for name, field in whole.items():
            np.testing.assert_array_equal(parts[name], field)
    # The template writes pictures first, whatever the order of the text.
    assert f"<image>*{llava.anyres(100, 230).tokens}<video>*{2 * (6 * 196 + 1)}" in words(
        ours, whole["input_ids"]
    )


def test_what_is_too_large_becomes_smaller_until_it_fits(folder: Path, ours: str, clip: Path) -> None:
    large = draw(folder / "huge.png", 3, (1000, 1000))
    sample = sample_of(folder, [("human", "<image><video>?"), ("gpt", "Yes.")], large, clip)
    recipe = LlavaOneVision(ours, max_frames=8, force=True)
    full = recipe.describe(sample, Rng(0, 0, 0))
    caps = {"tokens": full.costs["tokens"] - 2000}
    smaller = recipe.shrink(sample, Rng(0, 0, 0), caps)
    assert smaller is not None
    assert smaller.costs["tokens"] <= caps["tokens"]
    assert 1 <= smaller.units < 8
    assert recipe.shrink(sample, Rng(0, 0, 0), {"tokens": 900}) is None


def test_a_conversation_without_pictures(folder: Path, ours: str) -> None:
    desc, out = filled(
        LlavaOneVision(ours, layout="pad"), sample_of(folder, [("human", "Hello?"), ("gpt", "Yes.")])
    )
    assert out["pixel_values"].shape == (0, 3, 384, 384)
    assert out["image_sizes"].shape == (0, 2)
    assert out["batch_num_images"] == 0
    assert out["attention_mask"].all()
    assert desc.costs["tiles"] == 0
    assert desc.units == 1


def test_a_loader_packs_conversations(folder: Path, ours: str, wide: Path, small: Path, clip: Path) -> None:
    source = folder / "train.jsonl"
    lines: list[tuple[dict[str, Any], str]] = [
        ({"image": wide.name}, "<image>\nWhat?"),
        ({"images": [wide.name, small.name]}, "<image><image>\nWhat?"),
        ({"video": clip.name}, "<video>\nWhat?"),
        ({}, "What?"),
    ]
    with source.open("w") as file:
        for media, asked in lines:
            talk = [{"from": "human", "value": asked}, {"from": "gpt", "value": "A cat."}]
            file.write(json.dumps({**media, "conversations": talk}) + "\n")
    loader = hx.Loader(
        source, recipe=LlavaOneVision(ours), batching=hx.FixedBatch(4), shuffle=False, backend="inline"
    )
    batch = next(iter(loader))
    assert batch["pixel_values"].shape == (2 + 2, 3, 384, 384)
    assert batch["image_sizes"].tolist() == [[100, 230], [100, 230], [60, 50]]
    assert batch["batch_num_images"].tolist() == [1, 2, 0, 0]
    assert batch["pixel_values_videos"].shape == (3, 3, 384, 384)
    assert batch["num_frames"].tolist() == [3]
    assert batch.num_tokens == len(batch["input_ids"]) == len(batch["labels"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_crops": 0},
        {"max_frames": 0},
        {"max_frames": None, "force": True},
        {"rate": 0.0},
        {"layout": "stack"},
        {"resize": "bilinear"},
    ],
)
def test_wrong_settings_are_refused(ours: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="LlavaOneVision"):
        LlavaOneVision(ours, **wrong)


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    grids = [[side, other] for side in range(384, 2305, 384) for other in range(384, 2305, 384)]
    size = {"height": 384, "width": 384}
    LlavaOneVision(checkpoint(tmp_path / "a", LLAVA, image_grid_pinpoints=grids, size=size))
    with pytest.raises(UsageError, match="image_grid_pinpoints"):
        LlavaOneVision(checkpoint(tmp_path / "b", LLAVA, image_grid_pinpoints=grids[:-1]))
    with pytest.raises(UsageError, match="336"):
        LlavaOneVision(checkpoint(tmp_path / "c", LLAVA, size={"height": 336, "width": 336}))


def test_a_checkpoint_that_does_not_say_its_colours_is_refused(
    folder: Path, tmp_path: Path, wide: Path, small: Path
) -> None:
    path = checkpoint(tmp_path / "plain", LLAVA)
    (tmp_path / "plain" / "preprocessor_config.json").write_text("{}")
    sample = sample_of(folder, [("human", "<image><image>?"), ("gpt", "No.")], wide, small)
    with pytest.raises(RecipeError, match="image_mean"):
        filled(LlavaOneVision(path), sample)
    with pytest.raises(UsageError, match="image_mean"):
        LlavaOneVision(path).scale_and_shift()


@pytest.mark.parametrize(("recipe", "template"), [(LlavaOneVision, LLAVA), (InternVL, INTERNVL)])
def test_a_list_of_pictures_as_a_video_is_refused_with_the_cure(
    folder: Path, recipe: type[Any], template: str, small: Path, wide: Path
) -> None:
    sample = sample_of(folder, WATCHED, small, wide)
    named = (replace(item, name=f"video/{i}") for i, item in enumerate(sample.items[:2]))
    sample = replace(sample, items=(*named, sample.items[2]))
    path = checkpoint(folder / recipe.__name__, template)
    with pytest.raises(MediaError, match=r"list of pictures.*ffmpeg -framerate 2"):
        recipe(path).describe(sample, Rng(1, 2, 3))
