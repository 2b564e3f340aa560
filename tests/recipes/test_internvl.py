"""InternVL: which tiles and frames, which words around them, and the same in parts as in one."""

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
from libhelix.plan.counts import internvl
from libhelix.recipe import Rng
from libhelix.recipes import InternVL
from tests.clips import make_clip, picture, read_number
from tests.vlms import INTERNVL, LLAVA, TEXTS, Array, checkpoint, filled, learned, sample_of, words

ASKED = [("human", "<image>\nWhat is it?"), ("gpt", "A cat."), ("human", "And?"), ("gpt", "A dog.")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("internvl")


@pytest.fixture(scope="module")
def ours(folder: Path) -> str:
    return checkpoint(folder / "ours", TEXTS)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> str:
    return checkpoint(folder / "theirs", INTERNVL)


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


def tiles_of(path: Path, most: int) -> Array:
    image = np.asarray(Pil.open(path))
    counts = internvl.image(*image.shape[:2], max_tiles=most)
    out = np.empty((counts.tiles, 3, 448, 448), np.uint8)
    tiles.grid(image, counts.columns, counts.rows, out, "exact")
    return out


def test_a_picture_becomes_its_tiles_and_256_tokens_for_each(folder: Path, ours: str, wide: Path) -> None:
    desc, out = filled(InternVL(ours, max_tiles=6), sample_of(folder, ASKED, wide))
    assert words(ours, out["input_ids"]) == (
        f"<|im_start|>user\n<img><IMG_CONTEXT>*{3 * 256}</img>\nWhat is it?<|im_end|>\n"
        "<|im_start|>assistant\nA cat.<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n"
        "<|im_start|>assistant\nA dog.<|im_end|>\n"
    )
    assert learned(ours, out) == ["A cat.<|im_end|>", "A dog.<|im_end|>"]
    np.testing.assert_array_equal(out["pixel_values"], tiles_of(wide, 6))
    np.testing.assert_array_equal(out["position_ids"], np.arange(len(out["input_ids"])))
    assert out["image_flags"].tolist() == [1, 1, 1]
    targets = int((out["labels"] != -100).sum())
    assert desc.costs == {"tokens": len(out["input_ids"]), "targets": targets, "tiles": 3}


def test_several_pictures_share_the_tiles_in_the_training_code_only(
    folder: Path, ours: str, theirs: str, wide: Path, small: Path
) -> None:
    sample = sample_of(folder, [("human", "<image>\n<image>\nBoth?"), ("gpt", "No.")], wide, small)
    _, out = filled(InternVL(ours), sample)
    assert f"<img><IMG_CONTEXT>*{3 * 256}</img>\n<img><IMG_CONTEXT>*256</img>\nBoth?" in words(
        ours, out["input_ids"]
    )
    np.testing.assert_array_equal(
        out["pixel_values"], np.concatenate([tiles_of(wide, 6), tiles_of(small, 6)])
    )
    _, out = filled(InternVL(theirs, policy="transformers"), sample)
    assert internvl.image(100, 230, max_tiles=12).tiles == 11
    assert len(out["pixel_values"]) == 11 + len(tiles_of(small, 12))


@pytest.mark.parametrize("policy", ["internvl-chat", "transformers"])
def test_a_template_that_writes_line_breaks_gets_none_of_ours(
    folder: Path, ours: str, theirs: str, wide: Path, policy: Any
) -> None:
    said = "<img><IMG_CONTEXT>*256</img>\nWhat is it?"
    _, out = filled(InternVL(ours, policy=policy, max_tiles=1), sample_of(folder, ASKED, wide))
    assert said in words(ours, out["input_ids"])
    recipe = InternVL(theirs, policy=policy, max_tiles=1)
    _, out = filled(recipe, sample_of(folder, ASKED, wide))
    assert said in words(theirs, out["input_ids"])
    paragraphs = [("human", "Look.\n<image>\n\nWhat is it?"), ("gpt", "A cat.")]
    _, out = filled(recipe, sample_of(folder, paragraphs, wide))
    assert "Look.\n<img><IMG_CONTEXT>*256</img>\n\nWhat is it?" in words(theirs, out["input_ids"])
    listed = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": "A cat."},
    ]
    _, out = filled(recipe, sample_of(folder, listed, wide))
    assert said in words(theirs, out["input_ids"])
    assert learned(theirs, out) == ["A cat.<|im_end|>"]


