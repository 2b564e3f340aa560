"""Shards that broke other loaders (S01 to S10), varied: names, doubles, debris, cuts, damage, joins.

tests/index/test_tar.py has each case as it was reported; here are its relatives.
"""

from __future__ import annotations

import io
import random
import struct
import tarfile
from pathlib import Path

import pytest

from libhelix.index.formats import Listing, Options
from libhelix.index.formats.tar import list_tar, split
from tests.index.sources import tar

BLOCK = 512


def listed(path: Path, **options: bool) -> Listing:
    return list_tar(str(path), Options(**options))  # type: ignore[arg-type]


def keys(listing: Listing) -> list[str]:
    return [draft.key for draft in listing.samples]


def told(listing: Listing) -> str:
    return "\n".join(reason for _, reason in listing.refused)


def contents(path: Path, listing: Listing) -> dict[str, bytes]:
    """The bytes of every member, by key and name."""
    body = path.read_bytes()
    return {
        f"{draft.key}.{member.name}": body[member.offset : member.offset + member.size]
        for draft in listing.samples
        for member in draft.members
    }


def header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    """A header whose checksum is right, whatever its size says."""
    fields = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + size + b"00000000000\0"
    rest = kind + b"\0" * 100 + b"ustar\x0000" + b"\0" * 247
    total = sum(fields) + 8 * 32 + sum(rest)
    block = fields + f"{total:06o}\0 ".encode() + rest
    assert len(block) == BLOCK
    return block


def octal(size: int) -> bytes:
    return f"{size:011o}\0".encode()


def wide(size: int) -> bytes:
    """GNU's base-256, which holds negative numbers too."""
    return (b"\xff" if size < 0 else b"\x80") + size.to_bytes(11, "big", signed=True)


# ---- S01, S02, S04: names ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a/0.jpg", ("a/0", "jpg")),
        ("a.b/c.d/0.jpg", ("a.b/c.d/0", "jpg")),
        ("0.SEG.PNG", ("0", "seg.png")),
        ("0..jpg", ("0", ".jpg")),
        ("v1.0 final.mp4", ("v1", "0 final.mp4")),
        (".hidden.jpg", None),
        ("a/.jpg", None),
        ("0", None),
        ("0.", None),
        ("a.b/0", None),
        ("a\\b.jpg", ("a\\b", "jpg")),
        ("\u65e5\u672c.\u8a9e.jpg", ("\u65e5\u672c", "\u8a9e.jpg")),
    ],
)
def test_s01_a_name_is_split_as_webdataset_does(name: str, parts: tuple[str, str] | None) -> None:
    assert split(name) == parts


@pytest.mark.parametrize("names", [("x.JPG", "x.jpg"), ("./x.jpg", "x.jpg"), ("x.jpg", "x.jpg", "x.jpg")])
def test_s02_doubles_are_found_under_other_spellings(tmp_path: Path, names: tuple[str, ...]) -> None:
    shard = tar(tmp_path / "a.tar", [*((name, b"1") for name in names), ("y.jpg", b"2")])
    found = listed(shard)
    assert keys(found) == ["y"]
    assert len(found.refused) == 1
    assert f"at byte {2 * BLOCK} is there twice (before: byte 0)" in told(found)


def test_s02_one_key_in_two_folders_and_in_two_shards_is_no_double(tmp_path: Path) -> None:
    shard = tar(tmp_path / "a.tar", [("a/0.jpg", b"1"), ("b/0.jpg", b"2")])
    assert keys(listed(shard)) == ["a/0", "b/0"]


@pytest.mark.parametrize(
    "junk",
    ["._0.jpg", "a/._0.jpg", "./._0.jpg", "__MACOSX/a/0.jpg", "a/__MACOSX/0.jpg", ".DS_Store", "a/.DS_Store",
     "a/Thumbs.db", "__index__"],
)  # fmt: skip
def test_s04_debris_is_dropped_wherever_it_lies(tmp_path: Path, junk: str) -> None:
    shard = tar(tmp_path / "a.tar", [(junk, b"x"), ("0.jpg", b"1"), (junk + "2", b"x")][:2])
    found = listed(shard)
    assert keys(found) == ["0"]
    assert found.refused == []


def test_s04_the_attributes_that_macos_writes_are_no_members(tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    with tarfile.open(shard, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "a"}) as archive:
        for i in range(3):
            info = tarfile.TarInfo(f"{i}.jpg")
            info.size = 1
            info.pax_headers = {"LIBARCHIVE.xattr.com.apple.quarantine": "MDA4MQ==", "mtime": "1.5"}
            archive.addfile(info, io.BytesIO(b"%d" % i))
    assert contents(shard, listed(shard)) == {f"{i}.jpg": b"%d" % i for i in range(3)}


# ---- S05: long names, large sizes ----------------------------------------------------------------------


