"""helixctl lint decodes everything and says what is broken, odd or slow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from libhelix.index import lint as linting
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.media import examine as examining
from tests.clips import damage_packets, make_clip
from tests.ctl.test_index_commands import run
from tests.index.sources import image, tar


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    make_clip(folder / "a.mp4", 12)
    (folder / "b.png").write_bytes(image(1))
    tar(folder / "c.tar", [("0.jpg", image(2, "jpeg")), ("0.json", b'{"a": 1}')])
    build([folder], folder / "x.arrow")
    return folder


def test_nothing_wrong_is_exit_code_0(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "lint", str(good / "x.arrow"))
    assert (code, err) == (0, "")
    assert "3 of 3 samples decoded, 4 items: 0 broken, 0 odd, 0 slow" in out


def test_what_is_broken_is_listed_with_its_place_and_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage_packets(make_clip(tmp_path / "a.mp4", 48), [20])
    (tmp_path / "b.jpg").write_bytes(image(0, "jpeg", (200, 300))[:-200])
    members = [("0.json", b'{"a"'), ("1.txt", b"caf\xe9"), ("2.txt", b" \n"), ("3.txt", b"\xef\xbb\xbfcat")]
    tar(tmp_path / "c.tar", [*members, ("3.png", image(0, "png", (8, 8)))])
    tar(tmp_path / "d.tar", [("4.txt", b"fine")])
    output = str(tmp_path / "x.arrow")
    assert run(capsys, "index", str(tmp_path), "-o", output)[0] == 0
    code, out, _ = run(capsys, "lint", output)
    assert code == 1
    assert "4 broken, 3 odd, 0 slow" in out
    assert "broken  a.mp4 (video): frames" in out
    assert "encode the file again" in out
    assert "broken  b.jpg (image): truncated or broken jpeg" in out
    assert f"broken  0 (text json) in {tmp_path}/c.tar: no JSON" in out
    assert f"broken  1 (text txt) in {tmp_path}/c.tar: not UTF-8 at byte 3" in out
    assert f"odd     2 (text txt) in {tmp_path}/c.tar: an empty text" in out
    assert "byte order mark" in out
    assert "a picture of 8x8" in out
    found = json.loads(run(capsys, "lint", output, "--json", "--jobs", "1")[1])
    assert [note["grade"] for note in found["notes"]] == ["broken"] * 4 + ["odd"] * 3
    assert (found["samples"], found["items"]) == (7, 8)


def test_a_fraction_is_always_the_same_samples(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = Index.open(good / "x.arrow")
    one = linting.chosen(index, 1)
    assert len(one) == 1
    assert one == linting.chosen(index, 1)
    assert linting.chosen(index, 3) == [0, 1, 2]
    assert {linting.chosen(index, 1, seed)[0] for seed in range(20)} == {0, 1, 2}
    path = str(good / "x.arrow")
    assert (
        "1 of 3 samples decoded (drawn with seed 0), " in run(capsys, "lint", path, "--fraction", "0.01")[1]
    )
    assert run(capsys, "lint", path, "--fraction", "0")[0] == 2
    found = json.loads(run(capsys, "lint", path, "--sample", "2", "--seed", "7", "--json")[1])
    assert (found["samples"], found["of"], found["seed"]) == (2, 3, 7)
    assert json.loads(run(capsys, "lint", path, "--sample", "9", "--json")[1])["seed"] is None
    code, _, err = run(capsys, "lint", path, "--sample", "2", "--fraction", "0.5")
    assert (code, "give one of them" in err) == (2, True)


def test_what_ends_the_process_is_broken_and_the_rest_is_looked_at(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        linting,
        "_CODE",
        "import os, libhelix.media.examine as m, libhelix.index.lint as s\n"
        "real = m.examine\n"
        "m.examine = lambda i: os.kill(os.getpid(), 11) if i.path.endswith('b.png') else real(i)\n"
        "s.main()",
    )
    monkeypatch.setattr(linting, "_SAMPLES_PER_QUESTION", 1)
    seen: list[tuple[int, int]] = []
    found = linting.lint(
        Index.open(good / "x.arrow"), jobs=1, progress=lambda done, total: seen.append((done, total))
    )
    assert [(n.key, n.grade) for n in found.notes] == [("b.png", "broken")]
    assert "SIGSEGV" in found.notes[0].text
    assert found.items == 3
    assert seen[-1] == (3, 3)


def test_a_long_way_from_a_key_frame_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "SLOW_FRAME_S", 1e-6)
    monkeypatch.setattr(examining, "SLOW_IMAGE_S", 0.0)
    make_clip(tmp_path / "a.mp4", 60, gop=60)
    make_clip(tmp_path / "b.ts", 12)
    make_clip(tmp_path / "c.mp4", 12)
    (tmp_path / "d.png").write_bytes(image())
    build([tmp_path], tmp_path / "x.arrow")
    said = [examining.examine(s.items[0]) for s in Index.open(tmp_path / "x.arrow")]
    assert [[f.grade for f in found or []] for found in said] == [["slow"]] * 4
    texts = [f.text for found in said for f in found or []]
    assert "key frames 60 frames apart; ffmpeg -i" in texts[0]
    assert "cannot be sought" in texts[1]
    assert "key frames 12 frames apart; scale it down" in texts[2]
    assert "decoding takes" in texts[3]
