"""Texts are read by rules that are written down, and come as they are."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhelix.errors import MediaError
from libhelix.media import probe_file, text


@pytest.mark.parametrize("content", ["", " \n\t", "\r\n", "plain", "süß 日本語 🙂", "a\0b", "\ufeffx"])
def test_a_text_comes_as_it_is(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.TXT"
    path.write_bytes(codecs.BOM_UTF8 + content.encode() if "\ufeff" in content else content.encode())
    item = probe_file(path)
    assert (item.kind, item.offset, item.size) == ("text", 0, path.stat().st_size)
    assert item.text is not None
    assert item.text.tokens == -1
    assert text.read(item) == content


@given(st.text())
def test_every_encoding_with_a_mark_gives_the_text_without_it(content: str) -> None:
    for mark, encoding in (
        (b"", "utf-8"),
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ):
        raw = mark + content.encode(encoding)
        if mark or not content.startswith("\ufeff"):
            ambiguous = mark == codecs.BOM_UTF16_LE and content.startswith("\0")  # is UTF-32's mark
            assert ambiguous or text.decode(raw, "x") == content


def test_half_a_surrogate_pair_is_replaced_and_a_whole_one_kept() -> None:
    for escaped, expected in [
        (r"ok \ud800 bad", "ok \ufffd bad"),
        (r"ok \udc00 bad", "ok \ufffd bad"),
        (r"\ud83d\ude00", "😀"),
        (r"\ude00\ud83d", "\ufffd\ufffd"),
        (r"end\ud800", "end\ufffd"),
    ]:
        assert text.mended(json.loads(f'"{escaped}"')) == expected
        halves = escaped.encode().decode("unicode-escape")
        for encoding, mark in (("utf-8", b""), ("utf-16-le", codecs.BOM_UTF16_LE)):
            assert text.decode(mark + halves.encode(encoding, "surrogatepass"), "x") == expected


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ("süß".encode("latin-1"), "not UTF-8 at byte 1"),
        (b"abc\xff", "not UTF-8 at byte 3"),
        (codecs.BOM_UTF8 + b"ab\xff", "not UTF-8 at byte 5"),
        (codecs.BOM_UTF16_LE + b"a\0b", "not UTF-16-LE at byte 4"),
        ("cut 日".encode()[:-1], "not UTF-8 at byte 4"),
    ],
)
def test_what_is_no_text_is_refused_with_the_place_and_the_cure(
    tmp_path: Path, raw: bytes, problem: str
) -> None:
    (tmp_path / "a.txt").write_bytes(raw)
    with pytest.raises(MediaError, match=rf"a\.txt: {problem}; convert it.*iconv"):
        probe_file(tmp_path / "a.txt")


def test_a_text_that_is_no_caption_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(text.MAX_BYTES + 1)
    with pytest.raises(MediaError, match="split it"):
        probe_file(tmp_path / "a.txt")


def test_only_what_is_named_so_is_text(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("read me")
    with pytest.raises(MediaError):
        probe_file(tmp_path / "README")
