"""Real processes: a data set of small clips, a job of one's own, and nothing left behind."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from libhelix.index.build import build
from tests.clips import make_clip
from tests.system import processes

CLIPS = (
    ("a.mp4", {"frames": 60, "codec": "h264", "gop": 12}),
    ("b.mp4", {"frames": 33, "codec": "h264", "gop": 250, "bframes": 3}),
    ("c.mkv", {"frames": 48, "codec": "mpeg4", "size": (64, 96)}),
    ("d.webm", {"frames": 20, "codec": "vp9", "size": (120, 90)}),
    ("e.mp4", {"frames": 75, "codec": "h264", "gop": 5, "rotation": 90}),
    ("f.mp4", {"frames": 5, "codec": "h264", "gop": 12}),
    ("g.mp4", {"frames": 41, "codec": "h264", "gop": 10, "start": 40}),
    ("h.mp4", {"frames": 24, "codec": "h264", "gop": 8, "size": (100, 100)}),
)


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of eight clips."""
    folder = tmp_path_factory.mktemp("clips")
    for name, how in CLIPS:
        make_clip(folder / name, **how)  # type: ignore[arg-type]
    return folder


@pytest.fixture(scope="session")
def index(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of those clips."""
    path = tmp_path_factory.mktemp("index") / "clips.arrow"
    build([clips], path)
    return path


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A job name of the test's own. Afterwards no process, socket or segment of it may be left."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    monkeypatch.setenv("HELIX_JOB", name)
    monkeypatch.delenv("HELIX_SOCKET", raising=False)
    before = processes.open_descriptors(os.getpid())
    yield name
    processes.expect_nothing_left(name)
    assert processes.open_descriptors(os.getpid()) <= before, "the test process leaks descriptors"
