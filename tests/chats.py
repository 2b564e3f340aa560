"""Checkpoints for tests: a tiny tokenizer with Qwen's special tokens, and chat templates of our own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
TEXT = (
    "system user assistant You are a helpful assistant. What is in the picture? A cat on a mat, and a dog. "
    "0.2 seconds 1.5 seconds 12.7 seconds Compare both videos, please\n\nYes\n\nNo\n\nYes\n\nNo\n\n"
)
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""Where Qwen's tokenizers cut a text before they merge bytes."""

CHATML = """\
{%- for message in messages %}
{%- if loop.first and message.role != 'system' %}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'image' or 'image' in part %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'video' or 'video' in part %}
{{- '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- elif 'text' in part %}
{{- part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""As published for Qwen2-VL and later: media in between, a system turn that nobody wrote, ChatML."""


def make_tokenizer(path: Path) -> None:
    """A byte-level BPE as Qwen's, of 300 tokens and the special ones."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator([TEXT] * 3, trainer)
    made.add_special_tokens([tokenizers.AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    made.save(str(path))


def make_checkpoint(
    folder: Path, *, template: str = CHATML, files: Mapping[str, Any] | None = None, **config: Any
) -> Path:
    """A folder with tokenizer and template, and other files as JSON objects; preprocessor_config.json, which
    published checkpoints have, says nothing unless it is given."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer(folder / "tokenizer.json")
    special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    written = {
        "tokenizer_config.json": {**special, **config},
        "preprocessor_config.json": {},
        **(files or {}),
    }
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(template)
    return folder
