"""Random conversations over a few pictures and clips, and the processors of transformers for them.

transformers and torchvision are not among what CI installs: what uses this is skipped without them.
"""

from __future__ import annotations

import importlib
import json
import random
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.media import pixels
from libhelix.media.sampler import decode
from libhelix.recipe import Part, Rng, Sample, check_descriptor
from libhelix.recipes import QwenVL
from tests.chats import CHATML, SPECIAL, make_tokenizer
from tests.clips import make_clip, picture

PICTURES = {
    "square": (64, 64), "wide": (60, 150), "tall": (200, 70), "large": (230, 310), "small": (30, 40),
    "exact": (112, 84),
}  # fmt: skip
CLIPS = {
    "short": (12, (48, 64), 10), "wide": (50, (48, 128), 12), "tall": (47, (128, 96), 24),
    "long": (200, (64, 64), 25), "odd": (33, (80, 112), 8),
}  # fmt: skip
"""Frames, size, frames per second."""
MODULES = {"qwen2-vl": "qwen2_vl", "qwen2.5-vl": "qwen2_5_vl", "qwen3-vl": "qwen3_vl"}
_CLASSES = {"qwen2-vl": "Qwen2VL", "qwen2.5-vl": "Qwen2_5_VL", "qwen3-vl": "Qwen3VL"}
_WORDS = (
    "What is in it?", " ", "\n", "süß", "日本語", "a cat", "  two spaces", "0.2 seconds>", "<b>", "\t", "",
    "A dog on a mat.\n\nYes", "<", "|im_end|>", "\U0001f469\u200d\U0001f680",
)  # fmt: skip


class Media(NamedTuple):
    """A folder with pictures and clips, and all that they show: [h, w, 3], [frames, h, w, 3]."""

    folder: Path
    pictures: Mapping[str, np.ndarray]
    clips: Mapping[str, np.ndarray]
    rates: Mapping[str, float]


class Talk(NamedTuple):
    """A conversation in the shape of messages, the names of its media, and the settings of its line."""

    messages: list[dict[str, Any]]
    pictures: list[str]
    clips: list[str]
    settings: dict[str, float]


def make_media(folder: Path) -> Media:
    """All pictures and clips, and what they show as our decoder has it."""
    pictures, clips, rates = {}, {}, {}
    for number, (name, size) in enumerate(PICTURES.items()):
        pictures[name] = picture(number * 37, size)
        Image.fromarray(pictures[name]).save(folder / f"{name}.png")
    lines = []
    for name, (frames, size, fps) in CLIPS.items():
        make_clip(folder / f"{name}.mp4", frames, size=size, fps=fps)
        lines.append(json.dumps({"id": name, "video": f"{name}.mp4"}))
    (folder / "clips.jsonl").write_text("\n".join(lines))
    build([folder / "clips.jsonl"], folder / "clips.arrow")
    for sample in Index.open(folder / "clips.arrow"):
        item = sample.item("video")
        assert item.video is not None
        shown = np.empty((item.video.frames, *item.video.display_size, 3), np.uint8)

        def put(frame: int, decoded: Any, shown: np.ndarray = shown) -> None:
            shown[frame] = pixels.rgb(decoded, decoded.height, decoded.width)

        decode(item, range(item.video.frames), put)
        clips[sample.key], rates[sample.key] = shown, item.video.fps
    return Media(folder, pictures, clips, rates)


def talks(count: int, seed: int, settings: Mapping[str, Any]) -> Iterator[Talk]:
    """Random ones. `settings`: what a line may say, and the values to choose from."""
    random_ = random.Random(seed)
    for _ in range(count):
        messages: list[dict[str, Any]] = []
        names: dict[str, list[str]] = {"image": [], "video": []}
        if random_.random() < 0.3:
            messages.append({"role": "system", "content": [_text(random_)]})
        for _ in range(random_.randint(1, 3)):
            content = []
            for kind in random_.choices(("text", "image", "video"), (4, 2, 1), k=random_.randint(1, 4)):
                if kind == "text":
                    content.append(_text(random_))
                else:
                    content.append({"type": kind})
                    names[kind].append(random_.choice(list(PICTURES if kind == "image" else CLIPS)))
            messages.append({"role": "user", "content": content})
            messages.append({"role": "assistant", "content": [_text(random_)]})
        chosen = {name: random_.choice(values) for name, values in settings.items() if random_.random() < 0.4}
        yield Talk(messages, names["image"], names["video"], chosen)


def _text(random_: random.Random) -> dict[str, str]:
    return {"type": "text", "text": " ".join(random_.choices(_WORDS, k=random_.randint(1, 5)))}


def index_of(media: Media, all_talks: list[Talk], name: str, *, llava: bool = True) -> Index:
    """An index of lines: with `llava` every second one in LLaVA's shape."""
    sides = {"system": "system", "user": "human", "assistant": "gpt"}
    lines = []
    for number, talk in enumerate(all_talks):
        line: dict[str, Any] = {"id": number, **talk.settings}
        line["images"] = [f"{one}.png" for one in talk.pictures]
        line["videos"] = [f"{one}.mp4" for one in talk.clips]
        if number % 2 or not llava:
            line["messages"] = talk.messages
        else:
            line["conversations"] = [
                {
                    "from": sides[turn["role"]],
                    "value": "".join(part.get("text", f"<{part['type']}>") for part in turn["content"]),
                }
                for turn in talk.messages
            ]
        lines.append(json.dumps(line))
    (media.folder / f"{name}.jsonl").write_text("\n".join(lines))
    build([media.folder / f"{name}.jsonl"], media.folder / f"{name}.arrow")
    return Index.open(media.folder / f"{name}.arrow")