_LONG = (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
LENGTHS = [(form, n) for n in (95, 96, 97, 100, 101, 150, 255, 256, 257, 1000) for form in _LONG]
LENGTHS += [(tarfile.USTAR_FORMAT, n) for n in (95, 96, 97, 100, 101, 150)]  # it holds no longer ones


@pytest.mark.parametrize(("form", "length"), LENGTHS)
def test_s05_names_of_every_length_are_whole(tmp_path: Path, form: int, length: int) -> None:
    long = "d" * (length // 2) + "/" + "n" * (length - length // 2 - 1)
    names = [f"{long}a", f"{long}b"]
    shard = tar(tmp_path / "a.tar", [(f"{name}.jpg", name.encode()) for name in names], form=form)
    assert contents(shard, listed(shard)) == {f"{name}.jpg": name.encode() for name in names}


def test_s05_names_beyond_ascii_are_apart_and_what_is_no_utf_8_is_told(tmp_path: Path) -> None:
    names = ["\u00fc.jpg", "u\u0308.jpg", "\U0001f408.jpg", "\u65e5" * 60 + ".jpg"]
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        shard = tar(tmp_path / "a.tar", [(name, b"1") for name in names], form=form)
        assert keys(listed(shard)) == [name[:-4] for name in names]
    shard.write_bytes(header(b"caf\xe9.jpg", octal(0)) + header(b"0.jpg", octal(0)))
    found = listed(shard)
    assert keys(found) == ["0"]
    assert "has a name that is not UTF-8; rename it" in told(found)


def test_s05_a_member_beyond_8_gib_is_found_without_reading_it(tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    size = 9 << 30
    with shard.open("wb") as file:
        file.write(header(b"0.mp4", wide(size)))
        file.seek(BLOCK + size)
        file.write(header(b"1.jpg", octal(3)) + b"one".ljust(BLOCK, b"\0"))
        file.write(b"\0" * 2 * BLOCK)
    found = listed(shard)
    assert [(d.key, d.members[0].offset, d.members[0].size) for d in found.samples] == [
        ("0", BLOCK, size),
        ("1", 2 * BLOCK + size, 3),
    ]
    assert found.refused == []


# ---- S06: cuts and damage ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_s06_wherever_a_shard_is_cut_what_is_whole_is_kept_and_the_rest_is_told(
    tmp_path: Path, form: int
) -> None:
    draw = random.Random(form)
    members = [
        (
            f"d/{'k' * draw.choice((4, 60 if form == tarfile.USTAR_FORMAT else 120))}{i}.bin",
            draw.randbytes(draw.randrange(2000)),
        )
        for i in range(8)
    ]
    body = tar(tmp_path / "whole.tar", members, form=form).read_bytes()
    with tarfile.open(tmp_path / "whole.tar") as archive:
        ends = [info.offset_data + info.size for info in archive.getmembers()]
    shard = tmp_path / "a.tar"
    for cut in sorted({*draw.sample(range(len(body)), 80), *ends, *(end + 1 for end in ends)}):
        shard.write_bytes(body[:cut])
        found = listed(shard)
        whole = sum(end <= cut for end in ends)
        assert contents(shard, found) == dict(members[:whole]), cut
        # What is missing behind the last whole member is padding, or is told.
        nothing_begun = cut <= (ends[whole - 1] + BLOCK - 1) // BLOCK * BLOCK if whole else False
        assert len(found.refused) == (0 if nothing_begun or whole == 8 else 1), cut
        assert all("again" in reason for _, reason in found.refused)


@pytest.mark.parametrize("size", [-512, -1024, -1, -(1 << 62)])
@pytest.mark.parametrize("kind", [b"0", b"x", b"g", b"L"])
def test_s06_a_negative_size_ends_the_shard_and_not_the_patience(
    tmp_path: Path, size: int, kind: bytes
) -> None:
    """tarfile follows it backwards, for ever."""
    shard = tmp_path / "a.tar"
    good = header(b"0.jpg", octal(3)) + b"one".ljust(BLOCK, b"\0")
    shard.write_bytes(good + header(b"1.jpg", wide(size), kind) + good + b"\0" * 2 * BLOCK)
    for ignore_zeros in (False, True):
        found = listed(shard, ignore_zeros=ignore_zeros)
        assert keys(found) == ["0"]
        assert f"the header at byte {2 * BLOCK} is damaged" in told(found)


@pytest.mark.parametrize("record", [b"17 size=-1000000\n", b"13 size=-512\n", b"9 size=x\n", b"0 size=1\n"])
def test_s06_a_size_in_a_pax_record_is_checked_too(tmp_path: Path, record: bytes) -> None:
    shard = tmp_path / "a.tar"
    good = header(b"0.jpg", octal(3)) + b"one".ljust(BLOCK, b"\0")
    pax = header(b"pax", octal(len(record)), b"x") + record.ljust(BLOCK, b"\0")
    shard.write_bytes(
        good + pax + header(b"1.jpg", octal(3)) + b"two".ljust(BLOCK, b"\0") + b"\0" * 2 * BLOCK
    )
    for ignore_zeros in (False, True):
        found = listed(shard, ignore_zeros=ignore_zeros)
        assert keys(found)[0] == "0"
        assert len(found.refused) <= 1


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g"])
@pytest.mark.parametrize("size", [1 << 33, 1 << 62, (1 << 80) - 1])
def test_s06_a_header_that_says_it_is_huge_is_not_read(tmp_path: Path, kind: bytes, size: int) -> None:
    shard = tmp_path / "a.tar"
    good = header(b"0.jpg", octal(3)) + b"one".ljust(BLOCK, b"\0")
    shard.write_bytes(good + header(b"1", wide(size), kind) + good)
    found = listed(shard)
    assert keys(found) == ["0"]
    assert f"the header at byte {2 * BLOCK} is damaged" in told(found)


def test_s06_a_member_that_says_it_is_huge_is_truncated(tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    good = header(b"0.jpg", octal(3)) + b"one".ljust(BLOCK, b"\0")
    for size in (1 << 33, 1 << 62, (1 << 80) - 1):
        shard.write_bytes(good + header(b"1.jpg", wide(size)) + good)
        found = listed(shard)
        assert keys(found) == ["0"]
        assert "'1.jpg' at byte 1024 is truncated" in told(found)


def test_s06_headers_upon_headers_end_the_shard_and_not_the_process(tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    good = header(b"0.jpg", octal(3)) + b"one".ljust(BLOCK, b"\0")
    shard.write_bytes(good + header(b"pax", octal(0), b"x") * 5000 + good)
    found = listed(shard)
    assert keys(found) == ["0"]
    assert f"the header at byte {2 * BLOCK} is damaged" in told(found)


def test_s06_flipped_bits_never_raise_and_never_misplace_a_member(tmp_path: Path) -> None:
    draw = random.Random(3)
    members = [(f"{i}.bin", draw.randbytes(700)) for i in range(6)]
    body = tar(tmp_path / "whole.tar", members, form=tarfile.PAX_FORMAT).read_bytes()
    shard = tmp_path / "a.tar"
    for _ in range(150):
        damaged = bytearray(body)
        at = draw.randrange(6) * 3 * BLOCK + draw.randrange(BLOCK)
        damaged[at] ^= 1 << draw.randrange(8)
        shard.write_bytes(damaged)
        found = listed(shard)
        for name, content in contents(shard, found).items():
            assert content in dict(members).values(), name
        assert len(found.samples) == 6 or found.refused


# ---- S09, S10: joins and gaps --------------------------------------------------------------------------


def test_s09_any_number_of_archives_are_read_on_request(tmp_path: Path) -> None:
    bodies = [tar(tmp_path / f"{i}.tar", [(f"{i}.jpg", b"%d" % i)]).read_bytes() for i in range(3)]
    empty = tar(tmp_path / "empty.tar", []).read_bytes()
    shard = tmp_path / "a.tar"
    a, b, c = bodies
    for order in ([a, b, c], [a, empty, b, c], [empty, a, b, c], [a, b, c, empty]):
        shard.write_bytes(b"".join(order))
        found = listed(shard, ignore_zeros=True)
        assert contents(shard, found) == {f"{i}.jpg": b"%d" % i for i in range(3)}
        assert (found.refused, found.warnings) == ([], [])
        found = listed(shard)
        assert keys(found) == (["0"] if order[0] == a else [])
        assert len(found.warnings) == 1


def test_s09_damage_behind_a_join_is_told(tmp_path: Path) -> None:
    first = tar(tmp_path / "0.tar", [("0.jpg", b"0")]).read_bytes()
    second = bytearray(tar(tmp_path / "1.tar", [("1.jpg", b"1"), ("2.jpg", b"2")]).read_bytes())
    second[2 * BLOCK + 10] ^= 1
    shard = tmp_path / "a.tar"
    shard.write_bytes(first + second)
    found = listed(shard, ignore_zeros=True)
    assert keys(found) == ["0", "1"]
    assert f"the header at byte {len(first) + 2 * BLOCK} is damaged" in told(found)
    shard.write_bytes(first + b"notes about this shard")
    assert len(listed(shard).warnings) == 1
    assert "is cut off" in told(listed(shard, ignore_zeros=True))


def test_s09_a_padded_end_is_no_join(tmp_path: Path) -> None:
    body = tar(tmp_path / "0.tar", [("0.jpg", b"0")]).read_bytes()
    shard = tmp_path / "a.tar"
    for padding in (0, BLOCK, 20 * BLOCK, 3 << 20, 100):
        shard.write_bytes(body + b"\0" * padding)
        for ignore_zeros in (False, True):
            found = listed(shard, ignore_zeros=ignore_zeros)
            assert (keys(found), found.refused, found.warnings) == (["0"], [], [])


def test_a_shard_of_nothing_is_told_or_empty(tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    for body in (b"", b"\0", b"x" * 100, b"\x1f\x8b" + b"x" * 2000, struct.pack("<Q", 7) * 200):
        shard.write_bytes(body)
        found = listed(shard)
        assert found.samples == []
        assert len(found.refused) == 1
    for zeros in (BLOCK, 20 * BLOCK):
        shard.write_bytes(b"\0" * zeros)
        for ignore_zeros in (False, True):
            found = listed(shard, ignore_zeros=ignore_zeros)
            assert (found.samples, found.warnings) == ([], [])
