"""QwenVL(policy="qwen-vl-utils") equals qwen-vl-utils before the processors of transformers, clips included.

CI has neither: run it where transformers 5, torchvision and qwen-vl-utils are installed.
"""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from libhelix.recipes import QwenVL
from tests.recipes import qwen_oracle as oracle

pytestmark = pytest.mark.filterwarnings("ignore")
pytest.importorskip("transformers", reason="qwen-vl-utils prepares inputs for transformers")
torch = pytest.importorskip("torch", reason="qwen-vl-utils needs torch")
pytest.importorskip("torchvision", reason="qwen-vl-utils needs torchvision")
utils = pytest.importorskip("qwen_vl_utils.vision_process", reason="qwen-vl-utils, the oracle, is missing")

TALKS = 300


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> oracle.Media:
    return oracle.make_media(tmp_path_factory.mktemp("media"))


@pytest.mark.parametrize("model", list(oracle.MODULES))
def test_conversations_are_what_qwen_vl_utils_makes_of_them(
    media: oracle.Media, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(element: dict[str, Any]) -> tuple[Any, dict[str, Any], float]:
        """As its readers do, with what our decoder shows: it has the wheels of none of theirs."""
        shown, fps = media.clips[element["video"]], media.rates[element["video"]]
        first, last, total = utils.calculate_video_frame_range(element, len(shown), fps)
        n = utils.smart_nframes(element, total_frames=total, video_fps=fps)
        frames = torch.linspace(first, last, n).round().long()
        told = {"fps": fps, "frames_indices": frames.tolist(), "total_num_frames": total}
        return torch.from_numpy(shown[frames].transpose(0, 3, 1, 2).copy()), told, n / total * fps

    def resize(image: Any, size: tuple[int, int], *more: Any) -> Any:
        """Along the rows first, as Pillow did before 13."""
        return at_once(at_once(image, (size[0], image.height), *more), size, *more)

    at_once = PIL.Image.Image.resize
    monkeypatch.setattr(PIL.Image.Image, "resize", resize)
    # It resizes videos in floats, without rounding between rows and columns: up to ten levels off at sharp
    # edges from what the processor, Pillow and QwenVL do. Here it is to resize as the processor does.
    in_bytes = importlib.import_module("torchvision.transforms.v2.functional").resize
    monkeypatch.setattr(utils.transforms.functional, "resize", in_bytes)
    monkeypatch.setitem(utils.VIDEO_READER_BACKENDS, "ours", read)
    monkeypatch.setattr(utils, "get_video_reader_backend", lambda: "ours")
    size = {"shortest_edge": 784, "longest_edge": 16 * 784}
    processor = oracle.make_processor(model, tmp_path, size, size)
    factor = 32 if model == "qwen3-vl" else 28
    choose = random.Random(3)
    talks = [_set(talk, choose, factor) for talk in oracle.talks(TALKS, 4, {})]
    recipe = QwenVL(checkpoint=str(tmp_path), policy="qwen-vl-utils")
    for talk, sample in zip(talks, oracle.index_of(media, talks, f"utils-{model}", llava=False)):
        ours = oracle.filled(recipe, sample)
        theirs = _expected(processor, talk, media, factor // 2)
        assert ours["input_ids"].tolist() == theirs["input_ids"][0].tolist(), talk
        assert (ours["position_ids"][1:] == oracle.rope_index(model, tmp_path, theirs)).all(), talk
        for kind, name in (("image", "pixel_values"), ("video", "pixel_values_videos")):
            grid = ours[f"{kind}_grid_thw"]
            assert grid.tolist() == (theirs[f"{kind}_grid_thw"].tolist() if len(grid) else []), talk
            if len(grid):
                distance = np.abs(ours[name] - oracle.levels(recipe, theirs[name]))
                assert distance.max() < 2.01, talk
                assert (distance > 1.01).mean() < 1e-3, talk


def _set(talk: oracle.Talk, choose: random.Random, factor: int) -> oracle.Talk:
    """With settings in the content elements, which keep pictures small."""
    tokens = factor * factor
    for turn in talk.messages:
        for part in turn["content"]:
            if part["type"] == "text":
                continue
            part.update(min_pixels=choose.choice([1, 2]) * tokens, max_pixels=choose.choice([3, 8]) * tokens)
            if part["type"] == "video":
                part.update(choose.choice([{}, {"fps": 1}, {"fps": 3.7}, {"nframes": 6}]))
                part.update(choose.choice([{}, {"video_start": 0.31}, {"video_end": 0.9}]))
    return talk


def _expected(processor: Any, talk: oracle.Talk, media: oracle.Media, patch: int) -> Any:
    names = {"image": iter(talk.pictures), "video": iter(talk.clips)}
    messages = [
        {
            **turn,
            "content": [
                part if part["type"] == "text" else {**part, part["type"]: _given(part, names, media)}
                for part in turn["content"]
            ],
        }
        for turn in talk.messages
    ]
    images, videos, kwargs = utils.process_vision_info(
        messages, return_video_kwargs=True, return_video_metadata=True, image_patch_size=patch
    )
    if videos is not None:
        kwargs["videos"] = [video for video, _ in videos]
        kwargs["video_metadata"] = [told for _, told in videos]
    text = processor.apply_chat_template(talk.messages, tokenize=False)
    return processor(text=[text], images=images, do_resize=False, return_tensors="pt", **kwargs)


def _given(part: dict[str, Any], names: dict[str, Any], media: oracle.Media) -> str:
    name = next(names[part["type"]])
    return str(media.folder / f"{name}.png") if part["type"] == "image" else str(name)
