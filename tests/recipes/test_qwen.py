"""QwenVL: tokens, positions and patches, counted by hand."""

from __future__ import annotations

import json
import re
import sys
import types
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import libhelix as hx
from libhelix.errors import HelixWarning, MediaError, RecipeError, UsageError
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.media.chat import chat_template
from libhelix.media.checkpoint import vision
from libhelix.media.jsonfile import warn_of_defaults
from libhelix.recipe import Descriptor, Part, Rng, Sample, check_descriptor
from libhelix.recipes import QwenVL
from libhelix.recipes.rows import spec_of
from libhelix.recipes.run import load_recipe
from tests.chats import make_checkpoint
from tests.clips import make_clip, picture, read_number

pytest.importorskip("tokenizers", reason="needs the extra chat")
pytest.importorskip("jinja2", reason="needs the extra chat")

RNG = Rng(0, 0, 0)
MODELS = {"qwen2-vl": "qwen2_vl", "qwen2.5-vl": "qwen2_5_vl", "qwen3-vl": "qwen3_vl"}
PROMPT = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
SIZE = (84, 112)
"""Of the picture: 3 x 4 tokens of Qwen2-VL."""


def line(*values: str, **more: Any) -> dict[str, Any]:
    turns = [{"from": ("human", "gpt")[i % 2], "value": value} for i, value in enumerate(values)]
    return {"conversations": turns, **more}


