"""Folders, patterns, and files that belong together by their stem."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from libhelix.errors import IndexProblem
from libhelix.index import sources as listing
from libhelix.index.build import build
from libhelix.index.read import Index
from tests.clips import make_clip
from tests.index.sources import image, indexed, names, probe_here, reasons, tar


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return probe_here(monkeypatch)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    folder = tmp_path / "pairs"
    (folder / "b").mkdir(parents=True)
    for name in ("a", "b/a", "c"):
        make_clip(folder / f"{name}.mp4", 4)
        (folder / f"{name}.txt").write_text("a cat")
    return folder


def test_files_of_one_stem_are_one_sample(pairs: Path, tmp_path: Path, here: list[str]) -> None:
    (pairs / "alone.txt").write_text("no video")
    (pairs / "c.bak").write_text("junk")
    index, report = indexed(pairs, output=tmp_path / "x.arrow", group="stem")
    each = [("video", "mp4"), ("text", "txt")]
    assert names(index) == {"a": each, "b/a": each, "c": each}
    assert "pairs/alone: the sample has txt but no video" in reasons(report)
    assert "c.bak: " in reasons(report)


def test_without_grouping_a_file_is_a_sample(pairs: Path, tmp_path: Path, here: list[str]) -> None:
    index, _ = indexed(pairs, output=tmp_path / "x.arrow")
    assert [s.key for s in index if s.items[0].kind == "video"] == ["a.mp4", "b/a.mp4", "c.mp4"]


def test_patterns(pairs: Path, tmp_path: Path, here: list[str]) -> None:
    index, _ = indexed(f"{pairs}/**/*.mp4", output=tmp_path / "x.arrow")
    assert [s.key for s in index] == ["a.mp4", "b/a.mp4", "c.mp4"]
    index, _ = indexed(f"{pairs}/[bc]*", output=tmp_path / "x.arrow", group="stem")
    assert [s.key for s in index] == ["b/a", "c"]
    with pytest.raises(IndexProblem, match=r"\*\.mkv: matches no file"):
        indexed(f"{pairs}/*.mkv", output=tmp_path / "x.arrow")
    make_clip(tmp_path / "odd[1].mp4", 4)
    assert len(indexed(tmp_path / "odd[1].mp4", output=tmp_path / "x.arrow")[0]) == 1


def test_sources_mix_in_the_order_of_their_paths(tmp_path: Path, here: list[str]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.png").write_bytes(image())
    tar(folder / "b.tar", [("0.png", image()), ("1.png", image())])
    (folder / "c.jsonl").write_text('{"id": "line", "image": "a.png"}')
    (folder / "d.png").write_bytes(image())
    index, _ = indexed(folder / "d.png", folder / "c.jsonl", folder, output=tmp_path / "x.arrow")
    assert [s.key for s in index] == ["a.png", "0", "1", "line", "d.png"]


def test_many_shards_are_listed_by_processes(tmp_path: Path) -> None:
    for i in range(20):
        tar(tmp_path / f"{i:02}.tar", [(f"{i}.png", image())] if i != 7 else [])
    report = build([tmp_path], tmp_path / "x.arrow", jobs=2)
    keys = [s.key for s in Index.open(tmp_path / "x.arrow")]
    assert keys == [str(i) for i in range(20) if i != 7]
    assert report.refused == []


def test_a_shard_that_ends_its_process_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that dies of one shard, as where memory runs out."""
    for i in range(10):
        tar(tmp_path / f"{i}.tar", [(f"{i}.png", image())])
    monkeypatch.setattr(
        listing,
        "_CODE",
        "import os, libhelix.index.sources as s\n"
        "real = s.FORMATS['.tar']\n"
        "s.FORMATS['.tar'] = lambda p, o: os.kill(os.getpid(), 9) if p.endswith('3.tar') else real(p, o)\n"
        "s.main()",
    )
    report = build([tmp_path], tmp_path / "x.arrow", jobs=1)
    assert report.samples == 9
    assert "3.tar: listing it ended the process (SIGKILL)" in reasons(report)


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, here: list[str]) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(IndexProblem, match="closed: Permission denied; make it readable"):
        indexed(tmp_path, output=tmp_path / "x.arrow")


def test_circles_and_pipes_do_not_stop_it(tmp_path: Path, here: list[str]) -> None:
    (tmp_path / "a.png").write_bytes(image())
    os.symlink(tmp_path, tmp_path / "again")
    os.symlink(tmp_path / "a.png", tmp_path / "b.png")
    os.symlink(tmp_path / "nothing", tmp_path / "c.png")
    os.mkfifo(tmp_path / "pipe.png")
    os.symlink("d.png", tmp_path / "d.png")
    index, report = indexed(tmp_path, output=tmp_path / "x.arrow")
    assert [s.key for s in index] == ["a.png"]
    assert sorted(report.refused) == [
        (str(tmp_path / name), f"{tmp_path / name}: a link to {to}, which is not there; mend or remove it")
        for name, to in (("c.png", tmp_path / "nothing"), ("d.png", "d.png"))
    ]


