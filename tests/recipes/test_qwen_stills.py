"""QwenVL: a video that is a list of pictures."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from libhelix.errors import MediaError
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.recipe import Part, Rng, Sample, check_descriptor
from tests.chats import make_checkpoint
from tests.clips import make_clip, picture, read_number
from tests.recipes.test_qwen import MODELS, fill, line, recipe, said, said_before, shown

RNG = Rng(0, 0, 0)
SIZE = (84, 140)
FRAMES = [f"{i}.png" for i in range(11)]
LINES = {
    "odd": line("<video>?", "A dog.", video=FRAMES[:5]),
    "slow": line("<video>?", "A dog.", video=FRAMES[:4], fps=0.5),
    "many": line("<video>?", "A dog.", video=FRAMES),
    "one": line("<video>?", "A dog.", video=FRAMES[:1]),
    "unlike": line("<video>?", "A dog.", video=[FRAMES[0], "large.png"]),
    "cut": line("<video>?", "A dog.", video=FRAMES[:4], video_start=1),
    "beside": {"messages": [
        {"role": "user", "content": [
            {"type": "video", "video": FRAMES[2:6]}, {"type": "video", "video": "v.mp4"},
            {"type": "image", "image": "0.png"},
        ]},
        {"role": "assistant", "content": "A dog."},
    ]},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("talks")
    for i, name in enumerate(FRAMES):
        Image.fromarray(picture(i, SIZE)).save(folder / name)
    Image.fromarray(picture(1, (84, 168))).save(folder / "large.png")
    make_clip(folder / "v.mp4", 24, size=SIZE, fps=12, gop=12)
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


def numbers(out: dict[str, Any], patch: int = 14) -> list[int]:
    rows, (grid,) = out["pixel_values_videos"], out["video_grid_thw"].tolist()
    return [read_number(frame) for frame in shown(rows, grid, patch)]


def test_all_are_taken_and_an_odd_last_one_twice(folder: Path, samples: dict[str, Sample]) -> None:
    qwen = recipe(folder)
    desc, out = fill(qwen, samples["odd"])
    assert out["video_grid_thw"].tolist() == [[3, 4, 8]]
    assert numbers(out) == [0, 1, 2, 3, 4, 4]
    assert out["second_per_grid_ts"].tolist() == [1.0]  # two a second, where nothing else is said
    begin = said_before(qwen, out["input_ids"], "<|video_pad|>")
    assert (out["position_ids"][1, begin : begin + 24] - begin).tolist() == [0] * 8 + [2] * 8 + [4] * 8
    assert (desc.cuts, desc.kind, desc.threads) == ((32, 64), "png", False)
    assert desc.costs["patches"] == 96


def test_how_many_are_a_second_is_what_the_line_says(folder: Path, samples: dict[str, Sample]) -> None:
    _, out = fill(recipe(folder, fps=8), samples["slow"])
    assert out["second_per_grid_ts"].tolist() == [4.0]
    _, out = fill(recipe(folder, fps=8), samples["odd"])
    assert out["second_per_grid_ts"].tolist() == [0.25]


def test_qwen3_reads_their_times(folder: Path, samples: dict[str, Sample]) -> None:
    qwen = recipe(folder, "qwen3-vl", video_min_pixels=32 * 32, video_max_pixels=8 * 10 * 32 * 32)
    _, out = fill(qwen, samples["odd"])
    text = said(qwen, out["input_ids"])
    assert [text.count(f"<{time} seconds>") for time in ("0.2", "1.2", "2.0")] == [1, 1, 1]
    assert numbers(out, 16) == [0, 1, 2, 3, 4, 4]


def test_parts_are_the_whole(folder: Path, samples: dict[str, Sample]) -> None:
    for resize in ("exact", "fast"):
        qwen = recipe(folder, resize=resize)
        desc, whole = fill(qwen, samples["many"])
        assert numbers(whole) == [*range(11), 10]
        _, parts = fill(qwen, samples["many"], *pairwise((0, *desc.cuts, desc.units)))
        assert (whole["pixel_values_videos"] == parts["pixel_values_videos"]).all()


def test_they_stand_beside_films_and_pictures(folder: Path, samples: dict[str, Sample]) -> None:
    _, out = fill(recipe(folder), samples["beside"])
    assert out["video_grid_thw"].tolist() == [[2, 4, 8], [2, 4, 8]]
    assert out["image_grid_thw"].tolist() == [[1, 6, 10]]
    first, second = out["pixel_values_videos"][:64], out["pixel_values_videos"][64:]
    assert [read_number(one) for one in shown(first, (2, 4, 8), 14)] == [2, 3, 4, 5]
    assert [read_number(one) for one in shown(second, (2, 4, 8), 14)] == [0, 6, 12, 18]


def test_shrinking_takes_fewer_of_them(folder: Path, samples: dict[str, Sample]) -> None:
    qwen = recipe(folder)
    smaller = qwen.shrink(samples["many"], RNG, {"patches": 96})
    assert smaller is not None
    check_descriptor(smaller, "QwenVL")
    (one,) = smaller.draws.seen
    assert len(one.frames) < 11
    out = {field.name: np.zeros(field.shape, field.dtype) for field in smaller.fields}
    qwen.fill(samples["many"], smaller, Part(0, smaller.units, smaller.units), out)
    assert out["video_grid_thw"].tolist() == [list(one.counts.grid)]


def test_what_cannot_be_a_video_is_refused_with_its_reason(folder: Path, samples: dict[str, Sample]) -> None:
    qwen = recipe(folder)
    with pytest.raises(MediaError, match=r"0\.png: .*140x84 pixels .*large\.png of 168x84; make them alike"):
        qwen.describe(samples["unlike"], RNG)
    with pytest.raises(MediaError, match="all are taken; list fewer, not 'video_start'"):
        qwen.describe(samples["cut"], RNG)
    with pytest.raises(MediaError, match="qwen-vl-utils resizes twice"):
        recipe(folder, policy="qwen-vl-utils").describe(samples["odd"], RNG)
    with pytest.raises(MediaError, match="2 frames or more, this video has 1"):
        recipe(folder, "qwen3-vl").describe(samples["one"], RNG)
    _, out = fill(qwen, samples["one"])
    assert numbers(out) == [0, 0]