def make_processor(model: str, folder: Path, image: Mapping[str, int], video: Mapping[str, int]) -> Any:
    """A processor of our parts, saved with a configuration of the model in a folder: a checkpoint."""
    transformers = importlib.import_module("transformers")

    make_tokenizer(folder / "tokenizer.json")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=list(SPECIAL[1:]),
    )
    own = {"patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3} if model == "qwen3-vl" else {}
    pictures = transformers.Qwen2VLImageProcessor(size=dict(image), **own)
    videos = getattr(transformers, "Qwen3VLVideoProcessor" if own else "Qwen2VLVideoProcessor")(
        size=dict(video), fps=2.0, cap_pixels_per_frame=False
    )
    cls = getattr(transformers, f"{_CLASSES[model]}Processor")
    processor = cls(pictures, tokenizer, videos, chat_template=CHATML)
    processor.save_pretrained(folder)
    config = getattr(transformers, f"{_CLASSES[model]}Config")()
    if model == "qwen2.5-vl":
        config.vision_config.tokens_per_second = 2
    config.save_pretrained(folder)
    return processor


def expected(processor: Any, talk: Talk, media: Media, **kwargs: Any) -> Mapping[str, Any]:
    """What the processor makes of a conversation, with frames sampled by itself."""
    metadata = importlib.import_module("transformers.video_utils").VideoMetadata
    text = processor.apply_chat_template(talk.messages, tokenize=False)
    videos = [media.clips[name].transpose(0, 3, 1, 2) for name in talk.clips]
    told = [
        metadata(total_num_frames=len(media.clips[name]), fps=media.rates[name], duration=1.0)
        for name in talk.clips
    ]
    if videos:
        kwargs = {**kwargs, "videos": videos, "video_metadata": told}
    if talk.pictures:
        kwargs["images"] = [media.pictures[name].transpose(2, 0, 1) for name in talk.pictures]
    found: Mapping[str, Any] = processor(text=[text], return_tensors="pt", **kwargs)
    return found


def filled(recipe: QwenVL, sample: Sample) -> dict[str, np.ndarray]:
    """All fields of a sample."""
    desc = check_descriptor(recipe.describe(sample, Rng(0, 0, 0)), "QwenVL")
    out = {field.name: np.full(field.shape, 77, field.dtype) for field in desc.fields}
    recipe.fill(sample, desc, Part(0, desc.units, desc.units), out)
    return out


def levels(recipe: QwenVL, theirs: Any) -> np.ndarray:
    """A model's floats as levels of 255."""
    scale, shift = recipe.scale_and_shift()
    found: np.ndarray = (theirs.numpy() - shift) / scale
    return found


def rope_index(model: str, folder: Path, found: Mapping[str, Any]) -> np.ndarray:
    """What the model's own `get_rope_index` says, [3, n]; no model is made."""
    import torch

    transformers = importlib.import_module("transformers")

    module = importlib.import_module(f"transformers.models.{MODULES[model]}.modeling_{MODULES[model]}")
    cls = getattr(module, f"{_CLASSES[model]}Model")
    bare = types.SimpleNamespace(config=transformers.AutoConfig.from_pretrained(folder))
    bare.get_vision_position_ids = types.MethodType(cls.get_vision_position_ids, bare)
    names = ("input_ids", "mm_token_type_ids", "image_grid_thw", "video_grid_thw")
    given = {name: found.get(name) for name in names}
    if model == "qwen2.5-vl" and "second_per_grid_ts" in found:
        given["second_per_grid_ts"] = torch.as_tensor(found["second_per_grid_ts"])
    positions, _ = cls.get_rope_index(bare, **given)
    rows: np.ndarray = positions[:, 0].numpy()
    return rows


def tiny_model(model: str, folder: Path) -> Any:
    """A model of two layers with random weights, for the tokens of a checkpoint's folder."""
    import torch

    transformers = importlib.import_module("transformers")

    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    ids = {token["content"]: token["id"] for token in tokens}
    text = {
        "vocab_size": 400, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]},
    }  # fmt: skip
    vision: dict[str, Any] = {"depth": 2, "hidden_size": 32, "num_heads": 4}
    if model == "qwen2-vl":
        vision["embed_dim"] = 32
    else:
        vision |= {"intermediate_size": 64, "out_hidden_size": 32}
    if model == "qwen2.5-vl":
        vision |= {"fullatt_block_indexes": [1], "tokens_per_second": 2}
    if model == "qwen3-vl":
        text["head_dim"] = 8
        vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
    config = getattr(transformers, f"{_CLASSES[model]}Config")(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    torch.manual_seed(0)
    made = getattr(transformers, f"{_CLASSES[model]}ForConditionalGeneration")(config)
    return made.eval()
