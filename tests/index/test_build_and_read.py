"""An index comes back as it was probed, survives bad files, and refuses what it cannot read."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as Pil

from libhelix.errors import IndexProblem
from libhelix.index import probing
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.media import probe_file
from tests.clips import make_clip, picture


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    (folder / "b").mkdir()
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("not media")
    make_clip(folder / "b" / "cfr.mp4", 24)
    make_clip(folder / "b" / "vfr.mp4", 6, pts=[0, 1, 4, 5, 9, 20], fps=50)
    make_clip(folder / "a.avi", 24, codec="mpeg4")
    make_clip(folder / "turned.mp4", 6, rotation=90)
    make_clip(folder / "süß.webm", 6, codec="vp9")
    Pil.fromarray(picture(5, (30, 40))).save(folder / "c.png")
    (folder / "junk.mp4").write_bytes(b"junk" * 100)
    (folder / "README").write_text("read me")
    return folder


@pytest.fixture(scope="module")
def built(media: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "x.arrow"
    build([media], path, jobs=2)
    return path


def test_every_sample_comes_back_as_probed(media: Path, built: Path) -> None:
    index = Index.open(built)
    keys = [sample.key for sample in index]
    assert keys == ["a.avi", "b/cfr.mp4", "b/vfr.mp4", "c.png", "süß.webm", "turned.mp4"]
    for i in range(len(index)):
        sample = index[i]
        assert sample.id == i
        assert sample.items == (probe_file(media / sample.key),)
    with pytest.raises(IndexError):
        index[len(index)]


def test_bad_files_are_reported_not_fatal(media: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = build([media], tmp_path / "x.arrow", progress=lambda done, total: seen.append((done, total)))
    assert report.samples == 6
    assert [Path(p).name for p, _ in report.refused] == ["README", "junk.mp4"]
    assert all(p in reason for p, reason in report.refused)
    assert seen == [(i, 8) for i in range(1, 9)]
    assert Index.open(tmp_path / "x.arrow").refused == 2


def test_the_fingerprint_follows_content_not_place_or_time(media: Path, built: Path, tmp_path: Path) -> None:
    first = Index.open(built)
    moved = tmp_path / "moved"
    shutil.copytree(media, moved)
    os.utime(moved / "c.png")
    report = build([moved], tmp_path / "y.arrow", jobs=1)
    assert report.fingerprint == first.fingerprint
    make_clip(moved / "b" / "cfr.mp4", 25)
    assert build([moved], tmp_path / "y.arrow").fingerprint != first.fingerprint


def test_a_moved_root_is_given_when_opening(media: Path, built: Path, tmp_path: Path) -> None:
    index = Index.open(built, root=tmp_path / "new")
    assert index[0].items[0].path == str(tmp_path / "new" / "a.avi")
    assert Index.open(built).root == str(media)


def test_files_and_folders_mix_and_count_once(media: Path, tmp_path: Path) -> None:
    build([media / "b", media / "b" / "cfr.mp4", media / "c.png"], tmp_path / "x.arrow")
    index = Index.open(tmp_path / "x.arrow")
    assert index.root == str(media)
    assert [s.key for s in index] == ["b/cfr.mp4", "b/vfr.mp4", "c.png"]


def test_the_output_is_not_its_own_source(tmp_path: Path) -> None:
    make_clip(tmp_path / "a.mp4", 4)
    for _ in range(2):
        assert build([tmp_path], tmp_path / "x.arrow").refused == []
    assert sorted(os.listdir(tmp_path)) == ["a.mp4", "x.arrow"]


def test_nothing_usable_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"junk" * 100)
    with pytest.raises(IndexProblem, match=r"nothing to index.*a\.mp4: unreadable"):
        build([tmp_path], tmp_path / "x.arrow")
    with pytest.raises(IndexProblem, match="no such file"):
        build([tmp_path / "nothing"], tmp_path / "x.arrow")
    with pytest.raises(IndexProblem, match=r"there is no directory .*no; create it"):
        build([tmp_path], tmp_path / "no" / "x.arrow")
    with pytest.raises(
        IndexProblem, match=r"^/proc/x\.arrow: cannot be written \([^()]*\); .* another output$"
    ):
        build([tmp_path], "/proc/x.arrow")
    with pytest.raises(IndexProblem, match="no source"):
        build([], tmp_path / "x.arrow")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="file names are bytes on Linux only")
def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    good = make_clip(tmp_path / "a.mp4", 4)
    shutil.copy(str(good), os.fsdecode(os.fsencode(tmp_path) + b"/\xff.mp4"))
    report = build([tmp_path], tmp_path / "x.arrow")
    assert report.samples == 1
    assert "not UTF-8" in report.refused[0][1]


@pytest.mark.parametrize("questions", [8, 1])
def test_a_file_that_kills_the_scanner_is_left_out(
    media: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, questions: int
) -> None:
    """A stand-in scanner that dies of one file, as a decoder with a bug would."""
    monkeypatch.setattr(
        probing,
        "_SCAN",
        "import os, libhelix.media as m, libhelix.index.scan as s\n"
        "real = m.probe_items\n"
        "m.probe_items = lambda p: os.kill(os.getpid(), 11) if p.endswith('c.png') else real(p)\n"
        "s.main()",
    )
    monkeypatch.setattr(probing, "_QUESTIONS_PER_PROCESS", questions)
    seen: list[tuple[int, int]] = []
    report = build([media], tmp_path / "x.arrow", jobs=1, progress=lambda n, total: seen.append((n, total)))
    assert seen == [(i, 8) for i in range(1, 9)]
    assert report.samples == 5
    assert any("c.png" in reason and "SIGSEGV" in reason for _, reason in report.refused)


def test_other_files_are_no_index(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    with pytest.raises(IndexProblem, match="No such file"):
        Index.open(path)
    path.write_bytes(b"junk" * 1000)
    with pytest.raises(IndexProblem, match="no index"):
        Index.open(path)
    path.write_bytes(b"")
    with pytest.raises(IndexProblem, match="no index"):
        Index.open(path)
    body = built.read_bytes()
    for part in (0.1, 0.5, 0.99):
        path.write_bytes(body[: int(len(body) * part)])
        with pytest.raises(IndexProblem, match="truncated"):
            Index.open(path)


@pytest.mark.parametrize(
    ("metadata", "text"), [({}, "no DataHelix index"), ({"helix.format": "99"}, "format 99")]
)
def test_other_arrow_files_are_refused(metadata: dict[str, str], text: str, tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(3)}).replace_schema_metadata(metadata)
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(IndexProblem, match=text):
        Index.open(tmp_path / "x.arrow")


def test_reading_needs_neither_torch_nor_av(built: Path) -> None:
    import subprocess

    code = (
        "import sys; from libhelix.index.read import Index; "
        f"Index.open({str(built)!r})[0]; print([m for m in ('av', 'torch') if m in sys.modules])"
    )
    repo = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=repo)
    assert done.stdout.strip() == "[]"


def test_an_output_that_is_somebodys_file_is_not_replaced(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "a.mp4", 10)
    before = clip.read_bytes()
    with pytest.raises(IndexProblem, match=r"a\.mp4: exists and is no index; it is not replaced"):
        build([clip], clip)
    assert clip.read_bytes() == before
    index = tmp_path / "x.arrow"
    for _ in range(2):  # an index of before is
        assert build([clip], index).samples == 1
