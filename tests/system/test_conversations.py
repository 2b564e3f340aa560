"""Conversations through helixd: what workers make, in parts and out of order, is what one process makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from PIL import Image

import libhelix as hx
from libhelix.index.build import build
from tests.chats import make_checkpoint
from tests.clips import make_clip, picture

pytest.importorskip("tokenizers", reason="needs the extra chat")
pytest.importorskip("jinja2", reason="needs the extra chat")


def _batches(
    index: Path, checkpoint: Path, backend: Literal["daemon", "inline"], job: str
) -> list[dict[str, torch.Tensor]]:
    recipe = hx.recipes.QwenVL(
        checkpoint=str(checkpoint), video_min_pixels=784, video_max_pixels=8 * 784, empty_vision="dummy"
    )
    loader = hx.Loader(
        index, recipe=recipe, batching=hx.Packed(512), epochs=2, end="pad", backend=backend, job=job,
        dp_rank=0, dp_size=1,
    )  # fmt: skip
    with loader:
        return [{name: field.clone() for name, field in batch.items()} for batch in loader]


@pytest.mark.filterwarnings("ignore:.*private copies:libhelix.HelixWarning")
def test_workers_fill_conversations_as_one_process_does(job: str, tmp_path: Path) -> None:
    make_clip(tmp_path / "long.mp4", frames=240, gop=12, size=(84, 140))
    make_clip(tmp_path / "short.mp4", frames=24, gop=12, size=(84, 140))
    Image.fromarray(picture(3, (120, 90))).save(tmp_path / "p.png")
    medias = [{"video": "long.mp4"}, {"image": "p.png"}, {}, {"image": "p.png", "video": "short.mp4"}]
    lines = []
    for number in range(12):
        media = medias[number % 4]
        asked = "".join(f"<{kind}>" for kind in media) + f"number {number}?"
        turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": "It is. " * number}]
        lines.append(json.dumps({"id": number, "conversations": turns, **media}))
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    build([tmp_path / "x.jsonl"], tmp_path / "x.arrow")
    checkpoint = make_checkpoint(tmp_path / "checkpoint", files={"config.json": {"model_type": "qwen2_5_vl"}})
    alone = _batches(tmp_path / "x.arrow", checkpoint, "inline", job)
    together = _batches(tmp_path / "x.arrow", checkpoint, "daemon", job)
    assert len(alone) == len(together) >= 4
    for one, other in zip(alone, together):
        assert one.keys() == other.keys()
        for name, field in one.items():
            assert np.array_equal(field.numpy(), other[name].numpy()), name
