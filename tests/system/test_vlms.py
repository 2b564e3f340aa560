"""InternVL, LLaVA-OneVision and Qwen2-Audio through helixd: what workers make is what one process makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch

import libhelix as hx
from libhelix.recipes import InternVL, LlavaOneVision, Qwen2Audio
from tests.clips import make_clip
from tests.recipes.test_vlms_page import Lines, draw, write_lines
from tests.sounds import tones, write_wav
from tests.vlms import LLAVA, QWEN2_AUDIO, TEXTS, checkpoint

Make = Callable[[str], hx.Recipe]


def _batches(
    source: Path, recipe: hx.Recipe, most: int, backend: Literal["daemon", "inline"], job: str
) -> list[dict[str, torch.Tensor]]:
    loader = hx.Loader(
        source, recipe=recipe, batching=hx.Packed(most), epochs=1, end="pad", backend=backend, job=job,
        dp_rank=0, dp_size=1,
    )  # fmt: skip
    with loader:
        return [{name: field.clone() for name, field in batch.items()} for batch in loader]


@pytest.mark.filterwarnings("ignore:.*private copies:libhelix.HelixWarning")
@pytest.mark.parametrize(
    ("template", "make", "most"),
    [
        (TEXTS, lambda path: InternVL(path, max_tiles=4, max_frames=9, empty_vision="dummy"), 4096),
        (LLAVA, lambda path: LlavaOneVision(path, max_frames=9, force=True), 4096),
        (QWEN2_AUDIO, Qwen2Audio, 256),
    ],
)
def test_workers_fill_conversations_as_one_process_does(
    job: str, tmp_path: Path, template: str, make: Make, most: int
) -> None:
    one, film = draw(tmp_path / "a.png", (300, 500)), make_clip(tmp_path / "a.mp4", 120).name
    sound = write_wav(tmp_path / "a.wav", tones(2, 16_000), 16_000).name
    seen: Lines = [({"image": one}, "<image>?"), ({"video": film}, "<video>?"), ({}, "What?")]
    heard: Lines = [({"audio": sound}, "<audio>?"), ({"audios": [sound] * 2}, "<audio><audio>?"), ({}, "?")]
    recipe = make(checkpoint(tmp_path / "model", template))
    lines = [*(heard if isinstance(recipe, Qwen2Audio) else seen)] * 3
    source = write_lines(tmp_path / "train.jsonl", lines)
    alone = _batches(source, recipe, most, "inline", job)
    together = _batches(source, recipe, most, "daemon", job)
    assert len(alone) == len(together) >= 2
    for ours, theirs in zip(alone, together):
        assert ours.keys() == theirs.keys()
        for name, field in ours.items():
            assert torch.equal(field, theirs[name]), name