LINES = {
    "text": line("Hi?", "Ho."),
    "picture": line("<image>\nWhat?", "A cat.", image="p.png"),
    "video": line("<video>?", "A dog.", video="v.mp4"),
    "several": line("<image><video> <image>?", "A.", "<video>", "B.", image=["p.png", "q.png"],
                    video=["v.mp4", "w.mp4"]),
    "settings": line("<video>?", "A dog.", video="v.mp4", nframes=4, video_start=1, video_end=2,
                     max_pixels=56 * 56),
    "turned": line("<video>?", "A.", video="turned.mp4"),
    "bad": line("<image>?", "A cat.", video="v.mp4"),
    "unlike": line("<image>?", "A cat.", image="p.png", min_pixels=2e6, max_pixels=1e6),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("talks")
    Image.fromarray(picture(5, SIZE)).save(folder / "p.png")
    Image.fromarray(picture(6, (60, 60))).save(folder / "q.png")
    make_clip(folder / "v.mp4", 48, size=(84, 140), fps=12, gop=12)
    make_clip(folder / "w.mp4", 24, size=(112, 84), fps=12, gop=12)
    make_clip(folder / "turned.mp4", 24, size=(84, 140), fps=12, rotation=90)
    with open(folder / "x.jsonl", "w") as file:
        for name, one in LINES.items():
            file.write(json.dumps({"id": name, **one}) + "\n")
    build([folder / "x.jsonl"], folder / "x.arrow")
    for model in MODELS.values():
        config = {"model_type": model, "vision_config": {"tokens_per_second": 2}}
        make_checkpoint(folder / model, files={"config.json": config})
    return folder


@pytest.fixture(scope="module")
def samples(folder: Path) -> dict[str, Sample]:
    return {sample.key: sample for sample in Index.open(folder / "x.arrow")}


def recipe(folder: Path, model: str = "qwen2.5-vl", **settings: Any) -> QwenVL:
    """With videos of 10 tokens of Qwen2-VL in a frame pair at most."""
    settings = {"video_min_pixels": 28 * 28, "video_max_pixels": 10 * 28 * 28, **settings}
    return QwenVL(checkpoint=str(folder / MODELS[model]), **settings)


def fill(recipe: QwenVL, sample: Sample, *parts: tuple[int, int]) -> tuple[Descriptor, dict[str, Any]]:
    desc = check_descriptor(recipe.describe(sample, RNG), "QwenVL")
    out = {field.name: np.full(field.shape, 77, field.dtype) for field in desc.fields}
    for begin, end in parts or [(0, desc.units)]:
        mine = {
            f.name: out[f.name][begin:end] if f.rows_per_unit else out[f.name]
            for f in desc.fields
            if begin == 0 or f.rows_per_unit
        }
        recipe.fill(sample, desc, Part(begin, end, desc.units), mine)
    return desc, out


def said(recipe: QwenVL, ids: np.ndarray) -> str:
    tokenizer = chat_template(recipe.checkpoint)._tokenizer._loaded
    text: str = tokenizer.decode([i for i in ids.tolist() if i >= 0], skip_special_tokens=False)
    return text


def shown(rows: np.ndarray, grid: tuple[int, int, int], patch: int) -> np.ndarray:
    """Patches back to frames [2 t, h, w, 3], one by one."""
    times, down, across = grid
    found = np.empty((2 * times, down * patch, across * patch, 3), np.uint8)
    at = 0
    for t in range(times):
        for block_y in range(0, down, 2):
            for block_x in range(0, across, 2):
                for y in (block_y, block_y + 1):
                    for x in (block_x, block_x + 1):
                        one = rows[at].reshape(3, 2, patch, patch)
                        place = found[
                            2 * t : 2 * t + 2, y * patch : (y + 1) * patch, x * patch : (x + 1) * patch
                        ]
                        place[...] = one.transpose(1, 2, 3, 0)
                        at += 1
    assert at == len(rows)
    return found


def test_a_text_has_tokens_only(folder: Path, samples: dict[str, Sample]) -> None:
    qwen = recipe(folder)
    desc, out = fill(qwen, samples["text"])
    text = f"{PROMPT}Hi?<|im_end|>\n<|im_start|>assistant\nHo.<|im_end|>\n"
    assert said(qwen, out["input_ids"]) == text
    assert said(qwen, out["labels"]) == "Ho.<|im_end|>\n"
    n = len(out["input_ids"])
    assert out["position_ids"].tolist() == [list(range(n))] * 4
    assert desc.costs == {
        "tokens": n,
        "targets": int((out["labels"] != -100).sum()),
        "patches": 0,
        "encoder": 0,
    }
    assert out["pixel_values"].shape == out["pixel_values_videos"].shape == (0, 1176)
    assert out["image_grid_thw"].shape == out["video_grid_thw"].shape == (0, 3)
    assert out["second_per_grid_ts"].shape == (0,)


def test_a_picture_in_order_of_patches(folder: Path, samples: dict[str, Sample]) -> None:
    qwen = recipe(folder)
    desc, out = fill(qwen, samples["picture"])
    pads = "<|image_pad|>" * 12
    assert said(qwen, out["input_ids"]).startswith(f"{PROMPT}<|vision_start|>{pads}<|vision_end|>\nWhat?")
    assert said(qwen, out["labels"]) == "A cat.<|im_end|>\n"
    assert out["image_grid_thw"].tolist() == [[1, 6, 8]]
    assert desc.costs["patches"] == 48
    frames = shown(out["pixel_values"], (1, 6, 8), 14)
    assert (frames == picture(5, SIZE)).all()
    begin = said_before(qwen, out["input_ids"], "<|image_pad|>")
    assert out["position_ids"][:, begin : begin + 13].tolist() == [
        list(range(begin, begin + 13)),
        [begin] * 12 + [begin + 4],
        [begin] * 4 + [begin + 1] * 4 + [begin + 2] * 4 + [begin + 4],
        [*range(begin, begin + 4)] * 3 + [begin + 4],
    ]


def said_before(qwen: QwenVL, ids: np.ndarray, token: str) -> int:
    """Where a token stands first."""
    return int(np.flatnonzero(ids == chat_template(qwen.checkpoint).token(token))[0])


def test_a_video_at_two_frames_a_second(folder: Path, samples: dict[str, Sample]) -> None:
    qwen = recipe(folder)
    desc, out = fill(qwen, samples["video"])
    # 48 frames at 12 a second: 8 of them, 4 pairs of 2 x 4 tokens of 84 x 140 pixels.
    assert out["video_grid_thw"].tolist() == [[4, 4, 8]]
    assert out["second_per_grid_ts"].tolist() == [1.0]
    frames = shown(out["pixel_values_videos"], (4, 4, 8), 14)
    assert [read_number(frame) for frame in frames] == [0, 6, 12, 18, 24, 30, 36, 42]
    # Two positions a second, from pair to pair.
    begin = said_before(qwen, out["input_ids"], "<|video_pad|>")
    assert (out["position_ids"][1, begin : begin + 32] - begin).tolist() == [0] * 8 + [2] * 8 + [4] * 8 + [
        6
    ] * 8
    assert out["position_ids"][1, begin + 32] == begin + 4
    # A part may begin where a key-frame group does: frames 12, 24 and 36 are the third, fifth and seventh.
    assert desc.units == 4 * 32
    assert desc.cuts == (32, 64, 96)
    assert desc.kind == "h264"
    assert desc.threads


def test_positions_follow_the_seconds_between_pairs(folder: Path, samples: dict[str, Sample]) -> None:
    qwen = recipe(folder, fps=1.5)
    _, out = fill(qwen, samples["video"])
    # 6 of 48 frames at 12 a second: 1.5 a second, two positions a second, rounded down.
    assert out["video_grid_thw"].tolist() == [[3, 4, 8]]
    assert out["second_per_grid_ts"].tolist() == [np.float32(4 / 3)]
    begin = said_before(qwen, out["input_ids"], "<|video_pad|>")
    assert (out["position_ids"][1, begin : begin + 24] - begin).tolist() == [0] * 8 + [2] * 8 + [5] * 8


def test_parts_are_the_whole(folder: Path, samples: dict[str, Sample]) -> None:
    qwen = recipe(folder, resize="fast")
    whole = fill(qwen, samples["several"])
    desc, out = whole
    bounds = (0, *desc.cuts, desc.units)
    assert len(desc.cuts) == 5
    _, parts = fill(qwen, samples["several"], *pairwise(bounds))
    for name, array in out.items():
        assert (array == parts[name]).all(), name


def test_several_of_each_are_in_the_order_of_the_text(folder: Path, samples: dict[str, Sample]) -> None:
    _, out = fill(recipe(folder), samples["several"])
    # 60 x 60 pixels are 2 x 2 tokens; 112 x 84 pixels are too many by a half: 3 x 2 tokens.
    assert out["image_grid_thw"].tolist() == [[1, 6, 8], [1, 4, 4]]
    assert out["video_grid_thw"].tolist() == [[4, 4, 8], [2, 6, 4]]
    assert (shown(out["pixel_values"][:48], (1, 6, 8), 14) == picture(5, SIZE)).all()
    second = shown(out["pixel_values_videos"][4 * 32 :], (2, 6, 4), 14)
    assert [read_number(frame) for frame in second] == [0, 6, 12, 18]


def test_qwen3_reads_times(folder: Path, samples: dict[str, Sample]) -> None:
    qwen = recipe(folder, "qwen3-vl", video_min_pixels=32 * 32, video_max_pixels=8 * 10 * 32 * 32)
    _, out = fill(qwen, samples["video"])
    assert out["video_grid_thw"].tolist() == [[4, 4, 8]]
    assert out["pixel_values_videos"].shape == (128, 1536)
    pads = "<|video_pad|>" * 8
    frames = [0, 7, 13, 20, 27, 34, 40, 47]
    times = [(a + b) / 24 for a, b in zip(frames[::2], frames[1::2])]
    pairs = "".join(f"<{time:.1f} seconds><|vision_start|>{pads}<|vision_end|>" for time in times)
    assert f"{PROMPT}<|vision_start|>{pairs}<|vision_end|>?<|im_end|>" in said(qwen, out["input_ids"])
    shown_frames = shown(out["pixel_values_videos"], (4, 4, 8), 16)
    assert [read_number(frame) for frame in shown_frames] == frames
    # Every pair is a picture of its own in time.
    begin = said_before(qwen, out["input_ids"], "<|video_pad|>")
    assert (out["position_ids"][1, begin : begin + 8] == begin).all()
    assert "second_per_grid_ts" not in out


def test_settings_of_the_line(folder: Path, samples: dict[str, Sample]) -> None:
    _, out = fill(recipe(folder), samples["settings"])
    # From the second 1 to 2: frames 12 to 24, of which 4, in 2 x 2 tokens at most.
    assert out["video_grid_thw"].tolist() == [[2, 2, 4]]
    frames = shown(out["pixel_values_videos"], (2, 2, 4), 14)
    assert [read_number(frame) for frame in frames] == [12, 15, 18, 21]
    assert out["second_per_grid_ts"].tolist() == [np.float32(2 / (4 / 13 * 12))]
    _, other = fill(recipe(folder, policy="qwen-vl-utils"), samples["settings"])
    shape = tuple(other["video_grid_thw"][0].tolist())
    frames = shown(other["pixel_values_videos"], shape, 14)
    assert [read_number(frame) for frame in frames] == [12, 16, 20, 24]


@pytest.mark.parametrize("resize", ["exact", "fast"])
def test_a_turned_video_is_upright(folder: Path, samples: dict[str, Sample], resize: str) -> None:
    _, out = fill(recipe(folder, resize=resize), samples["turned"])
    assert out["video_grid_thw"].tolist() == [[2, 8, 4]]
    frames = shown(out["pixel_values_videos"], (2, 8, 4), 14)
    assert [read_number(np.rot90(frame)) for frame in frames] == [0, 6, 12, 18]


def test_fast_is_near_exact(folder: Path, samples: dict[str, Sample]) -> None:
    smaller: dict[str, Any] = {"max_pixels": 4 * 28 * 28, "min_pixels": 28 * 28}
    _, exact = fill(recipe(folder, **smaller), samples["picture"])
    _, fast = fill(recipe(folder, resize="fast", **smaller), samples["picture"])
    one, other = exact["pixel_values"].astype(int), fast["pixel_values"].astype(int)
    assert one.shape == other.shape == (8, 1176)
    assert 0 < np.abs(one - other).mean() < 16


def test_a_dummy_for_a_sample_without_pictures(folder: Path, samples: dict[str, Sample]) -> None:
    qwen = recipe(folder, empty_vision="dummy")
    _, out = fill(qwen, samples["text"])
    assert out["dummy_grid_thw"].tolist() == [[1, 2, 2]]
    assert out["dummy_pixel_values"].shape == (4, 1176)
    assert not out["dummy_pixel_values"].any()
    assert out["input_ids"].tolist() == fill(recipe(folder), samples["text"])[1]["input_ids"].tolist()
    _, other = fill(qwen, samples["picture"])
    assert other["dummy_grid_thw"].shape == (0, 3)
    assert other["dummy_pixel_values"].shape == (0, 1176)


def test_scale_and_shift_are_the_processors(folder: Path) -> None:
    scale, shift = recipe(folder).scale_and_shift()
    assert scale.shape == shift.shape == (1176,)
    row = np.full(1176, 200, np.uint8) * scale + shift
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    expected = [(200 / 255 - m) / s for m, s in zip(mean, std)]
    assert np.allclose(row.reshape(3, -1), np.array(expected)[:, None], atol=1e-6)
    assert recipe(folder, "qwen3-vl").scale_and_shift()[0].shape == (1536,)


def test_shrinking_keeps_the_text(folder: Path, samples: dict[str, Sample]) -> None:
    qwen = recipe(folder)
    whole = qwen.describe(samples["several"], RNG)
    smaller = qwen.shrink(samples["several"], RNG, {"tokens": whole.costs["tokens"] - 30})
    assert smaller is not None
    check_descriptor(smaller, "QwenVL")
    assert smaller.costs["tokens"] <= whole.costs["tokens"] - 30
    assert smaller.costs["targets"] == whole.costs["targets"]
    assert qwen.shrink(samples["several"], RNG, {"tokens": 10}) is None


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("policy", ["transformers", "qwen-vl-utils"])
def test_shrinking_takes_frames_then_pixels(
    folder: Path, samples: dict[str, Sample], model: str, policy: str
) -> None:
    budget = 8 if model == "qwen3-vl" and policy == "transformers" else 1  # of all frames there
    pixels = {"video_min_pixels": 1024, "video_max_pixels": budget * 12 * 1024}
    qwen = recipe(folder, model, policy=policy, **pixels)
    whole = qwen.describe(samples["video"], RNG).costs["patches"]
    frames = []
    for cap in (whole * 3 // 4, whole // 3, whole // 10):
        smaller = qwen.shrink(samples["video"], RNG, {"patches": cap})
        assert smaller is not None
        check_descriptor(smaller, "QwenVL")
        assert whole // 30 < smaller.costs["patches"] <= cap
        frames.append(smaller.draws.seen[0].counts.grid[0])
    assert frames == sorted(frames, reverse=True)
    assert frames[-1] == 1


def test_a_bad_sample_names_itself(folder: Path, samples: dict[str, Sample]) -> None:
    with pytest.raises(MediaError, match="bad: <image> number 1 in its text has no image"):
        recipe(folder).describe(samples["bad"], RNG)
    with pytest.raises(MediaError, match=r"unlike: .*p\.png: with its own min_pixels, max_pixels"):
        recipe(folder).describe(samples["unlike"], RNG)


def test_what_concerns_all_samples_ends_the_job(folder: Path, samples: dict[str, Sample]) -> None:
    with pytest.raises(RecipeError, match="max_pixels=784 is below min_pixels=3136"):
        recipe(folder, max_pixels=28 * 28).describe(samples["picture"], RNG)
    (folder / "bare").mkdir(exist_ok=True)
    (folder / "bare" / "preprocessor_config.json").write_text("{}")
    with pytest.raises(RecipeError, match=r"QwenVL: .*tokenizer\.json"):
        QwenVL(checkpoint=str(folder / "bare"), model="qwen2-vl").describe(samples["text"], RNG)


def test_wrong_settings_are_refused_where_they_are_written(folder: Path) -> None:
    for settings, error in (
        ({"policy": "mine"}, "policy='mine'"),
        ({"layout": "stack"}, "layout='stack'"),
        ({"resize": "best"}, "resize='best'"),
        ({"empty_vision": "zeros"}, "empty_vision='zeros'"),
        ({"model": "qwen"}, "model='qwen'"),
        ({"max_frames": 0}, "max_frames=0"),
        ({"fps": 0}, "fps=0"),
    ):
        with pytest.raises(UsageError, match=error):
            QwenVL(checkpoint=str(folder / "qwen2_vl"), **settings)
    with pytest.raises(UsageError, match="no such folder"):
        QwenVL(checkpoint=str(folder / "nowhere"))
    with pytest.raises(UsageError, match="model_type None"):
        QwenVL(checkpoint=str(make_checkpoint(folder / "nameless")))
    wrong = make_checkpoint(folder / "wrong", files={"preprocessor_config.json": {"patch_size": 16}})
    with pytest.raises(UsageError, match="patch_size 16, qwen2-vl has 14"):
        QwenVL(checkpoint=str(wrong), model="qwen2-vl")


def test_the_checkpoint_says_what_the_recipe_does_not(folder: Path, samples: dict[str, Sample]) -> None:
    files = {
        "config.json": {"model_type": "qwen2_vl"},
        "preprocessor_config.json": {
            "min_pixels": 28 * 28, "max_pixels": 4 * 28 * 28, "image_mean": [0, 0, 0]
        },
        "video_preprocessor_config.json": {
            "size": {"shortest_edge": 28 * 28, "longest_edge": 6 * 28 * 28}, "fps": 1, "min_frames": 2
        },
    }  # fmt: skip
    path = make_checkpoint(folder / "told", files=files)
    qwen = QwenVL(checkpoint=str(path))
    _, out = fill(qwen, samples["several"])
    assert out["image_grid_thw"].tolist() == [[1, 2, 4], [1, 4, 4]]
    assert out["video_grid_thw"].tolist() == [[2, 2, 6], [1, 4, 4]]
    assert not qwen.scale_and_shift()[1].any()
    assert "second_per_grid_ts" not in out


def test_what_is_assumed_without_a_preprocessor_config_is_said_once_and_not_in_workers(folder: Path) -> None:
    path = make_checkpoint(folder / "unsaid", files={"config.json": {"model_type": "qwen3_vl"}})
    (path / "preprocessor_config.json").unlink()
    said = r"unsaid: has no preprocessor_config\.json, so that pictures have the limits .* qwen3-vl.*0\.5"
    with pytest.warns(HelixWarning, match=said):
        qwen = QwenVL(checkpoint=str(path))
    QwenVL(checkpoint=str(path), max_frames=8)  # warnings are errors here
    spec = spec_of(qwen)
    vision.cache_clear()
    warn_of_defaults.cache_clear()  # as in a process of its own
    assert load_recipe(spec) == qwen


@pytest.mark.parametrize("layout", ["pack", "pad"])
def test_batches_of_a_loader(folder: Path, layout: str) -> None:
    lines = [LINES[name] for name in ("text", "several", "picture", "video")]
    (folder / "good.jsonl").write_text("\n".join(map(json.dumps, lines)))
    qwen = recipe(folder, layout=layout)
    batching = hx.Packed(256, pad_to=256) if layout == "pack" else hx.FixedBatch(4)
    loader = hx.Loader(
        folder / "good.jsonl", recipe=qwen, batching=batching, shuffle=False, backend="inline", end="pad"
    )
    with loader:
        batches = list(loader)
    targets = 0
    for batch in batches:
        assert batch.valid.all()
        targets += int((batch["labels"] != -100).sum())
        assert len(batch["pixel_values"]) == sum(t * h * w for t, h, w in batch["image_grid_thw"].tolist())
        assert len(batch["pixel_values_videos"]) == sum(
            t * h * w for t, h, w in batch["video_grid_thw"].tolist()
        )
        if layout == "pack":
            assert batch["input_ids"].shape == batch["labels"].shape == (256,)
            assert batch["position_ids"].shape == (4, 256)
        else:
            n = batch["input_ids"].shape[1]
            assert batch["position_ids"].shape == (4, 4, n)
            pads = batch["attention_mask"] == 0
            assert (batch["input_ids"][pads] == chat_template(qwen.checkpoint).pad).all()
            assert (batch["labels"][pads] == -100).all()
    assert targets == sum(batch.num_targets for batch in batches) > 0


@pytest.mark.filterwarnings("ignore:.*a sample is masked")
def test_the_page_does_what_it_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    stub = types.ModuleType("my_model")
    stub.model = lambda **inputs: given.append(inputs)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_model", stub)
    monkeypatch.chdir(folder)
    config = {"model_type": "qwen2_5_vl"}
    video = {"size": {"shortest_edge": 784, "longest_edge": 7840}}
    files = {"config.json": config, "video_preprocessor_config.json": video}
    make_checkpoint(folder / "Qwen2.5-VL-7B-Instruct", files=files)
    Path("broken.png").write_bytes(Path("p.png").read_bytes()[:200])
    lines = [LINES[name] for name in ("several", "text")] + [line("<image>?", "A.", image="broken.png")]
    Path("train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    page = (Path(__file__).resolve().parents[2] / "docs" / "qwen-vl.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, Any] = {}
    exec("\n".join(blocks), names)
    (inputs,) = given
    n = inputs["input_ids"].shape[1]
    assert inputs["labels"].shape == (1, n)
    assert inputs["position_ids"].shape == (4, 1, n)
    assert inputs["pixel_values"].dtype == inputs["pixel_values_videos"].dtype == torch.float32
    batch = names["batch"]
    assert sorted(batch.valid.tolist()) == [False, True, True]
    grids = names["of_valid"](batch, "image_grid_thw")
    assert sorted(grids.tolist()) == [[1, 4, 4], [1, 6, 8]]
    assert len(names["of_valid"](batch, "pixel_values")) == 16 + 48
