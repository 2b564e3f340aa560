"""WebDataset shards are read where they lie; what is wrong with one is told, what is good is kept."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

import libhelix as hx
from libhelix.errors import IndexProblem
from libhelix.index.read import Index
from libhelix.media.image import decode
from tests.clips import make_clip, read_number
from tests.index.sources import image, indexed, names, probe_here, reasons, tar

BLOCK = 512


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return probe_here(monkeypatch)


def number_of(index: Index, key: str, name: str = "") -> int:
    sample = next(s for s in index if s.key == key)
    out = np.empty((24, 36, 3), dtype=np.uint8)
    decode(sample.item("image", name), out)
    return read_number(out)


def test_members_of_one_key_are_one_sample_wherever_they_stand(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "c.mp4", 6).read_bytes()
    shard = tar(
        tmp_path / "a.tar",
        [
            ("x/0.jpg", image(3, "jpeg")),
            ("x/1.jpg", image(4, "jpeg")),
            ("x/0.json", b"{}"),
            ("x/1.json", b"{}"),
            ("x/0.mp4", clip),
            ("x/1.MP4", clip),
        ],
    )
    index, report = indexed(shard, output=tmp_path / "x.arrow")
    assert report.refused == []
    assert report.warnings == []
    each = [("image", "jpg"), ("text", "json"), ("video", "mp4")]
    assert names(index) == {"x/0": each, "x/1": each}
    assert number_of(index, "x/1") == 4
    video = index[0].item("video")
    assert (video.path, video.video and video.video.frames) == (str(shard), 6)
    with index[0].item("text").open() as file:
        assert file.read(2) == b"{}"


def test_s01_names_are_split_at_the_first_dot_of_their_last_part(tmp_path: Path) -> None:
    shard = tar(
        tmp_path / "a.tar",
        [
            ("train.v1/0001.jpg", image(1, "jpeg")),
            ("train.v1/0001.seg.png", image(2)),
            ("a/235 Track 2.0 (Clean).jpg", image(3, "jpeg")),
        ],
    )
    index, report = indexed(shard, output=tmp_path / "x.arrow")
    assert names(index) == {
        "train.v1/0001": [("image", "jpg"), ("image", "seg.png")],
        "a/235 Track 2": [("image", "0 (clean).jpg")],
    }
    assert number_of(index, "train.v1/0001", "seg.png") == 2
    assert len(report.warnings) == 1
    assert "235 Track 2.0 (Clean).jpg" in report.warnings[0]


def test_s02_a_double_member_is_an_error_with_shard_and_offset(tmp_path: Path) -> None:
    shard = tar(
        tmp_path / "a.tar", [("x.png", image()), ("x.json", b"{}"), ("x.png", image(1)), ("y.png", image())]
    )
    with tarfile.open(shard) as archive:
        second = archive.getmembers()[2].offset
    index, report = indexed(shard, output=tmp_path / "x.arrow")
    assert [s.key for s in index] == ["y"]
    assert f"{shard}: 'x.png' at byte {second} is there twice (before: byte 0)" in reasons(report)


def test_s04_what_macos_leaves_is_no_sample(tmp_path: Path) -> None:
    shard = tar(
        tmp_path / "a.tar",
        [
            ("._0.png", b"AppleDouble"),
            ("0.png", image()),
            ("__MACOSX/._0.png", b"x"),
            ("__MACOSX/0.png", b"x"),
            (".DS_Store", b"x"),
            ("__meta__", b"x"),
            ("0.txt", b"cat"),
        ],
    )
    index, report = indexed(shard, output=tmp_path / "x.arrow")
    assert names(index) == {"0": [("image", "png"), ("text", "txt")]}
    assert report.refused == []


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_s05_long_names_are_whole_and_unicode_forms_are_apart(form: int, tmp_path: Path) -> None:
    long = "d/" * 60 + "n" * 160
    shard = tar(
        tmp_path / "a.tar",
        [
            (f"{long}.png", image(7)),
            ("caf\u00e9.png", image(8)),
            ("cafe\u0301.png", image(9)),
        ],
        form=form,
    )
    index, report = indexed(shard, output=tmp_path / "x.arrow")
    assert report.refused == []
    assert [s.key for s in index] == [long, "caf\u00e9", "cafe\u0301"]
    assert [number_of(index, s.key) for s in index] == [7, 8, 9]


def test_s06_members_before_a_cut_are_kept_and_the_cut_one_is_named(tmp_path: Path) -> None:
    shard = tar(tmp_path / "a.tar", [(f"{i:04}.png", image(i)) for i in range(5)])
    with tarfile.open(shard) as archive:
        fourth = archive.getmembers()[3]
    os.truncate(shard, fourth.offset_data + fourth.size // 2)
    index, report = indexed(shard, output=tmp_path / "x.arrow")
    assert [s.key for s in index] == ["0000", "0001", "0002"]
    assert len(report.refused) == 1
    assert f"'0003.png' at byte {fourth.offset} is truncated" in reasons(report)


def test_s06_a_header_that_is_cut_or_damaged_is_told(tmp_path: Path) -> None:
    shard = tar(tmp_path / "a.tar", [(f"{i:04}.png", image(i)) for i in range(5)])
    with tarfile.open(shard) as archive:
        fourth = archive.getmembers()[3].offset
    body = shard.read_bytes()
    shard.write_bytes(body[: fourth + 100])
    index, report = indexed(shard, output=tmp_path / "x.arrow")
    assert len(index) == 3
    assert f"header at byte {fourth} is cut off" in reasons(report)
    shard.write_bytes(body[:fourth] + b"\x55" * BLOCK + body[fourth + BLOCK :])
    index, report = indexed(shard, output=tmp_path / "y.arrow")
    assert len(index) == 3
    assert f"header at byte {fourth} is damaged" in reasons(report)


def test_s06_missing_end_blocks_are_fine(tmp_path: Path) -> None:
    shard = tar(tmp_path / "a.tar", [(f"{i:04}.png", image(i)) for i in range(5)])
    with tarfile.open(shard) as archive:
        last = archive.getmembers()[4]
    body = shard.read_bytes()
    end = last.offset_data + last.size
    for cut in (end, end + -end % BLOCK, end + -end % BLOCK + BLOCK):
        shard.write_bytes(body[:cut])
        index, report = indexed(shard, output=tmp_path / f"{cut}.arrow")
        assert (len(index), report.refused, report.warnings) == (5, [], [])


def test_s09_what_follows_the_end_is_told_or_read(tmp_path: Path) -> None:
    first = tar(tmp_path / "a.tar", [("a.png", image(1))]).read_bytes()
    second = tar(tmp_path / "b.tar", [("b.png", image(2))]).read_bytes()
    both = tmp_path / "both.tar"
    both.write_bytes(first + second)
    index, report = indexed(both, output=tmp_path / "x.arrow")
    assert [s.key for s in index] == ["a"]
    assert len(report.warnings) == 1
    assert f"ends before byte {len(first)}" in report.warnings[0]
    assert "--ignore-zeros" in report.warnings[0]
    index, report = indexed(both, output=tmp_path / "x.arrow", ignore_zeros=True)
    assert [number_of(index, key) for key in ("a", "b")] == [1, 2]
    assert report.warnings == []


def test_s10_samples_without_what_most_have_are_told(tmp_path: Path) -> None:
    shard = tar(
        tmp_path / "a.tar",
        [("0.png", image()), ("0.txt", b"a"), ("1.txt", b"b"), ("2.jpg", image(0, "jpeg"))],
    )
    index, report = indexed(shard, output=tmp_path / "x.arrow")
    assert [s.key for s in index] == ["0"]
    assert "sample '1' has txt but no image" in reasons(report)
    assert "sample '2' has jpg but no text" in reasons(report)
    index, _ = indexed(shard, output=tmp_path / "y.arrow", keep_incomplete=True)
    assert [s.key for s in index] == ["0", "1", "2"]


def test_pictures_of_several_formats_are_one_kind(tmp_path: Path) -> None:
    shard = tar(tmp_path / "a.tar", [("0.png", image()), ("1.png", image()), ("2.jpg", image(0, "jpeg"))])
    assert len(indexed(shard, output=tmp_path / "x.arrow")[0]) == 3


def test_a_broken_picture_takes_its_sample_and_an_unknown_member_itself(tmp_path: Path) -> None:
    shard = tar(
        tmp_path / "a.tar",
        [
            ("0.png", image()),
            ("0.left.png", image()[:20]),
            ("1.png", image()),
            ("1.pickle", b"\x80\x04"),
            ("README", b"x"),
        ],
    )
    index, report = indexed(shard, output=tmp_path / "x.arrow")
    assert names(index) == {"1": [("image", "png")]}
    assert len(report.refused) == 3
    assert "a.tar: '0.left.png' at byte" in reasons(report)
    assert "a.tar: '1.pickle' at byte" in reasons(report)
    assert "'README' at byte" in reasons(report)


def test_links_and_odd_members_are_refused(tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    (tmp_path / "0.png").write_bytes(image())
    os.symlink("0.png", tmp_path / "1.png")
    with tarfile.open(shard, "w") as archive:
        archive.add(tmp_path / "0.png", "./0.png")
        archive.add(tmp_path / "1.png", "./1.png")
    index, report = indexed(shard, output=tmp_path / "x.arrow")
    assert [s.key for s in index] == ["0"]
    assert "'1.png' at byte" in reasons(report)
    assert "is a link" in reasons(report)


def test_compressed_shards_are_refused_with_their_cost_and_cure(tmp_path: Path) -> None:
    shard = tar(tmp_path / "a.tar", [("0.png", image())])
    packed = gzip.compress(shard.read_bytes())
    (tmp_path / "b.tar.gz").write_bytes(packed)
    with pytest.raises(IndexProblem, match=r"b\.tar\.gz: compressed.*decompress it once: gunzip b\.tar\.gz"):
        indexed(tmp_path / "b.tar.gz", output=tmp_path / "x.arrow")
    (tmp_path / "c.tar").write_bytes(packed)
    (tmp_path / "d.tar").write_bytes(b"junk" * 500)
    (tmp_path / "e.tar").write_bytes(b"")
    index, report = indexed(tmp_path, output=tmp_path / "x.arrow")
    assert [s.key for s in index] == ["0"]
    assert "c.tar: no tar" in reasons(report)
    assert "gunzip" in reasons(report)
    assert "d.tar: no tar" in reasons(report)
    assert "e.tar: no tar" in reasons(report)


def test_only_the_bytes_of_an_item_are_read(tmp_path: Path) -> None:
    filler = os.urandom(8 << 20)
    shard = tar(tmp_path / "a.tar", [("0.bin", filler), ("1.png", image(5)), ("2.bin", filler)])
    index, _ = indexed(shard, output=tmp_path / "x.arrow")

    def read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = read()
    assert number_of(index, "1") == 5
    assert read() - before < 1 << 20


def test_shards_keep_their_order_and_follow_their_root(tmp_path: Path) -> None:
    for name in ("b", "a"):
        tar(tmp_path / f"{name}.tar", [(f"{i}.png", image(i)) for i in (2, 1)])
    index, _ = indexed(str(tmp_path / "[ab].tar"), output=tmp_path / "x.arrow")
    assert [(Path(s.items[0].path).name, s.key) for s in index] == [
        ("a.tar", "2"),
        ("a.tar", "1"),
        ("b.tar", "2"),
        ("b.tar", "1"),
    ]
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("a.tar", "b.tar"):
        shutil.move(tmp_path / name, moved / name)
    assert number_of(Index.open(tmp_path / "x.arrow", root=moved), "2") == 2


def test_a_loader_reads_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path / "cache"))
    shard = tar(tmp_path / "a.tar", [(f"{i}.png", image(i)) for i in range(4)])
    with hx.Loader(
        shard,
        recipe=hx.recipes.Image(size=(24, 36)),
        batching=hx.FixedBatch(2),
        shuffle=False,
        backend="inline",
    ) as loader:
        found = [read_number(picture.numpy()) for batch in loader for picture in batch["image"]]
    assert found == [0, 1, 2, 3]
