"""Arrays of every dtype, and a small tokenizer, for tests."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from libhelix.recipe import DTYPES

SAFETENSORS = {
    "uint8": "U8", "int8": "I8", "bool": "BOOL", "int16": "I16", "uint16": "U16", "float16": "F16",
    "bfloat16": "BF16", "int32": "I32", "float32": "F32", "int64": "I64", "float64": "F64",
}  # fmt: skip

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
dtypes = st.sampled_from(sorted(DTYPES))


def array(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Any values; bfloat16 as its bits."""
    rng = np.random.default_rng(seed)
    made = rng.integers(0, 2 if dtype == "bool" else 100, shape)
    return np.asarray(made, "uint16" if dtype == "bfloat16" else dtype)


def write_safetensors(path: Path, arrays: Mapping[str, tuple[str, np.ndarray]]) -> Path:
    """As the format's description says; values by (dtype, array), in their order."""
    header: dict[str, Any] = {"__metadata__": {"made by": "a test"}}
    values = b""
    for name, (dtype, one) in arrays.items():
        offsets = [len(values), len(values) + one.nbytes]
        header[name] = {"dtype": SAFETENSORS[dtype], "shape": list(one.shape), "data_offsets": offsets}
        values += one.tobytes()
    return write_header(path, json.dumps(header).encode(), values)


def write_header(path: Path, header: bytes, values: bytes = b"") -> Path:
    """A .safetensors file of any header."""
    path.write_bytes(struct.pack("<Q", len(header)) + header + values)
    return path


def make_tokenizer(path: Path, *, vocabulary: int = 400) -> Path:
    """A byte-level BPE with <s> and </s> around a text; its own truncation and padding are traps."""
    import tokenizers
    from tokenizers import models, pre_tokenizers, processors, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    made.train_from_iterator(["the cat sat on the mat and the dog ran to the cat"] * 10, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    made.enable_truncation(5)
    made.enable_padding(length=9)
    made.save(str(path))
    return path
