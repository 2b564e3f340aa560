"""Texts that broke other loaders (T01 to T07), varied: halves of characters, nothing, encodings, bad lines.

tests/media/test_text.py and tests/index/test_jsonl.py have each case as it was reported; here are relatives.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import libhelix as hx
from libhelix.errors import MediaError
from libhelix.index.formats import Listing, Options
from libhelix.index.formats import jsonl as lines
from libhelix.media import text
from libhelix.recipe import Part, Rng
from tests.index.sources import image, indexed, names, probe_here, tar


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return probe_here(monkeypatch)


def listed(path: Path, content: bytes) -> Listing:
    path.write_bytes(content)
    return lines.list_jsonl(str(path), Options())


def letters(content: str) -> list[int]:
    """A tokenizer: a token a character."""
    return [ord(c) for c in content]


def values(path: Path, found: Listing) -> list[Any]:
    """What the lines of samples say, as a recipe reads them."""
    body = path.read_bytes()
    items = [draft.members[-1] for draft in found.samples]
    return [text.decode_json(text.decode(body[i.offset : i.offset + i.size], "x"), "x") for i in items]


# ---- T01: halves of characters -------------------------------------------------------------------------


@given(st.text(st.characters()))
def test_t01_json_reads_as_its_text_with_lone_halves_replaced(content: str) -> None:
    for ascii_only in (True, False):
        written = json.dumps({content: [content]}, ensure_ascii=ascii_only)
        try:
            raw = written.encode()
        except UnicodeEncodeError:
            raw = written.encode("utf-8", "surrogatepass")
        whole = text.mended(content)
        found = text.decode_json(text.decode(raw, "x"), "x")
        assert found == {whole: [whole]}
        json.dumps(found, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "line",
    [
        '{"text": "ok \\ud800 bad", "image": "0.png"}',
        '{"text": "ok \\uDFFF bad", "image": "0.png"}',
        '{"image": "0.png", "conversations": [{"from": "human", "value": "\\ud83d <image>"}]}',
        '{"id": "a\\ud800", "image": "0.png"}',
        '{"a\\udead": 1, "image": "0.png"}',
    ],
)
def test_t01_a_line_with_half_a_character_is_kept(tmp_path: Path, line: str) -> None:
    (tmp_path / "0.png").write_bytes(image())
    (tmp_path / "x.jsonl").write_text(f'{{"image": "0.png"}}\n{line}\n')
    index, report = indexed(tmp_path / "x.jsonl", output=tmp_path / "x.arrow")
    assert report.refused == []
    assert [item.kind for item in index[1].items] == ["image", "text"]
    assert "\ufffd" in str(text.read_json(index[1].item("text")))
    index[1].key.encode()


# ---- T02: nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b" \n\t", b"\r\n", b"\xef\xbb\xbf", "\u3000".encode()])
def test_t02_nothing_is_a_sample_wherever_it_comes_from(tmp_path: Path, content: bytes) -> None:
    expected = content.removeprefix(b"\xef\xbb\xbf").decode()
    tar(tmp_path / "a.tar", [("0.png", image()), ("0.txt", content)])
    (tmp_path / "1.png").write_bytes(image())
    (tmp_path / "1.txt").write_bytes(content)
    index, report = indexed(tmp_path, output=tmp_path / "x.arrow", group="stem")
    assert report.refused == []
    assert set(names(index)) == {"0", "1"}
    for sample in index:
        assert text.read(sample.item("text")) == expected


def test_t02_an_empty_text_is_no_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / "b.txt").write_bytes(b"abc")
    indexed(tmp_path, output=tmp_path / "x.arrow")
    with hx.Loader(
        tmp_path / "x.arrow",
        recipe=hx.recipes.Text(function=f"{__name__}:letters"),
        batching=hx.FixedBatch(2),
        shuffle=False,
        backend="inline",
    ) as loader:
        (batch,) = list(loader)
    assert batch.shapes["input_ids"] == [(0,), (3,)]
    assert (np.asarray(batch["labels"])[0] == -100).all()


def test_t02_an_empty_list_and_an_empty_path_name_no_media(tmp_path: Path) -> None:
    found = listed(tmp_path / "x.jsonl", b'{"image": ""}\n{"images": []}\n{"image": null}\n{}\n')
    assert [len(draft.members) for draft in found.samples] == [1, 1, 1, 1]
    assert found.refused == []


# ---- T04: encodings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_t04_a_jsonl_in_another_unicode_is_told_once_with_the_cure(tmp_path: Path, encoding: str) -> None:
    mark = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}.get(encoding, b"")
    content = mark + '{"a": 1}\n{"a": 2}\n'.encode(encoding)
    found = listed(tmp_path / "x.jsonl", content)
    assert found.samples == []
    ((path, reason),) = found.refused
    assert path == str(tmp_path / "x.jsonl")
    assert "UTF-16; convert it: iconv" in reason


def test_t04_a_compressed_jsonl_is_told_once(tmp_path: Path) -> None:
    found = listed(tmp_path / "x.jsonl", b"\x1f\x8b\x08" + b"\n\n\n" * 50)
    assert [reason.split(": ")[1] for _, reason in found.refused] == ["is compressed; decompress it"]


def test_t04_a_line_in_latin_1_is_left_out_alone(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf{"a": "caf\xc3\xa9"}\n{"a": "caf\xe9"}\n{"a": "caf\\u00e9"}\n'
    found = listed(tmp_path / "x.jsonl", content)
    assert values(tmp_path / "x.jsonl", found) == [{"a": "caf\u00e9"}] * 2
    assert [reason for _, reason in found.refused] == [
        f"{tmp_path}/x.jsonl: line 2: not UTF-8 at byte 10; write the file as UTF-8"
    ]


def test_t04_a_text_of_a_shard_that_is_no_utf_8_fails_by_name_when_it_is_read(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", [("0.txt", "caf\u00e9".encode("latin-1")), ("1.txt", b"cafe")])
    index, _ = indexed(tmp_path / "a.tar", output=tmp_path / "x.arrow")
    recipe = hx.recipes.Text(function=f"{__name__}:letters")
    desc = recipe.describe(index[0], Rng(0, 0, 0))
    out = {field.name: np.zeros(field.shape, np.int64) for field in desc.fields}
    with pytest.raises(MediaError, match=r"a\.tar: not UTF-8 at byte 3; convert it"):
        recipe.fill(index[0], desc, Part(0, 1, 1), out)


# ---- T06, T07: JSON ------------------------------------------------------------------------------------


def test_t06_the_last_of_double_keys_counts_and_large_numbers_are_exact(tmp_path: Path) -> None:
    content = b'{"a": 1, "a": 2, "big": 12345678901234567890}\n{"id": 123456789012345678901234567890}\n'
    found = listed(tmp_path / "x.jsonl", content + b'{"id": "x", "id": "y"}\n')
    assert values(tmp_path / "x.jsonl", found)[0] == {"a": 2, "big": 12345678901234567890}
    assert [draft.key for draft in found.samples][1:] == ["123456789012345678901234567890", "y"]


@pytest.mark.parametrize(
    "bad",
    [
        b'{"a": ',
        b'{"a": 1}{"b": 2}',
        b'{"a": 1},',
        b"[1]",
        b"null",
        b"\0\0\0\0",
        b'{"a": "\x01"}',
        b'{"a": NaN}',
        b"{'a': 1}",
        b'{"x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"x": ' + b'{"x": ' * 200_000,
        b'{"a": "\\ud8"}',
        b'{"id": 1.5}',
    ],
    ids=range(13),
)
def test_t07_whatever_is_wrong_with_a_line_costs_that_line(tmp_path: Path, bad: bytes) -> None:
    found = listed(tmp_path / "x.jsonl", b'{"n": 1}\n' + bad + b'\n\n{"n": 3}')
    assert values(tmp_path / "x.jsonl", found) == [{"n": 1}, {"n": 3}]
    assert len(found.refused) == 1
    assert found.refused[0][1].startswith(f"{tmp_path}/x.jsonl: line 2: ")
    assert len(found.refused[0][1]) < 500


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b" \n", b"\n\n\n"])
def test_t07_ends_of_lines_and_a_missing_last_one_do_not_matter(tmp_path: Path, end: bytes) -> None:
    found = listed(tmp_path / "x.jsonl", end.join(b'{"n": %d}' % n for n in range(3)))
    assert values(tmp_path / "x.jsonl", found) == [{"n": n} for n in range(3)]
    assert found.refused == []


def test_t07_a_separator_within_a_text_ends_no_line(tmp_path: Path) -> None:
    content = {"a": "one\u2028two\u2029three\x85four\x0bfive"}
    found = listed(tmp_path / "x.jsonl", json.dumps(content, ensure_ascii=False).encode() + b"\n")
    assert values(tmp_path / "x.jsonl", found) == [content]


def test_t07_a_file_without_line_ends_is_one_bad_line_and_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "MAX_BYTES", 1000)
    monkeypatch.setattr(lines, "_MOST_BYTES", 1002)
    longest = b'{"n": 1, "a": "' + b"x" * (1000 - 17) + b'"}'
    assert len(longest) == 1000
    for long in (b'{"n": 7}\r' * 3000, b"x" * 1001, b"x" * 1002, b"x" * 2004):
        found = listed(tmp_path / "x.jsonl", longest + b"\r\n" + long + b'\n{"n": 3}\n')
        assert [value["n"] for value in values(tmp_path / "x.jsonl", found)] == [1, 3]
        assert [draft.key for draft in found.samples] == ["x.jsonl:1", "x.jsonl:3"]
        ((_, reason),) = found.refused
        assert "line 2: more than 1000 bytes; split it, and end lines with \\n" in reason
