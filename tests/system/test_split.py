"""A clip that several cores decode has the pixels that one would give it: in parts, and with threads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest
import torch

import libhelix as hx
from bench.split.recipe import DecodedPart, take_notes
from libhelix.index.build import build
from tests.clips import make_clip
from tests.system.recipes import Dear

BATCHES = 6
CORES = sorted(os.sched_getaffinity(0))[:2]


def _decoded(
    index: Path, notes: Path, job: str, *, cut: bool, backend: Literal["daemon", "inline"] = "daemon"
) -> tuple[list[torch.Tensor], list[DecodedPart]]:
    """The only clip of the index, several times, and the parts that it came in."""
    notes.mkdir()  # of its own: workers may still be at a batch that a loader closed before did not take
    loader = hx.Loader(
        index,
        recipe=Dear(frames=40, size=(48, 96), notes=str(notes), cut=cut),
        batching=hx.FixedBatch(1),
        epochs=BATCHES,
        ring=1,  # one at a time: no core is busy with the next
        backend=backend,
        job=job,
        dp_rank=0,
        dp_size=1,
    )
    with loader:
        videos = [batch["video"] for batch in loader]
    return videos, take_notes(notes)


@pytest.mark.filterwarnings("ignore:.*private copies:libhelix.HelixWarning")
@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_parts_and_threads_give_the_pixels_of_the_whole(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIX_CORES", ",".join(map(str, CORES)))
    monkeypatch.setenv("HELIX_RESERVE", "0")
    make_clip(tmp_path / "clip.mp4", frames=240, gop=12, bframes=3)
    index = tmp_path / "index.arrow"
    build([tmp_path / "clip.mp4"], index)

    (whole, *_), _ = _decoded(index, tmp_path / "inline", job, cut=True, backend="inline")
    in_parts, parts = _decoded(index, tmp_path / "parts", job, cut=True)
    threaded, pieces = _decoded(index, tmp_path / "threads", job, cut=False)

    assert all(part.end - part.begin < 40 for part in parts)
    assert len({part.pid for part in parts}) == 2
    assert {(part.begin, part.end) for part in pieces} == {(0, 40)}
    assert max(part.threads for part in pieces) == 2
    assert len(in_parts) == len(threaded) == BATCHES
    for video in (*in_parts, *threaded):
        assert torch.equal(video, whole)
