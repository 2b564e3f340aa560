"""helixctl index and inspect, as users run them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from libhelix.ctl.inspect import _SHOWN_AS
from libhelix.ctl.main import main
from libhelix.index.read import Index
from libhelix.recipe import TextInfo
from tests import stored
from tests.clips import make_clip
from tests.index.sources import image, tar

index_command = import_module("libhelix.ctl.index")


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    make_clip(folder / "a.mp4", 24)
    make_clip(folder / "b.webm", 6, codec="vp9")
    for i in range(12):
        (folder / f"junk{i:02}").write_text("junk")
    return folder


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(args)
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


def test_index_then_inspect(media: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "x.arrow")
    code, out, err = run(capsys, "index", str(media), "-o", target)
    assert (code, err) == (0, "")
    assert "2 samples" in out
    assert "12 files left out" in out
    assert out.count("junk") == 10
    assert "and 2 more" in out
    code, out, _ = run(capsys, "inspect", target)
    assert code == 0
    assert "h264 1, vp9 1" in out
    assert "p95" in out
    assert "frames                6             6            24            24            30\n" in out
    assert max(map(len, out.splitlines()[1:])) < 80


def test_samples_of_several_items(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tar(tmp_path / "a.tar", [(f"{i}.{s}", image()) for i in range(3) for s in ("png", "left.png")])
    tar(tmp_path / "b.tar", [("0.png", image()), ("0.txt", b"cat"), ("x.bin", b"?")])
    target = str(tmp_path / "x.arrow")
    out = run(capsys, "index", f"{tmp_path}/*.tar", "-o", target)[1]
    assert "1 part left out" in out
    assert "added" not in out
    out = run(capsys, "inspect", target)[1]
    assert "kinds        image 7, text 1\n" in out
    assert "names        image png 4, image left.png 3, text txt 1\n" in out
    assert "items                 2             2             2             2             8\n" in out
    (tmp_path / "b.tar").unlink()
    out = run(capsys, "index", f"{tmp_path}/*.tar", "-o", target)[1]
    assert "0 added, 0 changed, 1 removed; 6 files not opened again" in out


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("bytes", 1023, "1,023 B"),
        ("bytes", 12_345_678, "11.8 MiB"),
        ("bytes", 5 * 1024**5, "5,120.0 TiB"),
        ("frames", 1_234_567_890, "1,234,567,890"),
        ("fps", 30000 / 1001, "29.97"),
        ("duration_s", 0.8, "0.80 s"),
        ("duration_s", 7199, "120.0 min"),
        ("duration_s", 360_000_000, "100,000.0 h"),
    ],
)
def test_numbers_are_for_people(name: str, value: float, text: str) -> None:
    assert _SHOWN_AS[name][1](value) == text


def test_json(media: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "x.arrow")
    built = json.loads(run(capsys, "index", str(media), "-o", target, "--json", "--jobs", "1")[1])
    assert built["samples"] == 2
    assert len(built["refused"]) == 12
    shown = json.loads(run(capsys, "inspect", target, "--json")[1])
    assert shown["fingerprint"] == built["fingerprint"]
    assert shown["kinds"] == {"video": 2}
    assert shown["total"]["frames"] == 30
    assert shown["spread"]["frames"] == {"min": 6, "p50": 6, "p95": 24, "max": 24}


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["index", "/nowhere", "-o", "/tmp/x.arrow"], 1, "error: /nowhere: no such file"),
        (["inspect", "/nowhere.arrow"], 1, "error: /nowhere.arrow: No such file"),
        (["index", "/etc/hostname", "-o", "/proc/x.arrow"], 1, "error: /proc/x.arrow: cannot be written ("),
        (["index", "-o", "x"], 2, "Missing argument"),
        (["index", "x"], 2, "Missing option"),
        (["frobnicate"], 2, "No such command"),
    ],
)
def test_failures(args: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    got, out, err = run(capsys, *args)
    assert got == code
    assert text in err
    assert out == ""


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "index", "--help")
    assert code == 0
    assert "helixctl index /data/videos -o train.arrow" in out
    assert "inspect" in run(capsys, "--help")[1]
    assert run(capsys, "--version")[1].startswith("helixctl, version ")


def test_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "libhelix.ctl.main", "--version"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0


def test_tokens_are_counted_where_a_tokenizer_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers", reason="needs the extra text")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("the cat")
    (tmp_path / "texts" / "b.txt").write_bytes("süß".encode("latin-1"))
    made = str(stored.make_tokenizer(tmp_path / "tokenizer.json"))
    target = str(tmp_path / "x.arrow")
    code, out, _ = run(capsys, "index", str(tmp_path / "texts"), "-o", target, "--tokenizer", made)
    assert code == 0
    assert "1 sample," in out
    assert "b.txt: not UTF-8 at byte 1" in out
    (sample,) = Index.open(target)
    assert sample.items[0].text == TextInfo(tokens=2, tokenizer=Index.open(target).tokenizer)
    code, _, err = run(capsys, "index", str(tmp_path / "texts"), "-o", target, "--tokenizer", "/none")
    assert code != 0
    assert "/none: No such file or directory; give the path of a model's tokenizer.json" in err
    assert json.loads(run(capsys, "inspect", target, "--json")[1])["kinds"] == {"text": 1}


def test_another_tokenizer_counts_anew_though_no_file_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers", reason="needs the extra text")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("the cat sat")
    lines = [json.dumps({"id": "b", "text": "the cat"})]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    sources = [str(tmp_path / "texts"), str(tmp_path / "x.jsonl")]
    known = [str(stored.make_tokenizer(tmp_path / "tokenizer.json"))]
    known.append(str(stored.make_tokenizer(tmp_path / "other.json", vocabulary=257)))
    target = str(tmp_path / "x.arrow")
    found = {}
    for name, options in {"one": known[:1], "other": known[1:], "none": [], "one again": known[:1]}.items():
        args = [word for tokenizer in options for word in ("--tokenizer", tokenizer)]
        run(capsys, "index", *sources, "-o", target, *args)
        index = Index.open(target)
        found[name] = [sample.items[0].text or TextInfo() for sample in index]
        fresh = str(tmp_path / f"{name}.arrow")
        run(capsys, "index", *sources, "-o", fresh, "--rebuild", *args)
        assert found[name] == [sample.items[0].text or TextInfo() for sample in Index.open(fresh)]
        assert {text.tokenizer for text in found[name]} == {index.tokenizer}
    assert found["one"] == found["one again"]
    assert found["none"] == [TextInfo(), TextInfo()]
    assert all(a.tokens < b.tokens for a, b in zip(found["one"], found["other"]))


def test_ctrl_c_says_that_nothing_is_lost(
    media: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def stopping() -> Iterator[Callable[[int, int], None]]:
        def stop(done: int, total: int) -> None:
            if done == total:
                raise KeyboardInterrupt

        yield stop

    monkeypatch.setattr(index_command, "progress_bar", stopping)
    target = str(tmp_path / "x.arrow")
    code, out, err = run(capsys, "index", str(media), "-o", target, "--jobs", "1")
    assert (code, out) == (130, "")
    assert f"what was read is in {target}.partial: the same command goes on there" in err
    monkeypatch.undo()
    code, out, _ = run(capsys, "index", str(media), "-o", target, "--json")
    assert json.loads(out)["reused"] == 13
