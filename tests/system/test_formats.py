"""helixd reads shards and JSONL where they lie, as the inline backend does."""

from __future__ import annotations

from pathlib import Path

import pytest

import libhelix as hx
from tests.clips import make_clip, read_number
from tests.index.sources import image, tar


def test_a_daemon_reads_a_tar_and_jsonl(tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path / "cache"))
    media = tmp_path / "media"
    media.mkdir()
    for i in range(4):
        (media / f"{i}.png").write_bytes(image(10 + i))
    shard = tar(tmp_path / "a.tar", [(f"{i}.png", image(i)) for i in range(4)])
    (media / "b.jsonl").write_text("".join(f'{{"id": "line {i}", "image": "{i}.png"}}\n' for i in range(4)))
    with hx.Loader(
        [shard, media / "b.jsonl"],
        recipe=hx.recipes.Image(size=(24, 36)),
        batching=hx.FixedBatch(4),
        shuffle=False,
        backend="daemon",
        job=job,
    ) as loader:
        found = [
            (key, read_number(picture.numpy()))
            for batch in loader
            for key, picture in zip(batch.sample_keys, batch["image"])
        ]
    assert found == [(str(i), i) for i in range(4)] + [(f"line {i}", 10 + i) for i in range(4)]


def test_a_daemon_reads_clips_inside_a_tar(tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path / "cache"))
    clips = [make_clip(tmp_path / f"{i}.mp4", 12, first_number=100 * i).read_bytes() for i in range(3)]
    shard = tar(tmp_path / "a.tar", [(f"{i}.mp4", clip) for i, clip in enumerate(clips)])
    with hx.Loader(
        shard,
        recipe=hx.recipes.Clip(frames=12, size=(96, 192), order="THWC"),
        batching=hx.FixedBatch(3),
        shuffle=False,
        backend="daemon",
        job=job,
    ) as loader:
        batch = next(iter(loader))
        numbers = [[read_number(frame) for frame in clip.numpy()] for clip in batch["video"]]
    assert numbers == [[100 * i + k for k in range(12)] for i in range(3)]