@pytest.mark.parametrize(
    ("policy", "label"), [("internvl-chat", "Frame-{}: "), ("transformers", "Frame{}: ")]
)
def test_a_video_is_a_tile_a_frame_with_its_number(
    folder: Path, ours: str, clip: Path, policy: Any, label: str
) -> None:
    sample = sample_of(folder, [("human", "<video>\nWhat?"), ("gpt", "A cat.")], clip)
    recipe = InternVL(ours, policy=policy, frames="middle", min_frames=8, max_frames=8)
    desc, out = filled(recipe, sample)
    frame = "<img><IMG_CONTEXT>*256</img>"
    lines = "\n".join(label.format(i + 1) + frame for i in range(8))
    assert f"user\n{lines}\nWhat?<|im_end|>" in words(ours, out["input_ids"])
    assert [read_number(tile.transpose(1, 2, 0)) for tile in out["pixel_values"]] == [
        3, 10, 18, 25, 33, 40, 48, 55,
    ]  # fmt: skip
    assert desc.threads
    assert desc.kind == "h264"


def frames_of(recipe: InternVL, sample: hx.Sample, occurrence: int = 0) -> list[int]:
    return list(recipe.describe(sample, Rng(1, 0, 0, occurrence)).draws.pieces[0].frames)


def test_random_frames_are_drawn_from_the_rng_alone(folder: Path, ours: str, clip: Path) -> None:
    sample = sample_of(folder, [("human", "<video>\nWhat?"), ("gpt", "A cat.")], clip)
    recipe = InternVL(ours, min_frames=4, max_frames=7)
    counts, first = set(), set()
    for occurrence in range(60):
        chosen = frames_of(recipe, sample, occurrence)
        assert chosen == frames_of(recipe, sample, occurrence)
        counts.add(len(chosen))
        first.add(chosen[0])
        for frame, among in zip(chosen, internvl.random_ranges(60, len(chosen))):
            assert frame in among
    assert counts == {4, 5, 6, 7}
    assert len(first) > 4


def test_random_frames_of_a_short_video_are_all_of_them(folder: Path, ours: str) -> None:
    sample = sample_of(folder, [("human", "<video>\nWhat?"), ("gpt", "A.")], make_clip(folder / "s.mp4", 5))
    assert frames_of(InternVL(ours, min_frames=8, max_frames=8), sample) == [0, 1, 2, 3, 4, 4, 4, 4]
    # Of five stretches of one frame each none leaves a choice: three are drawn of all, in order.
    chosen = {tuple(frames_of(InternVL(ours, min_frames=3, max_frames=3), sample, i)) for i in range(80)}
    assert all(tuple(sorted(set(one))) == one for one in chosen)
    assert len(chosen) > 4


def test_frames_by_rate_and_as_the_processor_takes_them(folder: Path, ours: str, clip: Path) -> None:
    sample = sample_of(folder, [("human", "<video>\nWhat?"), ("gpt", "A cat.")], clip)
    by_rate = InternVL(ours, frames="fps", rate=2.5, min_frames=1)
    assert frames_of(by_rate, sample) == [5, 15, 25, 35, 45, 55]
    assert frames_of(replace(by_rate, max_frames=3), sample) == [5, 15, 25]
    as_processor = InternVL(ours, frames="processor", min_frames=1, max_frames=4)
    assert frames_of(as_processor, sample) == [7, 22, 37, 52]
    assert len(frames_of(InternVL(ours, frames="processor", max_frames=99), sample)) == 60


@pytest.mark.parametrize("resize", ["exact", "fast"])
def test_parts_equal_the_whole(
    folder: Path, ours: str, wide: Path, small: Path, clip: Path, resize: Any
) -> None:
    turns = [("human", "<image> <video> <image>?"), ("gpt", "Yes.")]
    sample = sample_of(folder, turns, wide, clip, small)
    recipe = InternVL(ours, max_tiles=6, min_frames=9, max_frames=9, resize=resize)
    desc, whole = filled(recipe, sample)
    assert desc.units == 3 + 9 + 1
    assert set(desc.cuts) >= {3, 12}
    assert len(desc.cuts) > 4
    for bounds in ((0, *desc.cuts, 13), tuple(range(14)), (0, 2, 12, 13)):
        _, parts = filled(recipe, sample, bounds=bounds)
        for name, field in whole.items():
            np.testing.assert_array_equal(parts[name], field)


def test_what_is_too_large_becomes_smaller_until_it_fits(
    folder: Path, ours: str, wide: Path, clip: Path
) -> None:
    sample = sample_of(folder, [("human", "<image><video>?"), ("gpt", "Yes.")], wide, clip)
    recipe = InternVL(ours, max_tiles=5, frames="middle", min_frames=8, max_frames=8)
    full = recipe.describe(sample, Rng(0, 0, 0))
    assert full.costs["tiles"] == 3 + 8
    caps = {"tokens": full.costs["tokens"] - 700}
    smaller = recipe.shrink(sample, Rng(0, 0, 0), caps)
    assert smaller is not None
    assert smaller.costs["tokens"] <= caps["tokens"]
    assert smaller.costs["tiles"] == 3 + 4
    assert smaller.costs["targets"] == full.costs["targets"]
    assert recipe.shrink(sample, Rng(0, 0, 0), {"tokens": 500}) is None


