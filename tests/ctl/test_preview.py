"""helixctl preview shows what training gets: its pictures are the recipe's pixels, its sounds the samples."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pil

import libhelix as hx
from libhelix.ctl import parts, sheet
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.recipe import DTYPES
from libhelix.recipes.trial import AsStored, trial
from tests import stored
from tests.clips import make_clip, read_number
from tests.ctl.test_index_commands import run
from tests.index.sources import image, tar
from tests.sounds import decode_all, tones, with_sound, write_wav

pytest.importorskip("matplotlib", reason="needs the extra plot")

MINE = """
import numpy as np
import libhelix as hx
class Drawn(hx.Recipe, frozen=True):
    def describe(self, sample, rng):
        return hx.Descriptor(fields=(hx.Field("x", "int64", (2,)),), draws=(rng.integers(0, 1000), sample.id))
    def fill(self, sample, desc, part, out):
        out["x"][...] = desc.draws
class Broken(hx.Recipe, frozen=True):
    def describe(self, sample, rng):
        return hx.Descriptor(fields=(hx.Field("x", "int64", ()),))
    def fill(self, sample, desc, part, out):
        raise ValueError("not today")
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    silent = make_clip(folder / "silent.mp4", 40, size=(48, 96))
    with_sound(folder / "talk.mp4", silent, tones(1.6, 16_000, 2), 16_000, "aac")
    silent.unlink()
    (folder / "pictures").mkdir()
    (folder / "pictures" / "cat.png").write_bytes(image(5, "png", (24, 36)))
    (folder / "words.txt").write_text("the quick cat $x^2$ \u65e5\u672c\t\x07")
    write_wav(folder / "tone.wav", tones(1, 8000), 8000)
    np.save(folder / "numbers.npy", np.arange(600, dtype=np.float32).reshape(20, 30))
    tar(folder / "a.tar", [("0.png", image(1)), ("0.txt", b"one"), ("0.left.png", image(2))])
    tar(folder / "b.tar", [("0.png", image(3)), ("0.txt", b"two"), ("0.left.png", image(4))])
    build([folder], folder / "x.arrow")
    return folder


