"""Tiny checkpoints of InternVL, LLaVA-OneVision and Qwen2-Audio, and samples for them."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from libhelix.media import probe_items
from libhelix.recipe import Descriptor, Item, Part, Recipe, Rng, Sample, TextInfo, check_descriptor
from tests.chats import make_checkpoint

Array = np.ndarray[Any, np.dtype[Any]]

TOKENS = (
    "<img>", "</img>", "<IMG_CONTEXT>", "<image>", "<video>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>",
)  # fmt: skip
"""Of all three models, beside Qwen's own."""

TEXTS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content + '' }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML of turns that are texts, as OpenGVLab's checkpoints have it."""

INTERNVL = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}"
    "{% elif part['type'] == 'video' %}{{ '<video>\n' }}"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""As the checkpoints for transformers have it: a line break behind each picture."""

LLAVA = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + ' ' }}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'video') %}{{ '<video>' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ '\n' + part['text'] }}{% endgeneration %}"
    "{% else %}{{ '\n' + part['text'] }}{% endif %}"
    "{% endfor %}{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""As published: pictures first, then videos, then the text; what is generated is marked."""

QWEN2_AUDIO = (
    "{% set n = namespace(value=0) %}{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'audio' %}{% set n.value = n.value + 1 %}"
    "Audio {{ n.value }}: <|audio_bos|><|AUDIO|><|audio_eos|>\n{% elif 'text' in part %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As published: sounds are counted, and an assistant's turn begins with a line break of its own."""


def checkpoint(folder: Path, template: str, **processor: Any) -> str:
    """A folder with a tokenizer that knows all tokens, a template, and a preprocessor_config.json."""
    import tokenizers

    settings = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.5], **processor}
    make_checkpoint(folder, template=template, files={"preprocessor_config.json": settings})
    path = str(folder / "tokenizer.json")
    known = tokenizers.Tokenizer.from_file(path)
    known.add_special_tokens([tokenizers.AddedToken(one, special=True, normalized=False) for one in TOKENS])
    known.save(path)
    return str(folder)


def sample_of(folder: Path, turns: Sequence[Any], *media: Path, sounds: bool = True) -> Sample:
    """A sample with these media and a conversation: ("human", "<image>What?"), or OpenAI's messages."""
    items = [item for path in media for item in probe_items(path) if sounds or item.kind != "audio"]
    if turns and isinstance(turns[0], dict):
        line: dict[str, Any] = {"messages": turns}
    else:
        line = {"conversations": [{"from": role, "value": value} for role, value in turns]}
    path = folder / f"{abs(hash(json.dumps(line)))}.json"
    path.write_text(json.dumps(line))
    text = Item(kind="text", path=str(path), offset=0, size=path.stat().st_size, mtime_ns=0, text=TextInfo())
    return Sample(0, "a sample", (*items, msgspec.structs.replace(text, name="conversations")))


def filled(
    recipe: Recipe, sample: Sample, rng: Rng | None = None, bounds: Sequence[int] = ()
) -> tuple[Descriptor, dict[str, Array]]:
    """All fields of a sample, written in the parts that `bounds` (whole by default) make."""
    draws = (1, 2, 3)
    desc = check_descriptor(recipe.describe(sample, rng or Rng(*draws)), type(recipe).__name__)
    out = {field.name: np.full(field.shape, 77, field.dtype) for field in desc.fields}
    for a, b in pairwise(bounds or (0, desc.units)):
        part = Part(a, b, desc.units)
        rows = {f.name: out[f.name][a * f.rows_per_unit : b * f.rows_per_unit] for f in desc.fields
                if f.rows_per_unit}  # fmt: skip
        once = {f.name: out[f.name] for f in desc.fields if not f.rows_per_unit and part.first}
        recipe.fill(sample, desc, part, {**once, **rows})
    return desc, out


def words(folder: str, ids: Array) -> str:
    """Tokens as text; a run of one token, of more than two, as that token and how often: <image>*729."""
    import tokenizers

    known = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    edges = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)] if len(ids) else [0]
    said = ""
    plain: list[int] = []
    for a, b in pairwise(edges):
        if b - a > 2 and known.id_to_token(int(ids[a])) in TOKENS:
            said += known.decode(plain, skip_special_tokens=False)
            said += f"{known.id_to_token(int(ids[a]))}*{b - a}"
            plain = []
        else:
            plain += ids[a:b].tolist()
    return said + known.decode(plain, skip_special_tokens=False)


def learned(folder: str, out: Mapping[str, Array]) -> list[str]:
    """What is a target, stretch by stretch."""
    targets = out["labels"] != -100
    np.testing.assert_array_equal(out["labels"][targets], out["input_ids"][targets])
    edges = np.flatnonzero(np.diff(targets, prepend=False, append=False)).reshape(-1, 2)
    return [words(folder, out["input_ids"][a:b]) for a, b in edges.tolist()]


def need_torchvision() -> None:
    """Skip the module that needs torchvision where there is none.

    One for CUDA beside a torch for CPU finds none of its operators, and asks for two of them when imported.
    Scaling pictures needs neither.
    """
    torch = pytest.importorskip("torch", reason="the processors of transformers need torch")
    try:
        pytest.importorskip("torchvision", reason="the processors of transformers need torchvision")
    except RuntimeError:
        made = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            made.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(made)
        importlib.import_module("torchvision")


_kept: list[Any] = []
"""Operators are forgotten with what defined them."""


def rows_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Pillow scale along the rows first, as it did before version 13 and torchvision does."""
    from PIL import Image

    at_once: Any = Image.Image.resize

    def resize(image: Any, size: Sequence[int], *more: Any, **settings: Any) -> Any:
        rows = at_once(image, (size[0], image.height), *more, **settings)
        return at_once(rows, tuple(size), *more, **settings)

    monkeypatch.setattr(Image.Image, "resize", resize)