@pytest.mark.parametrize(("empty", "count"), [("none", 0), ("dummy", 1)])
def test_a_conversation_without_pictures(folder: Path, ours: str, empty: Any, count: int) -> None:
    sample = sample_of(folder, [("system", "Be brief."), ("human", "Hello?"), ("gpt", "Yes.")])
    desc, out = filled(InternVL(ours, empty_vision=empty), sample)
    assert words(ours, out["input_ids"]).startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user"
    )
    assert out["pixel_values"].shape == (count, 3, 448, 448)
    assert (out["pixel_values"] == 255).all()
    assert out["image_flags"].tolist() == [0] * count
    assert desc.costs["tiles"] == count


def test_padded_batches_have_a_mask(folder: Path, ours: str) -> None:
    _, out = filled(InternVL(ours, layout="pad"), sample_of(folder, [("human", "Hello?"), ("gpt", "Yes.")]))
    assert "position_ids" not in out
    assert out["attention_mask"].tolist() == [1] * len(out["input_ids"])


def test_the_models_floats_are_an_affine_map_away(ours: str) -> None:
    scale, shift = InternVL(ours).scale_and_shift()
    assert scale.shape == shift.shape == (3, 1, 1)
    np.testing.assert_allclose(
        255 * scale + shift, ((1 - np.array([0.5, 0.4, 0.3])) / [0.2, 0.25, 0.5])[:, None, None], rtol=1e-6
    )


def test_a_loader_packs_conversations(folder: Path, ours: str, wide: Path, clip: Path) -> None:
    source = folder / "train.jsonl"
    turns = [{"from": "human", "value": "{}\nWhat?"}, {"from": "gpt", "value": "A cat."}]
    with source.open("w") as file:
        for media in ({"image": wide.name}, {"video": clip.name}, {}):
            kind = next(iter(media), "")
            value = f"<{kind}>\nWhat?" if kind else "What?"
            file.write(
                json.dumps({**media, "conversations": [{**turns[0], "value": value}, turns[1]]}) + "\n"
            )
    recipe = InternVL(ours, frames="middle", min_frames=8, max_frames=8, max_tiles=6)
    loader = hx.Loader(source, recipe=recipe, batching=hx.FixedBatch(3), shuffle=False, backend="inline")
    batch = next(iter(loader))
    assert batch["pixel_values"].shape == (3 + 8, 3, 448, 448)
    assert batch.host["pixel_values_cu_seqlens"].tolist() == [0, 3, 11, 11]
    tokens = batch.host["input_ids_cu_seqlens"].tolist()
    assert batch["input_ids"].shape == batch["labels"].shape == (tokens[-1],)
    assert batch["position_ids"][tokens[1]] == 0
    assert batch.num_tokens == tokens[-1]
    assert batch.num_targets == int((batch["labels"] != -100).sum())


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "qwen"},
        {"frames": "fps"},
        {"frames": "rand", "rate": 1.0},
        {"frames": "fps", "rate": 0.0},
        {"max_tiles": 0},
        {"min_tiles": 4, "max_tiles": 3},
        {"min_frames": 9, "max_frames": 8},
        {"layout": "ragged"},
        {"resize": "bilinear"},
        {"empty_vision": "white"},
    ],
)
def test_wrong_settings_are_refused(ours: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="InternVL"):
        InternVL(ours, **wrong)


def test_what_is_no_checkpoint_of_it_is_refused(folder: Path, tmp_path: Path, wide: Path) -> None:
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        InternVL(str(tmp_path))
    from tests.chats import make_checkpoint

    with pytest.raises(UsageError, match="384"):
        InternVL(checkpoint(tmp_path / "other", TEXTS, size={"height": 384, "width": 384}))
    foreign = InternVL(str(make_checkpoint(tmp_path / "qwen")))
    with pytest.raises(RecipeError, match="InternVL"):
        foreign.describe(sample_of(folder, ASKED, wide), Rng(0, 0, 0))


def test_conversations_at_fault_name_what_is_wrong(folder: Path, ours: str, wide: Path) -> None:
    recipe = InternVL(ours)
    with pytest.raises(MediaError, match="<image>"):
        recipe.describe(sample_of(folder, [("human", "What?"), ("gpt", "A.")], wide), Rng(0, 0, 0))
    with pytest.raises(MediaError, match="IMG_CONTEXT"):
        recipe.describe(sample_of(folder, [("human", "<IMG_CONTEXT>?"), ("gpt", "A.")]), Rng(0, 0, 0))


def test_llavas_template_works_too(folder: Path, wide: Path) -> None:
    # Any template that says which part is the assistant's does.
    path = checkpoint(folder / "llava", LLAVA.replace("<image>", "<IMG_CONTEXT>"))
    _, out = filled(InternVL(path, max_tiles=1), sample_of(folder, ASKED, wide))
    assert learned(path, out) == ["\nA cat.<|im_end|>", "\nA dog.<|im_end|>"]
