"""A video, its caption and its latents in one batch: as the recipes say, and inline as from the daemon."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import libhelix as hx
from libhelix.errors import RecipeError
from libhelix.index import schema, tokens, writing
from libhelix.index.build import build
from libhelix.media import probe_items
from tests import stored
from tests.clips import make_clip
from tests.system.test_inline_and_state import _same

SAMPLES = 7
WORDS = ["the", "cat", "sat", "on", "the", "mat", "and"]

pytest.importorskip("tokenizers", reason="needs the extra text")


def letters(text: str) -> list[int]:
    """A tokenizer of one's own."""
    return [ord(c) for c in text]


def _caption(i: int) -> str:
    return " ".join(WORDS[: i + 1]) if i != 3 else ""


def _latent(i: int) -> np.ndarray:
    return stored.array("bfloat16", (4 + 3 * i, 5), i)


def _mask(i: int) -> np.ndarray:
    return stored.array("bool", (4 + 3 * i,), i)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    stored.make_tokenizer(folder / "tokenizer.json")
    for i in range(SAMPLES):
        make_clip(folder / f"{i}.mp4", 20 + i, gop=5)
        (folder / f"{i}.txt").write_text(_caption(i))
        arrays = {"latent": ("bfloat16", _latent(i)), "mask": ("bool", _mask(i))}
        stored.write_safetensors(folder / f"{i}.safetensors", arrays)
    return folder


@pytest.fixture(scope="module")
def several(folder: Path) -> Path:
    """An index of samples of four items each, with counted tokens."""
    samples: list[tokens.Keyed] = []
    for i in range(SAMPLES):
        items = [item for end in ("mp4", "txt", "safetensors") for item in probe_items(folder / f"{i}.{end}")]
        near = [msgspec.structs.replace(item, path=os.path.basename(item.path)) for item in items]
        samples.append((str(i), tuple(near)))
    counting = tokens.opened(folder / "tokenizer.json")
    samples, refused = tokens.counted(samples, str(folder), counting)
    assert not refused
    metadata = {
        schema.META_FORMAT: str(schema.FORMAT),
        schema.META_FINGERPRINT: schema.fingerprint(samples),
        schema.META_ROOT: str(folder),
        schema.META_REFUSED: "0",
        schema.META_TOKENIZER: counting.fingerprint,
    }
    rows = (schema.row(key, items) for key, items in samples)
    writing.write(schema.batch(rows, metadata), str(folder / "several.arrow"))
    return folder / "several.arrow"


def _recipe(folder: Path, layout: Any) -> hx.Recipe:
    return hx.recipes.Together(
        video=hx.recipes.Clip(frames=6, size=(24, 32)),
        caption=hx.recipes.Text(tokenizer=str(folder / "tokenizer.json"), layout=layout, pad=9),
        latent=hx.recipes.Tensor(names=("latent",), layout=layout, pad=2),
        mask=hx.recipes.Tensor(names=("mask",), layout="ragged"),
    )


def _each(batch: hx.Batch, name: str, layout: str) -> list[torch.Tensor]:
    if layout == "pack":
        bounds = batch.host[f"{name}_cu_seqlens"].tolist()
        return [batch[name][a:b] for a, b in pairwise(bounds)]
    if layout == "pad":
        return [row[: shape[0]] for row, shape in zip(batch[name], batch.shapes[name])]
    return list(batch[name])


