"""Sound through real workers: what inline gives, and pictures and sound of one video together."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch

import libhelix as hx
from libhelix.index.build import build
from tests.clips import make_clip
from tests.sounds import CODECS, encode, tones, with_sound

Backend = Literal["daemon", "inline"]
RECIPES: dict[str, hx.Recipe] = {
    "pad": hx.recipes.Audio(channels=2),
    "pack": hx.recipes.Audio(dtype="int16", layout="pack"),
    "ragged": hx.recipes.Audio(rate=44_100, layout="ragged"),
    "stack": hx.recipes.Audio(seconds=1.5, start="random", layout="stack"),
}


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of a sound of every codec, and of a video with sound."""
    folder = tmp_path_factory.mktemp("sounds")
    for i, suffix in enumerate(sorted(CODECS)):
        encode(folder / f"{i}.{suffix}", tones(1 + i / 2, 48_000, 2), 48_000)
    silent = make_clip(folder.parent / "silent.mp4", 50)
    with_sound(folder / "film.mp4", silent, tones(2, 48_000, 2), 48_000, "aac")
    report = build([folder], folder.parent / "sounds.arrow")
    assert (report.samples, report.refused) == (7, [])
    return folder.parent / "sounds.arrow"


@pytest.mark.parametrize("layout", sorted(RECIPES))
def test_inline_and_daemon_give_the_same_sound(sounds: Path, job: str, layout: str) -> None:
    def loader(backend: Backend) -> hx.Loader:
        return hx.Loader(
            sounds, recipe=RECIPES[layout], batching=hx.FixedBatch(2), seed=5, epochs=2, backend=backend
        )

    with loader("daemon") as served, loader("inline") as inline:
        count = 0
        for a, b in zip(served, inline, strict=True):
            assert a.sample_keys == b.sample_keys
            assert a.num_tokens == b.num_tokens
            assert bool(a.valid.all())
            one, other = a["audio"], b["audio"]
            pairs = zip(one, other, strict=True) if isinstance(one, list) else [(one, other)]
            for x, y in pairs:
                assert x.dtype == y.dtype
                assert torch.equal(x, y)
            count += 1
        assert count == len(served) >= 6
