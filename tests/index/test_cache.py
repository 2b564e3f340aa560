"""A directory is indexed once, by one process, until something in it changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from libhelix.index import cache
from libhelix.index.build import build
from libhelix.index.cache import open_or_build
from tests.clips import make_clip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "media").mkdir()
    make_clip(tmp_path / "media" / "a.mp4", 4)
    return tmp_path / "media"


def test_a_folder_is_indexed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_or_build(folder)
    with monkeypatch.context() as patched:
        patched.setattr(cache, "build", lambda *_, **__: pytest.fail("built again"))
        assert open_or_build([folder]).path == first.path
    make_clip(folder / "b.mp4", 4)
    assert len(first) == 1
    assert [s.key for s in open_or_build(folder)] == ["a.mp4", "b.mp4"]


def test_an_index_file_is_opened_as_it_is(folder: Path, tmp_path: Path) -> None:
    build([folder], tmp_path / "x.arrow")
    assert open_or_build(tmp_path / "x.arrow").path == str(tmp_path / "x.arrow")


def test_processes_that_ask_at_once_build_once(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys, libhelix.index.cache as c\n"
        "real = c.build\n"
        "def build(*a, **k):\n"
        "    print('built')\n"
        "    return real(*a, **k)\n"
        "c.build = build\n"
        f"print(len(c.open_or_build({str(folder)!r})))\n"
    )
    repo = Path(__file__).parents[2]
    askers = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=repo)
        for _ in range(3)
    ]
    said = "".join(asker.communicate(timeout=60)[0] for asker in askers)
    assert said.split().count("1") == 3
    assert said.count("built") == 1
