"""helixctl inspect: what of every kind is counted, and what a recipe predicts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pil

from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.recipes import Audio
from libhelix.recipes.rows import path_of
from tests import stored
from tests.clips import make_clip
from tests.ctl.test_index_commands import run
from tests.index.sources import image
from tests.sounds import tones, write_wav


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed")
    make_clip(folder / "a.mp4", 24)
    (folder / "b.png").write_bytes(image(1, "png", (24, 36)))
    for i in range(3):
        write_wav(folder / f"{i}.wav", tones(1 + i, 8000, 1 + i % 2), 8000)
    np.save(folder / "x.npy", np.zeros((3, 4), np.float16))
    (folder / "c.txt").write_text("a cat")
    build([folder], folder / "x.arrow")
    return folder


def test_every_kind_is_counted(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "inspect", str(mixed / "x.arrow"))
    assert (code, err) == (0, "")
    assert "sounds       8000 Hz mono 2, 8000 Hz stereo 1\n" in out
    assert "arrays       float16 [3x4] 1\n" in out
    assert "sound            1.00 s        2.00 s        3.00 s        3.00 s        6.00 s\n" in out
    assert "pixels              864" in out
    assert "tokens" not in out
    assert max(map(len, out.splitlines()[2:])) < 90
    found = json.loads(run(capsys, "inspect", str(mixed / "x.arrow"), "--json")[1])
    assert found["spread"]["sound_s"] == {"min": 1.0, "p50": 2.0, "p95": 3.0, "max": 3.0}
    assert found["total"]["sound_s"] == 6.0
    assert "pixels" not in found["total"]
    assert "predicted" not in found


def test_counted_tokens_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers", reason="needs the extra text")
    made = str(stored.make_tokenizer(tmp_path / "tokenizer.json"))
    for i in range(4):
        (tmp_path / f"{i}.txt").write_text("cat" + " cat" * i)
    target = str(tmp_path / "x.arrow")
    run(capsys, "index", f"{tmp_path}/*.txt", "-o", target, "--tokenizer", made)
    found = json.loads(run(capsys, "inspect", target, "--json")[1])
    least, most = (found["spread"]["tokens"][q] for q in ("min", "max"))
    assert 0 < least < most
    assert found["total"]["tokens"] == sum(range(int(least), int(most) + 1, int(most - least) // 3))


def test_a_recipe_tells_tokens_and_decoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(4):
        write_wav(tmp_path / f"{i}.wav", tones(1 + i, 8000), 8000)
    target = str(tmp_path / "x.arrow")
    build([tmp_path], target)
    options = ["inspect", target, "--recipe", "libhelix.recipes:Audio"]
    code, out, err = run(capsys, *options)
    assert (code, err) == (0, "")
    assert "libhelix.recipes.audio:Audio makes of it" in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[-6:]}
    assert rows["tokens"] == ["25", "75", "100", "100", "62.50", "250"]
    assert "of one core" in out.splitlines()[-1]
    assert not Path(path_of(Index.open(target), Audio())).exists()
    found = json.loads(run(capsys, *options, "--json")[1])["predicted"]
    assert found["spread"]["tokens"]["total"] == 250
    assert found["epoch_core_s"] == pytest.approx(found["spread"]["decode_us"]["total"] / 1e6)
    assert found["failed"] == []


def test_rows_that_are_stored_are_not_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wav(tmp_path / "a.wav", tones(1, 8000), 8000)
    target = str(tmp_path / "x.arrow")
    build([tmp_path], target)
    options = [target, "--recipe", "libhelix.recipes:Audio", "--json"]
    before = json.loads(run(capsys, "inspect", *options)[1])["predicted"]
    assert run(capsys, "describe", *options)[0] == 0
    monkeypatch.setattr("libhelix.recipes.describe.describe_all", None)
    assert json.loads(run(capsys, "inspect", *options)[1])["predicted"] == before


def test_samples_that_a_recipe_cannot_use_are_counted(
    mixed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run(capsys, "inspect", str(mixed / "x.arrow"), "--recipe", "libhelix.recipes:Image")[1]
    assert "6 samples failed; the first: " in out
    assert "needs an item of kind image" in out


def test_histograms_are_a_picture(mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    target = tmp_path / "a.png"
    for more in ([], ["--recipe", "libhelix.recipes:Audio"]):
        assert run(capsys, "inspect", str(mixed / "x.arrow"), "--plot", str(target), *more)[0] == 0
        with Pil.open(target) as picture:
            assert picture.size == (1000, 570)
            colors = np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)
        assert len(colors) > 20
        target.unlink()
    assert run(capsys, "inspect", str(mixed / "x.arrow"), "--plot", str(tmp_path))[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert "helixctl inspect train.arrow --plot train.png" in run(capsys, "inspect", "--help")[1]
