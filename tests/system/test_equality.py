"""Tensors from the daemon equal plain decoding, bit for bit."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

import libhelix as hx
from libhelix.index.read import Index
from libhelix.recipe import Rng
from tests.reference import decode_all, reference_clip
from tests.system.recipes import Drawn, Plain, Split

SIZE = (40, 72)


def _uniform(total: int, n: int) -> list[int]:
    return [int((i + 0.5) * total / n) for i in range(n)]


def _samples(batch: hx.Batch, layout: str, axis_lengths: list[int]) -> list[torch.Tensor]:
    """The samples of a batch, whatever its layout."""
    video = batch["video"]
    if layout == "pack":
        bounds = batch.host["video_cu_seqlens"].tolist()
        assert bounds == [0, *np.cumsum(axis_lengths)]
        return [video[a:b] for a, b in pairwise(bounds)]
    if layout == "pad":
        assert [s[0] for s in batch.shapes["video"]] == axis_lengths
        assert all(bool((video[i, n:] == 0).all()) for i, n in enumerate(axis_lengths))
        return [video[i, :n] for i, n in enumerate(axis_lengths)]
    return list(video)


@pytest.mark.parametrize("recipe", [hx.recipes.Clip, Split], ids=["whole", "split"])
@pytest.mark.parametrize("order", ["TCHW", "THWC"])
def test_uniform_clips_equal_plain_decoding(
    clips: Path, index: Path, job: str, recipe: type[hx.recipes.Clip], order: Literal["THWC", "TCHW"]
) -> None:
    with hx.Loader(
        index, recipe=recipe(frames=9, size=SIZE, order=order), batching=hx.FixedBatch(3), seed=5
    ) as loader:
        seen = 0
        for batch in loader:
            assert batch.valid.all()
            for key, video in zip(batch.sample_keys, batch["video"]):
                total = len(decode_all(clips / key))
                expected = reference_clip(clips / key, _uniform(total, 9), SIZE, order)
                assert np.array_equal(video.numpy(), expected), key
                seen += 1
        assert seen == 6


@pytest.mark.parametrize("recipe", [hx.recipes.Clip, Split], ids=["whole", "split"])
@pytest.mark.parametrize("layout", ["pad", "pack", "ragged"])
def test_clips_at_a_rate_equal_plain_decoding_in_every_layout(
    clips: Path,
    index: Path,
    job: str,
    recipe: type[hx.recipes.Clip],
    layout: Literal["pad", "pack", "ragged"],
) -> None:
    made = recipe(rate=5.0, size=SIZE, layout=layout)
    with hx.Loader(index, recipe=made, batching=hx.FixedBatch(4), seed=2, epochs=2) as loader:
        for batch in loader:
            # At 25 frames a second every fifth frame is on screen when the next one of five is due.
            totals = [len(decode_all(clips / key)) for key in batch.sample_keys]
            lengths = [len(range(0, total, 5)) for total in totals]
            samples = _samples(batch, layout, lengths)
            for key, total, video in zip(batch.sample_keys, totals, samples):
                expected = reference_clip(clips / key, list(range(0, total, 5)), SIZE)
                assert np.array_equal(video.numpy(), expected), key
            assert batch.num_tokens == sum(lengths) * (SIZE[0] // 16) * (SIZE[1] // 16)


def test_a_users_own_recipe_draws_the_same_numbers_as_its_rng(index: Path, job: str) -> None:
    with hx.Loader(index, recipe=Drawn(), batching=hx.FixedBatch(4), seed=11, epochs=2) as loader:
        for batch in loader:
            for i, sample in enumerate(batch.ids):
                rng = Rng(11, batch.epoch, sample)
                n = rng.integers(1, 9)
                assert batch["draws"][i].tolist() == [rng.integers(0, 1000) for _ in range(4)]
                assert batch.shapes["text"][i] == (n,)
                assert batch["text"][i].tolist() == [sample] * n + [7] * (16 - n)
                assert torch.equal(batch["list"][i], torch.full((n, 2), float(n)))
                assert batch["number"][i].item() == sample
            assert batch["half"].dtype == torch.bfloat16
            assert (batch["half"] == 1).all()
            assert batch["nothing"].shape == (4, 0, 5)
            assert batch.num_targets == batch.global_targets == 4


def test_images_come_as_the_recipe_says(tmp_path: Path, job: str) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for i in range(4):
        Image.fromarray(rng.integers(0, 255, (20, 30, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    with hx.Loader(
        tmp_path, recipe=hx.recipes.Image(size=(20, 30)), batching=hx.FixedBatch(2), shuffle=False
    ) as loader:
        (first, second) = list(loader)
        images = torch.cat([first["image"], second["image"]])
        for i in range(4):
            assert np.array_equal(images[i].numpy(), np.asarray(Image.open(tmp_path / f"{i}.png")))


def test_the_index_row_names_the_sample(index: Path, job: str) -> None:
    table = Index.open(index)
    with hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2)) as loader:
        for batch in loader:
            assert batch.sample_keys == tuple(table[i].key for i in batch.ids)
