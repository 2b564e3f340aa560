"""QwenVL equals the processors of transformers, ids and grids exactly, pixels to one level; and their M-RoPE.

CI has no transformers: run it where transformers 5 and torchvision are installed.
"""

from __future__ import annotations

import importlib
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image

import libhelix as hx
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.recipes import QwenVL
from tests.recipes import qwen_oracle as oracle
from tests.vlms import need_torchvision

pytestmark = pytest.mark.filterwarnings("ignore")
pytest.importorskip("transformers", reason="transformers, the independent oracle of QwenVL, is missing")
torch = pytest.importorskip("torch", reason="the models of transformers need torch")
need_torchvision()

TALKS = 1000
LIMITS = {
    "qwen2-vl": (784, 16 * 784, 784, 12 * 784),
    "qwen2.5-vl": (784, 16 * 784, 784, 12 * 784),
    "qwen3-vl": (1024, 16 * 1024, 4 * 1024, 60 * 1024),
}
"""Pixels of a picture, then of a video (Qwen3-VL: of all its frames): the least and the most."""


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> oracle.Media:
    return oracle.make_media(tmp_path_factory.mktemp("media"))


@pytest.mark.parametrize("model", list(LIMITS))
def test_conversations_are_what_the_processor_makes_of_them(
    media: oracle.Media, model: str, tmp_path: Path
) -> None:
    least, most, video_least, video_most = LIMITS[model]
    processor = oracle.make_processor(
        model,
        tmp_path,
        {"shortest_edge": least, "longest_edge": most},
        {"shortest_edge": video_least, "longest_edge": video_most},
    )
    settings = {"fps": [0.7, 1, 3.3], "max_pixels": [most // 2, 30 * least]}
    talks = list(oracle.talks(TALKS, 1, settings))
    recipe = QwenVL(checkpoint=str(tmp_path))
    values = off = 0
    for talk, sample in zip(talks, oracle.index_of(media, talks, model)):
        ours = oracle.filled(recipe, sample)
        given = talk.settings.get("max_pixels")
        theirs = oracle.expected(
            processor,
            talk,
            media,
            images_kwargs={"size": {"shortest_edge": least, "longest_edge": given or most}},
            videos_kwargs={
                "size": {"shortest_edge": video_least, "longest_edge": given or video_most},
                "fps": talk.settings.get("fps", 2.0),
                "do_sample_frames": True,
            },
        )
        assert ours["input_ids"].tolist() == theirs["input_ids"][0].tolist(), talk
        assert (ours["position_ids"][1:] == oracle.rope_index(model, tmp_path, theirs)).all(), talk
        for kind, name in (("image", "pixel_values"), ("video", "pixel_values_videos")):
            grid = ours[f"{kind}_grid_thw"]
            assert grid.tolist() == (theirs[f"{kind}_grid_thw"].tolist() if len(grid) else []), talk
            if len(grid):
                distance = np.abs(ours[name] - oracle.levels(recipe, theirs[name]))
                assert distance.max() < 2.01, talk
                values, off = values + distance.size, off + int((distance > 1.01).sum())
        if model == "qwen2.5-vl" and talk.clips:
            seconds = np.asarray(theirs["second_per_grid_ts"], np.float32)
            assert (ours["second_per_grid_ts"] == seconds).all(), talk
    print(f"{model}: {off} of {values} pixel values differ by 2 levels of 255, all others by 1 at most")
    assert off < values * 5e-5  # torch weighs with 16 bits, Pillow with 22: a rounding may meet another


@pytest.mark.parametrize("model", list(LIMITS))
def test_a_list_of_pictures_is_the_video_that_the_processor_makes_of_it(
    media: oracle.Media, model: str, tmp_path: Path
) -> None:
    sides = ({"shortest_edge": least, "longest_edge": most} for least, most in pairwise(LIMITS[model]))
    pictures, _, videos = sides
    processor = oracle.make_processor(model, tmp_path, pictures, videos)
    clip = media.clips["wide"]
    for i, shown in enumerate(clip):
        Image.fromarray(shown).save(media.folder / f"{i}.png")
    recipe = QwenVL(checkpoint=str(tmp_path))
    metadata = importlib.import_module("transformers.video_utils").VideoMetadata
    talk = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "?"}]}]
    for n, fps in ((2, 2.0), (5, 2.0), (6, 0.7), (49, 3.0)):
        line = {"messages": [*talk, {"role": "assistant", "content": "."}], "fps": fps}
        line["video"] = [f"{i}.png" for i in range(n)]
        (media.folder / "stills.jsonl").write_text(json.dumps(line))
        build([media.folder / "stills.jsonl"], media.folder / "stills.arrow")
        ours = oracle.filled(recipe, Index.open(media.folder / "stills.arrow")[0])
        theirs = processor(
            text=[processor.apply_chat_template(line["messages"], tokenize=False)],
            videos=[list(clip[:n].transpose(0, 3, 1, 2))],
            video_metadata=[metadata(total_num_frames=n, fps=fps, frames_indices=list(range(n)))],
            do_sample_frames=False,
            return_tensors="pt",
        )
        assert ours["input_ids"].tolist() == theirs["input_ids"][0].tolist()
        assert (ours["position_ids"][1:] == oracle.rope_index(model, tmp_path, theirs)).all()
        assert ours["video_grid_thw"].tolist() == theirs["video_grid_thw"].tolist()
        levels = oracle.levels(recipe, theirs["pixel_values_videos"])
        assert np.abs(ours["pixel_values_videos"] - levels).max() < 2.01
        if model == "qwen2.5-vl":
            assert ours["second_per_grid_ts"] == np.asarray(theirs["second_per_grid_ts"], np.float32)