def test_a_file_that_links_lead_to_is_one_sample_by_its_own_path(tmp_path: Path, here: list[str]) -> None:
    real, links = tmp_path / "real", tmp_path / "links"
    for folder in (real, links, tmp_path / "store"):
        folder.mkdir()
    for name in ("real/m.png", "real/n.png", "store/0", "store/1"):
        (tmp_path / name).write_bytes(image())
    os.symlink(real / "m.png", links / "a.png")
    os.symlink("../store/0", links / "b.png")
    os.symlink("../store/0", links / "c.png")
    os.symlink("../real", links / "d")
    os.symlink(links, tmp_path / "again")

    def keys(*sources: object) -> list[str]:
        return [s.key for s in indexed(*map(str, sources), output=tmp_path / "x.arrow")[0]]

    assert keys(links) == ["a.png", "b.png"]  # what is outside of the sources is reached by the first link
    assert keys(real, links) == ["links/b.png", "real/m.png", "real/n.png"]
    assert keys(tmp_path / "again", links) == ["links/a.png", "links/b.png"]
    assert keys(tmp_path / "again") == ["a.png", "b.png"]
    assert keys(f"{links}/*") == ["a.png", "b.png", "d/n.png"]  # matched, a link to a folder is a source


def test_in_a_group_a_link_is_a_file_of_its_sample(tmp_path: Path, here: list[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / "media").mkdir(exist_ok=True)
        (tmp_path / "media" / f"{name}.png").write_bytes(image())
        (tmp_path / "media" / f"{name}.txt").symlink_to(tmp_path / "caption")
    (tmp_path / "caption").write_text("a cat")
    os.symlink("media", tmp_path / "again")
    index, _ = indexed(tmp_path / "media", tmp_path / "again", output=tmp_path / "x.arrow", group="stem")
    each = [("image", "png"), ("text", "txt")]
    assert names(index) == {"media/a": each, "media/b": each}


def test_a_source_that_is_a_link_to_nothing_is_told_and_of_a_pattern_left_out(
    tmp_path: Path, here: list[str]
) -> None:
    (tmp_path / "a.png").write_bytes(image())
    os.symlink("nothing", tmp_path / "b.png")
    with pytest.raises(
        IndexProblem, match=r"b\.png: a link to nothing, which is not there; mend or remove it"
    ):
        indexed(tmp_path / "b.png", output=tmp_path / "x.arrow")
    index, report = indexed(f"{tmp_path}/*.png", output=tmp_path / "x.arrow")
    assert [s.key for s in index] == ["a.png"]
    assert "b.png: a link to nothing" in reasons(report)


def test_listing_needs_neither_torch_nor_av() -> None:
    code = (
        "import sys, libhelix.index.build, libhelix.index.sources; "
        "print([m for m in ('av', 'torch') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"


def test_an_index_beside_its_media_is_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(image(0))
    for _ in range(2):
        index, report = indexed(tmp_path, output=tmp_path / "x.arrow")
        assert [sample.key for sample in index] == ["a.png"]
        assert report.refused == []
        (tmp_path / "x.arrow.quarantine").write_text("")
    (tmp_path / "other.arrow").write_bytes(b"ARROW1 but nothing else")
    assert [
        os.path.basename(path) for path, _ in indexed(tmp_path, output=tmp_path / "y.arrow")[1].refused
    ] == ["other.arrow"]


def test_what_is_hidden_is_passed_over(tmp_path: Path) -> None:
    for name in ("a.png", ".b.png", "._a.png", ".ipynb_checkpoints/a.png", "__MACOSX/._a.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(image())
    index, report = indexed(tmp_path, output=tmp_path / "i.arrow")
    assert [sample.key for sample in index] == ["a.png"]
    assert not report.refused
    (tmp_path / "given").mkdir()
    index, _ = indexed(tmp_path / ".b.png", output=tmp_path / "given" / "i.arrow")
    assert [sample.key for sample in index] == [".b.png"]  # it was asked for


def test_folders_may_hold_different_things_where_they_are_samples(tmp_path: Path) -> None:
    for name in ("a/0.png", "a/t.txt", "b/0.png", "b/t.txt", "c/0.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(image() if name.endswith("png") else b"a text")
    index, report = indexed(tmp_path, output=tmp_path / "i.arrow", group="folder")
    assert [sample.key for sample in index] == ["a", "b", "c"]
    assert not report.refused
