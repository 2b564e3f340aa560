"""A line of JSONL is a sample: its media by path, and its own bytes as text."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import libhelix as hx
from libhelix.errors import IndexProblem
from libhelix.index.read import Index
from libhelix.media.conversation import of_sample
from tests.clips import make_clip, read_number
from tests.index.sources import image, indexed, names, probe_here, reasons


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return probe_here(monkeypatch)


@pytest.fixture
def media(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    folder.mkdir()
    for i in range(4):
        (folder / f"{i}.png").write_bytes(image(i))
    make_clip(folder / "c.mp4", 6)
    return folder


def text(index: Index, i: int) -> bytes:
    item = index[i].item("text")
    with item.open() as file:
        return file.read(item.size)


def test_llava_conversations(media: Path, here: list[str]) -> None:
    talk = [{"from": "human", "value": "<image>\nWas ist das? \u00fc"}, {"from": "gpt", "value": "A cat."}]
    lines = [
        {"id": "000000033471", "image": "0.png", "conversations": talk},
        {"id": 7, "images": ["1.png", "0.png"], "conversations": talk},
        {"id": "v", "video": "c.mp4", "conversations": talk},
        {"id": "words", "conversations": talk},
    ]
    source = media / "train.jsonl"
    source.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    index, report = indexed(source, output=media / "x.arrow")
    assert report.refused == []
    said = ("text", "conversations")
    assert names(index) == {
        "000000033471": [("image", "image"), said],
        "7": [("image", "images/0"), ("image", "images/1"), said],
        "v": [("video", "video"), said],
        "words": [said],
    }
    assert [json.loads(text(index, i)) for i in range(4)] == lines
    assert len(here) == 3  # a picture that two lines name is opened once


def test_plain_lines(media: Path) -> None:
    lines = ['{"path": "0.png"}', '{"image": "1.png", "text": "a cat"}', '{"text": "alone", "image": null}']
    (media / "x.jsonl").write_text("\n".join(lines))
    index, report = indexed(media / "x.jsonl", output=media / "x.arrow")
    assert report.refused == []
    assert names(index) == {
        "x.jsonl:1": [("image", "path"), ("text", "json")],
        "x.jsonl:2": [("image", "image"), ("text", "json")],
        "x.jsonl:3": [("text", "json")],
    }


def test_t07_bad_lines_are_told_by_number_and_left_out(tmp_path: Path) -> None:
    source = tmp_path / "x.jsonl"
    source.write_bytes(b'{"a":1}\n\n{"a":2\n{"a":3}\r\n{"a":4}')
    index, report = indexed(source, output=tmp_path / "x.arrow")
    assert [json.loads(text(index, i))["a"] for i in range(len(index))] == [1, 3, 4]
    assert [s.key for s in index] == ["x.jsonl:1", "x.jsonl:4", "x.jsonl:5"]
    assert len(report.refused) == 1
    assert f"{source}: line 3: " in reasons(report)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b"[1, 2]", "Expected `object`, got `array`"),
        (b'{"image": {"a": 1}}', "Expected"),
        (b'{"text": "caf\xe9"}', "not UTF-8 at byte 13"),
        (b'{"image": "http://x/y.png"}', "is a URL; download it"),
        (b'{"image": "none.png"}', "none.png: No such file or directory; fetch it"),
        (b'{"image": "a\\u0000b.png"}', "not a possible name"),
        (b'{"image": "."}', "is no file"),
        (b'{"image": "junk.png"}', "junk.png: "),
        (b'{"id": 1, "images": ["0.png", "junk.png"]}', "junk.png: "),
    ],
)
def test_what_a_line_names_must_be_there(media: Path, line: bytes, cause: str) -> None:
    (media / "junk.png").write_bytes(b"junk")
    source = media / "x.jsonl"
    source.write_bytes(b'\xef\xbb\xbf{"image": "0.png"}\n' + line + b"\n")
    index, report = indexed(source, output=media / "x.arrow")
    assert [s.key for s in index] == ["x.jsonl:1"]
    assert text(index, 0) == b'{"image": "0.png"}'
    assert len(report.refused) == 1
    assert f"{source}: line 2: " in reasons(report)
    assert cause in reasons(report)


def test_media_may_lie_elsewhere(media: Path, tmp_path: Path) -> None:
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "x.jsonl").write_text(f'{{"image": "0.png"}}\n{{"image": "{media}/1.png"}}\n')
    index, report = indexed(lists / "x.jsonl", output=tmp_path / "x.arrow", media_root=str(media))
    assert report.refused == []
    assert index.root == str(tmp_path)
    assert index[0].item("image").path == str(media / "0.png")
    assert index[1].item("image").path == str(media / "1.png")
    (lists / "x.jsonl").write_text('{"image": "0.png"}')
    with pytest.raises(IndexProblem, match="--media-root"):
        indexed(lists / "x.jsonl", output=tmp_path / "x.arrow")


def test_an_array_is_refused_with_a_command(media: Path) -> None:
    (media / "llava.json").write_text('[{"image": "0.png"}]')
    with pytest.raises(IndexProblem, match=r"jq -c '\.\[\]' llava\.json > llava\.jsonl"):
        indexed(media / "llava.json", output=media / "x.arrow")


def test_lists_in_a_folder_are_not_taken_for_more_samples(media: Path) -> None:
    (media / "x.jsonl").write_text('{"image": "0.png"}')
    index, report = indexed(media, output=media / "x.arrow")
    assert len(index) == 5
    assert "x.jsonl: not read unless it is named as a source" in reasons(report)
    index, _ = indexed(media, media / "x.jsonl", output=media / "x.arrow")
    assert [s.key for s in index] == ["0.png", "1.png", "2.png", "3.png", "c.mp4", "x.jsonl:1"]


def test_a_loader_reads_lines_and_sees_their_media_change(
    media: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIX_CACHE", str(media / "cache"))
    source = media / "x.jsonl"
    source.write_text("".join(f'{{"id": {i}, "image": "{i}.png"}}\n' for i in range(4)))

    def numbers() -> list[int]:
        with hx.Loader(
            source,
            recipe=hx.recipes.Image(size=(24, 36)),
            batching=hx.FixedBatch(2),
            shuffle=False,
            backend="inline",
        ) as loader:
            return [read_number(np.asarray(one)) for batch in loader for one in batch["image"]]

    assert numbers() == [0, 1, 2, 3]
    (media / "2.png").write_bytes(image(9))
    os.utime(media / "2.png", ns=(1, 1))
    assert numbers() == [0, 1, 9, 3]


def test_messages_may_name_their_media_themselves(media: Path, tmp_path: Path) -> None:
    lines = [
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "image": "1.png"},
                        {"type": "text", "text": "and"},
                        {"type": "image_url", "image_url": {"url": f"file://{media / '0.png'}"}},
                        {"video": "c.mp4"},
                    ],
                },
                {"role": "assistant", "content": "ok"},
            ]
        },
        {
            "messages": [
                {"role": "user", "content": [{"type": "image", "image": "data:image/png;base64,AAAA"}]}
            ]
        },
        {"id": "odd", "messages": 5},
        {"id": "frames", "messages": [{"role": "user", "content": [{"video": ["0.png", "1.png"]}]}]},
        {"image": "2.png", "messages": [{"role": "user", "content": [{"type": "image", "image": "3.png"}]}]},
    ]
    (media / "m.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    index, report = indexed(media / "m.jsonl", output=tmp_path / "i.arrow")
    assert [(i.kind, i.name, os.path.basename(i.path)) for i in index[0].items] == [
        ("image", "image/0", "1.png"),
        ("image", "image/1", "0.png"),
        ("video", "video/0", "c.mp4"),
        ("text", "conversations", "m.jsonl"),
    ]
    # What a line says by itself is what its place holders stand for.
    assert [os.path.basename(i.path) for i in index[3].items] == ["2.png", "m.jsonl"]
    assert [i.name for i in index[1].items] == ["conversations"]
    assert [i.name for i in index[2].items] == ["video/0/0", "video/0/1", "conversations"]
    assert "line 2: data:image/png;base64,AAAA... is embedded; write it to a file" in reasons(report)
    talk = of_sample(index[0])
    assert [os.path.basename(slot.item.path) for slot in talk.slots] == ["1.png", "0.png", "c.mp4"]