def test_without_a_recipe_items_are_shown_as_they_are(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.png"
    code, said, err = run(capsys, "preview", str(data / "x.arrow"), "talk.mp4", "-o", str(out))
    assert (code, err) == (0, "")
    *title, video, audio = said.splitlines()
    assert title == [
        "talk.mp4  (#4)",
        "video: h264 96x48, 40 frames, 25.00 fps, 1.60 s",
        "audio: aac 16000 Hz, 2 channels, 1.60 s",
    ]
    assert video == "  video  uint8 [16, 48, 96, 3]"
    assert audio.startswith("  audio  float32 [2, 25600]  16000 Hz, 1.60 s, peak -")
    with Pil.open(out) as shown:
        assert shown.format == "PNG"
        assert shown.width == 1280


def test_the_sheet_holds_the_pixels_of_the_recipe(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.png"
    options = ["--recipe", "libhelix.recipes:Clip", "--param", "frames=5", "--param", "size=[48,96]"]
    for order in ("THWC", "TCHW"):
        args = ["preview", str(data / "x.arrow"), "talk.mp4", *options, "--param", f'order="{order}"']
        assert run(capsys, *args, "-o", str(out))[0] == 0
        found = np.asarray(Pil.open(out).convert("RGB"))
        index = Index.open(data / "x.arrow")
        number = index.keys().to_pylist().index("talk.mp4")
        frames = trial(index, number, hx.recipes.Clip(frames=5, size=(48, 96))).arrays["video"]
        # Each frame stands somewhere on the sheet, pixel by pixel.
        assert [read_number(frame) for frame in frames] == [4, 12, 20, 28, 36]
        for frame in frames:
            assert _contains(found, frame)


def _contains(whole: np.ndarray, part: np.ndarray) -> bool:
    h, w = part.shape[:2]
    rows, columns = np.nonzero((whole[: -h + 1, : -w + 1] == part[0, 0]).all(axis=2))
    return any(np.array_equal(whole[y : y + h, x : x + w], part) for y, x in zip(rows, columns))


def test_frames_are_labelled_by_number_and_time(data: Path) -> None:
    index = Index.open(data / "x.arrow")
    number = index.keys().to_pylist().index("talk.mp4")
    clip = hx.recipes.Clip(frames=4, size=(48, 96))
    together = hx.recipes.Together(sound=hx.recipes.Audio(rate=16_000), video=clip)
    for recipe, chosen in (
        (clip, (5, 15, 25, 35)),
        (together, (5, 15, 25, 35)),
        (AsStored(), tuple((2 * i + 1) * 40 // 32 for i in range(16))),
    ):
        shown = list(parts.parts_of(trial(index, number, recipe), recipe))
        (pictures,) = [part for part in shown if isinstance(part, parts.Pictures)]
        assert pictures.labels == [f"{frame}  {frame / 25:.2f} s" for frame in chosen]
        assert len(pictures.images) == len(chosen)
        rates = [part.rate for part in shown if isinstance(part, parts.Sound)]
        assert rates == ([] if recipe is clip else [16_000])


def test_a_sound_is_written_as_it_is(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.wav"
    assert run(capsys, "preview", str(data / "x.arrow"), "tone.wav", "-o", str(out))[0] == 0
    np.testing.assert_array_equal(decode_all(out), decode_all(data / "tone.wav"))
    options = ["--recipe", "libhelix.recipes:Audio", "--param", "rate=4000", "--param", 'dtype="int16"']
    assert run(capsys, "preview", str(data / "x.arrow"), "tone.wav", *options, "-o", str(out))[0] == 0
    body = out.read_bytes()
    assert struct.unpack("<HHI", body[20:28]) == (1, 1, 4000)
    assert len(body) == 44 + 2 * 4000
    code, _, err = run(capsys, "preview", str(data / "x.arrow"), "words.txt", "-o", str(out))
    assert (code, "becomes sound; write a .png" in err) == (2, True)


def test_several_items_texts_and_arrays(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.png"
    said = run(capsys, "preview", str(data / "x.arrow"), "numbers.npy", "-o", str(out))[1]
    assert "tensor  float32 [20, 30]  min 0, max 599, mean 299.5" in said
    said = run(capsys, "preview", str(data / "x.arrow"), "words.txt", "-o", str(out))[1]
    assert said.splitlines()[2] == "  text"
    assert out.stat().st_size > 1000
    said = run(capsys, "preview", str(data / "x.arrow"), "#0", "-o", str(out))[1]
    assert said.splitlines()[-1] == "    one"
    assert [line.split("  ")[1] for line in said.splitlines()[4:-1]] == [
        "image png",
        "image left.png",
        "text txt",
    ]


def test_keys_that_are_not_there_and_keys_that_are_twice(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(key: str) -> str:
        code, out, err = run(capsys, "preview", str(data / "x.arrow"), key, "-o", str(tmp_path / "a.png"))
        assert (code, out) == (2, "")
        assert not (tmp_path / "a.png").exists()
        return err

    assert "near are: pictures/cat.png\n" in fails("cat.png")
    assert "near are: talk.mp4\n" in fails("tlak.mp4")
    assert fails("zzzzzzzzzzzz").rstrip().endswith("has this key")
    twice = fails("0")
    assert "2 samples have this key; name one by its number: '#0' in " in twice
    assert "a.tar, '#1' in " in twice
    assert "has 7 samples, #0 to #6" in fails("#7")


def test_draws_are_those_of_the_loader_at_a_seed_and_an_epoch(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_for_preview.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__("mine_for_preview")
    loader = hx.Loader(
        data / "x.arrow",
        recipe=module.Drawn(),
        batching=hx.FixedBatch(7),
        seed=11,
        epochs=3,
        backend="inline",
    )
    drawn = {(batch.epoch, int(i)): int(x) for batch in loader for x, i in batch["x"]}
    assert len(drawn) == 21
    for epoch, number in ((0, 3), (2, 3), (2, 6)):
        args = [f"#{number}", "--recipe", "mine_for_preview:Drawn", "--seed", "11", "--epoch", str(epoch)]
        said = run(capsys, "preview", str(data / "x.arrow"), *args, "-o", "a.png")[1]
        assert f"x  int64 [2]  {drawn[epoch, number]}, {number}\n" in said
    code, _, err = run(
        capsys, "preview", str(data / "x.arrow"), "#3", "--recipe", "mine_for_preview:Broken", "-o", "b.png"
    )
    assert code == 1
    assert "Broken raised ValueError: not today" in err
    assert not (tmp_path / "b.png").exists()


def test_a_recipe_that_a_module_made_is_taken_as_it_is(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_for_preview.py").write_text(
        "import libhelix as hx\n"
        "both = hx.recipes.Together(video=hx.recipes.Clip(frames=2, size=(8, 8)), sound=hx.recipes.Audio())\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = ["--recipe", "made_for_preview:both"]
    said = run(capsys, "preview", str(data / "x.arrow"), "talk.mp4", *options, "-o", "a.png")[1]
    assert "  video  uint8 [2, 8, 8, 3]\n" in said
    assert "  sound  float32 [25600]  16000 Hz, 1.60 s, peak" in said
    out = run(capsys, "inspect", str(data / "x.arrow"), *options)[1]
    assert "6 samples fail" in out
    code, _, err = run(capsys, "inspect", str(data / "x.arrow"), *options, "--param", "a=1")
    assert (code, "is made already; name a class" in err) == (2, True)


def test_tokens_are_shown_as_text(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers", reason="needs the extra text")
    made = stored.make_tokenizer(tmp_path / "tokenizer.json")
    index = Index.open(data / "x.arrow")
    number = index.keys().to_pylist().index("words.txt")
    recipe = hx.recipes.Text(tokenizer=str(made))
    ids, labels = parts.parts_of(trial(index, number, recipe), recipe)
    assert isinstance(ids, parts.Words)
    assert "cat" in ids.text
    assert labels.caption.endswith("are trained on")

    class Model(hx.recipes.Text, frozen=True):
        checkpoint: str = str(tmp_path)

    found = parts._decoded("text_input_ids", np.tile([0, 0, 1, 1, 1, 1, 1, 1], 1), Model(function="a:b"))
    assert found == "<s> <s> </s> x 6 "


def test_numbers_of_all_dtypes_are_told() -> None:
    for dtype in DTYPES:
        if dtype != "bfloat16":
            assert parts.numbers(np.ones((5, 5), dtype)) == "min 1, max 1, mean 1"
    assert parts.numbers(np.array([], np.float32)) == "empty"
    assert parts.numbers(np.array([True, False])) == "True, False"
    odd = np.full(100, np.nan, np.float32)
    assert parts.numbers(odd) == "none is finite, 100 are NaN or infinite"
    odd[0] = 2
    assert parts.numbers(odd) == "min 2, max 2, mean 2, 99 are NaN or infinite"


@pytest.mark.parametrize(
    ("shape", "dtype", "count"),
    [
        ((9, 9, 3), "uint8", 1),
        ((3, 9, 9), "uint8", 1),
        ((2, 9, 9, 3), "uint8", 2),
        ((2, 3, 9, 9), "float32", 2),
        ((3, 5, 9, 9), "float32", 5),
        ((16, 5, 9, 9), "float32", None),
        ((9, 9), "uint8", None),
        ((3, 3), "uint8", None),
        ((9, 9, 3), "int64", None),
        ((9, 9, 3), "uint16", None),
        ((0, 9, 9, 3), "uint8", None),
    ],
)
def test_what_has_three_channels_is_pictures(shape: tuple[int, ...], dtype: str, count: int | None) -> None:
    found = parts.pictures(np.zeros(shape, dtype))
    assert (None if found is None else len(found)) == count
    for picture in found or ():
        assert picture.dtype == np.uint8
        assert picture.shape[2] == 3


def test_large_pictures_are_made_smaller_and_long_waves_show_their_peaks() -> None:
    large = np.zeros((700, 641, 3), np.uint8)
    large[::3] = 90
    assert sheet.smaller(large).shape == (233, 213, 3)
    assert (sheet.smaller(large)[:200] == 30).all()
    assert sheet.smaller(np.zeros((1, 1000, 3), np.uint8)).shape == (1, 250, 3)
    silence = np.zeros(100_000, np.float32)
    silence[50_000] = 1
    drawn = sheet.wave(silence, 100)
    assert drawn.shape == (96, 100, 3)
    assert (drawn[0, 50] == (68, 119, 170)).all()
    assert (drawn[0, 49] == 255).all()
    assert sheet.wave(np.zeros(3, np.float32), 100).shape == (96, 100, 3)


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["-o", "a.jpg"], 2, "name a .png, or a .wav for sound"),
        (["-o", "a"], 2, "name a .png"),
        (["-o", "/nowhere/a.png"], 2, "choose another -o"),
        (["-o", "a.png", "--recipe", "nothing"], 2, "write module:Class"),
        (["-o", "a.png", "--epoch", "-1"], 2, "--epoch"),
        ([], 2, "Missing option"),
    ],
)
def test_failures(
    data: Path, args: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got, out, err = run(capsys, "preview", str(data / "x.arrow"), "words.txt", *args)
    assert (got, out) == (code, "")
    assert text in err


def test_without_matplotlib_the_extra_is_named(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for command in (["preview", "words.txt", "-o"], ["inspect", "--plot"]):
        args = [command[0], str(data / "x.arrow"), *command[1:], str(tmp_path / "a.png")]
        code, _, err = run(capsys, *args)
        assert code == 2
        assert "pip install 'datahelix[plot]'" in err
    assert list(tmp_path.iterdir()) == []


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "preview", "--help")
    assert code == 0
    assert "helixctl preview train.arrow cats/0001.mp4 -o a.png" in out
