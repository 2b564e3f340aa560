"""Parquet: paths are used where they lie, content is copied once, and nothing is dropped without a word."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import libhelix as hx
from libhelix.errors import IndexProblem
from tests.clips import read_number
from tests.index.sources import image, indexed, names, probe_here, reasons


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return probe_here(monkeypatch)


def write(path: Path, /, **columns: list[Any]) -> Path:
    parquet.write_table(pa.table(columns), path, row_group_size=2)
    return path


def test_paths_are_used_where_they_lie(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(image(i))
    source = write(
        tmp_path / "x.parquet",
        id=["a", "b", "c", "d"],
        image=["0.png", "none.png", "1.png", None],
        images=[None, None, ["2.png", "0.png"], None],
        caption=["w", "x", "y", "z"],
    )
    index, report = indexed(source, output=tmp_path / "x.arrow")
    assert names(index) == {
        "a": [("image", "image")],
        "c": [("image", "image"), ("image", "images/0"), ("image", "images/1")],
    }
    assert "x.parquet: row 1: " in reasons(report)
    assert "row 3: names no media" in reasons(report)
    assert "columns caption cannot be read in place" in report.warnings[0]


def test_content_needs_a_place(tmp_path: Path) -> None:
    for column in ([image(0)], [{"bytes": image(0), "path": "a.png"}], [[image(0)]]):
        source = write(tmp_path / "x.parquet", image=column)
        with pytest.raises(IndexProblem, match=r"column image holds media and not paths; give --extract DIR"):
            indexed(source, output=tmp_path / "x.arrow")


def test_extracted_content_is_a_shard_with_all_columns(tmp_path: Path, here: list[str]) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "loose.jpg").write_bytes(image(2, "jpeg"))
    source = write(
        tmp_path / "p" / "train-0.parquet",
        image=[
            {"bytes": image(0), "path": "a.PNG"},
            {"bytes": image(1), "path": None},
            {"bytes": None, "path": "loose.jpg"},
        ],
        caption=["x", "y", "z"],
    )
    folder = tmp_path / "media"
    index, report = indexed(source, output=tmp_path / "x.arrow", extract=str(folder))
    assert report.refused == []
    assert names(index) == {
        "00000000": [("image", "image.png"), ("text", "json")],
        "00000001": [("image", "image.png"), ("text", "json")],
        "00000002": [("image", "image.jpg"), ("text", "json")],
    }
    item = index[1].item("text")
    with item.open() as file:
        assert json.loads(file.read(item.size)) == {"caption": "y"}
    shard = folder / "train-0.tar"
    with tarfile.open(shard) as archive:
        assert len(archive.getmembers()) == 6
    before = os.stat(shard)
    here.clear()
    indexed(source, output=tmp_path / "x.arrow", extract=str(folder))
    assert here == []
    assert os.stat(shard).st_ino == before.st_ino
    write(source, image=[{"bytes": image(3), "path": None}])
    os.utime(source, ns=(5, 5))
    assert len(indexed(source, output=tmp_path / "x.arrow", extract=str(folder))[0]) == 1


def test_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    for split in ("a", "b"):
        (tmp_path / split).mkdir()
        write(tmp_path / split / "0.parquet", image=[image(1)])
    index, _ = indexed(
        str(tmp_path / "*/*.parquet"), output=tmp_path / "x.arrow", extract=str(tmp_path / "m")
    )
    assert [os.path.relpath(s.items[0].path, tmp_path) for s in index] == ["m/a/0.tar", "m/b/0.tar"]


def test_what_is_no_parquet_or_has_no_media_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1junk")
    write(tmp_path / "b.parquet", text=["x"])
    (tmp_path / "c.png").write_bytes(image())
    index, report = indexed(
        tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "c.png", output=tmp_path / "x.arrow"
    )
    assert len(index) == 1
    assert "a.parquet: no Parquet" in reasons(report)
    assert "b.parquet: no column of media" in reasons(report)


def test_a_loader_reads_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path / "cache"))
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(image(i))
    source = write(tmp_path / "x.parquet", path=[f"{i}.png" for i in range(4)])
    with hx.Loader(
        source,
        recipe=hx.recipes.Image(size=(24, 36)),
        batching=hx.FixedBatch(4),
        shuffle=False,
        backend="inline",
    ) as loader:
        assert [read_number(one.numpy()) for batch in loader for one in batch["image"]] == [0, 1, 2, 3]


def _damaged(path: Path, rows: int) -> Path:
    """A file of several row groups, of which the last has noise in its pages."""
    table = pa.table(
        {"image": [f"{i % 4}.png" for i in range(rows)], "text": [f"{i} a cat" for i in range(rows)]}
    )
    parquet.write_table(table, path, row_group_size=300, compression="none", use_dictionary=False)
    last = parquet.ParquetFile(path).metadata.row_group(rows // 300 - 1).column(0)
    body = bytearray(path.read_bytes())
    body[last.data_page_offset : last.data_page_offset + 40] = b"\xff" * 40
    path.write_bytes(body)
    return path


def test_damage_is_told_and_costs_the_rows_behind_it_or_the_file(tmp_path: Path) -> None:
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(image(i))
    bad = _damaged(tmp_path / "bad.parquet", 900)
    (tmp_path / "cut.parquet").write_bytes(bad.read_bytes()[:500])
    parquet.write_table(pa.table({"image": ["0.png"]}), tmp_path / "good.parquet")
    sources = sorted(tmp_path.glob("*.parquet"))
    index, report = indexed(*sources, output=tmp_path / "x.arrow")
    kept = len(index) - 1
    assert kept in range(256, 601)
    assert index[kept].key == "good.parquet:0"
    assert f"{bad}: from row {kept} on it cannot be read (" in reasons(report)
    assert "cut.parquet: no Parquet, or a truncated one" in reasons(report)
    index, report = indexed(*sources, output=tmp_path / "y.arrow", extract=str(tmp_path / "media"))
    assert [sample.key for sample in index] == ["00000000"]
    assert f"{bad}: from row " in reasons(report)
    assert "cut.parquet: no Parquet" in reasons(report)
    assert sorted(path.name for path in (tmp_path / "media").iterdir()) == ["good.tar"]


def test_a_row_whose_file_is_missing_is_left_out_by_name_and_the_rest_is_extracted(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(image(0))
    source = write(tmp_path / "x.parquet", image=["a.png", "none.png", "a.png"], caption=["x", "y", "z"])
    for _ in range(2):
        index, report = indexed(source, output=tmp_path / "x.arrow", extract=str(tmp_path / "out"))
        assert len(index) == 2
        assert "x.parquet: row 1: " in reasons(report)
        assert "none.png: No such file or directory; fetch it, or say where media are" in reasons(report)