def test_targets_are_those_of_the_template_itself(media: oracle.Media, tmp_path: Path) -> None:
    """With {% generation %} blocks transformers says which tokens are the assistant's."""
    processor = oracle.make_processor(
        "qwen2-vl", tmp_path, *[{"shortest_edge": 784, "longest_edge": 16 * 784}] * 2
    )
    template = re.sub(
        r"\{%- if message.content is string %\}(.*?)\{\{- '<\|im_end\|>\\n' \}\}",
        lambda found: (
            "{%- if message.role == 'assistant' %}{%- generation %}"
            "{{- message.content[0].text + '<|im_end|>' }}{%- endgeneration %}{{- '\\n' }}{%- else %}"
            f"{found[0]}{{%- endif %}}"
        ),
        (tmp_path / "chat_template.jinja").read_text(),
        flags=re.DOTALL,
    )
    assert "endgeneration" in template
    (tmp_path / "chat_template.jinja").write_text(template)
    talks = [talk for talk in oracle.talks(300, 2, {}) if _plain(talk)]
    assert len(talks) > 20
    recipe = QwenVL(checkpoint=str(tmp_path))
    for talk, sample in zip(talks, oracle.index_of(media, talks, "generation")):
        ours = oracle.filled(recipe, sample)
        theirs = processor.tokenizer.apply_chat_template(
            [{"role": turn["role"], "content": turn["content"]} for turn in talk.messages],
            chat_template=template,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        assert ours["input_ids"].tolist() == theirs["input_ids"]
        assert (ours["labels"] != -100).astype(int).tolist() == theirs["assistant_masks"]


def _plain(talk: oracle.Talk) -> bool:
    """Whether it has no media, and no answer whose line end makes one token with that of the prompt: to
    transformers that token is the assistant's."""
    answers = [turn["content"][0]["text"] for turn in talk.messages if turn["role"] == "assistant"]
    return not talk.pictures and not talk.clips and not any(answer.startswith("\n") for answer in answers)


@pytest.mark.parametrize("layout", ["pack", "pad"])
@pytest.mark.parametrize("model", list(LIMITS))
def test_a_batch_gives_a_model_what_its_samples_give_it(
    media: oracle.Media, model: str, layout: Literal["pack", "pad"], tmp_path: Path
) -> None:
    least, most, video_least, video_most = LIMITS[model]
    pictures = {"shortest_edge": least, "longest_edge": most}
    videos = {"shortest_edge": video_least, "longest_edge": video_most}
    processor = oracle.make_processor(model, tmp_path, pictures, videos)
    network = oracle.tiny_model(model, tmp_path)
    talks = list(oracle.talks(6, 5, {}))
    assert any(talk.pictures for talk in talks)
    assert any(talk.clips for talk in talks)
    oracle.index_of(media, talks, f"batch-{model}-{layout}")
    recipe = QwenVL(checkpoint=str(tmp_path), layout=layout)
    loader = hx.Loader(
        media.folder / f"batch-{model}-{layout}.arrow",
        recipe=recipe,
        batching=hx.Packed(8192) if layout == "pack" else hx.FixedBatch(6),
        shuffle=False,
        backend="inline",
    )
    with loader:
        (batch,) = list(loader)
    scale, shift = (torch.from_numpy(one) for one in recipe.scale_and_shift())
    inputs = {name: batch[name] for name in ("image_grid_thw", "video_grid_thw")}
    inputs |= {name: batch[name] * scale + shift for name in ("pixel_values", "pixel_values_videos")}
    if layout == "pack":
        inputs["input_ids"] = batch["input_ids"][None]
        inputs["position_ids"] = batch["position_ids"][:, None]
    else:
        inputs |= {name: batch[name] for name in ("input_ids", "attention_mask")}
        inputs["position_ids"] = batch["position_ids"].transpose(0, 1)
    with torch.no_grad():
        # With a cache, transformers takes a pack for one sample.
        logits = network(**inputs, use_cache=False).logits
        begin = 0
        for place, number in enumerate(batch.ids):
            rate = {"fps": 2.0, "do_sample_frames": True}
            given = oracle.expected(processor, talks[number], media, videos_kwargs=rate)
            alone = network(**given).logits[0]
            mine = logits[0, begin : begin + len(alone)] if layout == "pack" else logits[place, : len(alone)]
            assert torch.allclose(mine, alone, atol=0.01), talks[number]
            begin += len(alone)