@pytest.mark.parametrize("layout", ["pad", "pack", "ragged"])
def test_every_item_of_a_sample_comes_in_one_batch_inline_as_from_the_daemon(
    folder: Path, several: Path, job: str, layout: str
) -> None:
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.no_truncation()
    library.no_padding()

    def loader(backend: Any) -> hx.Loader:
        return hx.Loader(
            several,
            recipe=_recipe(folder, layout),
            batching=hx.FixedBatch(3),
            seed=4,
            epochs=2,
            backend=backend,
        )

    batches = 0
    with loader("daemon") as served, loader("inline") as inline:
        for batch, other in zip(served, inline, strict=True):
            _same(batch, other)
            assert batch.valid.all()
            assert batch["video"].shape == (3, 6, 24, 32, 3)
            ids = _each(batch, "caption_input_ids", layout)
            latents = _each(batch, "latent", layout)
            for at, number in enumerate(int(key) for key in batch.sample_keys):
                assert ids[at].tolist() == library.encode(_caption(number)).ids
                bits = latents[at].contiguous().view(torch.uint16).numpy()
                np.testing.assert_array_equal(bits, _latent(number))
                np.testing.assert_array_equal(batch["mask"][at].numpy(), _mask(number))
                if layout == "pad":
                    length = len(ids[at])
                    assert (batch["caption_input_ids"][at, length:] == 9).all()
                    assert (batch["caption_labels"][at, length:] == -100).all()
                    assert (batch["latent"][at, 4 + 3 * number :] == 2).all()
            batches += 1
    assert batches == 4


def test_counted_texts_are_packed_to_one_length(folder: Path, several: Path, job: str) -> None:
    recipe = hx.recipes.Text(tokenizer=str(folder / "tokenizer.json"), layout="pack", pad=9)
    packed = hx.Packed(32, pad_to=32)
    seen: list[str] = []
    with hx.Loader(several, recipe=recipe, batching=packed, shuffle=False) as loader:
        for batch in loader:
            assert batch["input_ids"].shape == batch["labels"].shape == (32,)
            assert (batch["input_ids"][batch.num_tokens :] == 9).all()
            assert (batch["labels"][batch.num_tokens :] == -100).all()
            assert batch.num_targets == batch.num_tokens
            seen += batch.sample_keys
    assert sorted(seen) == [str(i) for i in range(SAMPLES)]


def test_a_daemon_names_the_cure_where_packs_cannot_be_planned(
    folder: Path, job: str, tmp_path: Path
) -> None:
    build([folder / f"{i}.txt" for i in range(SAMPLES)], tmp_path / "x.arrow")
    recipe = hx.recipes.Text(tokenizer=str(folder / "tokenizer.json"), layout="pack")
    with (
        hx.Loader(tmp_path / "x.arrow", recipe=recipe, batching=hx.FixedBatch(1)) as loader,
        pytest.raises(RecipeError, match=r"helixctl index SRC -o OUT\.arrow --tokenizer"),
    ):
        next(iter(loader))


def test_a_sample_without_its_latent_is_masked_and_named(tmp_path: Path, job: str) -> None:
    for i in range(4):
        name = "latent" if i != 2 else "other"
        stored.write_safetensors(tmp_path / f"{i}.safetensors", {name: ("bfloat16", _latent(1))})
    recipe = hx.recipes.Tensor(names=("latent",))
    with (
        hx.Loader(tmp_path, recipe=recipe, batching=hx.FixedBatch(4), shuffle=False) as loader,
        pytest.warns(hx.HelixWarning, match=r"2\.safetensors: no array latent, only other"),
    ):
        (batch,) = list(loader)
    assert batch.valid.tolist() == [True, True, False, True]
    assert batch["latent"].shape == (4, 7, 5)


def test_texts_within_a_bound_come_with_their_true_shapes(folder: Path, tmp_path: Path, job: str) -> None:
    """Without a count and without the library: a function of one's own, which workers import."""
    build([folder / f"{i}.txt" for i in range(SAMPLES)], tmp_path / "x.arrow")
    recipe = hx.recipes.Text(function=f"{__name__}:letters", max_tokens=20)
    with hx.Loader(tmp_path / "x.arrow", recipe=recipe, batching=hx.FixedBatch(SAMPLES)) as loader:
        for batch in loader:
            for at, key in enumerate(batch.sample_keys):
                expected = letters(_caption(int(key[0])))[:20]
                assert batch.shapes["input_ids"][at] == (len(expected),)
                assert batch["input_ids"][at, : len(expected)].tolist() == expected
                assert (batch["labels"][at, len(expected) :] == -100).all()
