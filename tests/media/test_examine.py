"""Whatever is decoded completely: what is said of sounds, arrays, texts, and of videos beside their sound."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from libhelix.media import examine_sound, probe_items
from libhelix.media.examine import between, examine
from libhelix.recipe import Item, TensorInfo
from tests.clips import make_clip
from tests.sounds import encode, tones, with_sound, write_wav

RATE = 16_000


def said(path: Path, at: int = 0) -> list[tuple[str, str]]:
    """(grade, text) of what is said of an item of a file."""
    found = examine(probe_items(path)[at])
    assert found is not None
    return [(finding.grade, finding.text) for finding in found]


# ---- sounds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "m4a", "opus", "ogg"])
def test_of_a_good_sound_nothing_is_said(tmp_path: Path, suffix: str) -> None:
    assert said(encode(tmp_path / f"a.{suffix}", tones(2, 48_000, 2), 48_000)) == []


@pytest.mark.parametrize("kind", ["s16", "u8", "f32"])
def test_silence_and_clipping_are_odd(tmp_path: Path, kind: str) -> None:
    quiet = write_wav(tmp_path / "quiet.wav", np.zeros((2, RATE)), RATE, kind)
    assert said(quiet) == [("odd", "silent throughout; leave it out if that is not meant")]
    loud = np.clip(3 * tones(1, RATE, 2), -1, 32767 / 32768 if kind == "s16" else 127 / 128)
    if kind == "f32":
        loud = np.clip(3 * tones(1, RATE, 2), -1, 1)
    ((grade, text),) = said(write_wav(tmp_path / "loud.wav", loud, RATE, kind))
    assert grade == "odd"
    assert "of its samples are at full scale: clipped" in text
    few = tones(1, RATE, 2)
    few[0, :100] = 1 - 2**-15 if kind == "s16" else 127 / 128 if kind == "u8" else 1
    assert said(write_wav(tmp_path / "few.wav", few, RATE, kind)) == []


def test_dither_is_silence_and_a_whisper_is_not(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(-1, 2, (1, RATE)) / 32768
    assert said(write_wav(tmp_path / "dither.wav", noise, RATE))[0][0] == "odd"
    assert said(write_wav(tmp_path / "whisper.wav", 20 * noise, RATE)) == []


def test_samples_that_are_no_numbers_are_odd(tmp_path: Path) -> None:
    sound = tones(1, RATE)
    sound[0, 5:8] = np.nan, np.inf, -np.inf
    assert said(write_wav(tmp_path / "a.wav", sound, RATE, "f32")) == [
        ("odd", "3 of 16,000 samples are NaN or infinite; make it again")
    ]


@pytest.mark.parametrize(
    ("suffix", "codec"),
    [("wav", ""), ("mp3", ""), ("mka", "flac"), ("flv", "libmp3lame"), ("aiff", "pcm_s16be")],
)
def test_a_sound_shorter_than_its_header_says_is_broken(tmp_path: Path, suffix: str, codec: str) -> None:
    whole = encode(tmp_path / f"whole.{suffix}", tones(20, 44_100), 44_100, codec=codec)
    assert said(whole) == []
    body = whole.read_bytes()
    half = tmp_path / f"half.{suffix}"
    half.write_bytes(body[: len(body) // 2])
    ((grade, text),) = said(half)
    assert grade == "broken"
    assert text.startswith("its header says 20.0 s, 10.")
    assert text.endswith("of an interrupted copy; fetch it again")


def test_a_wav_that_was_streamed_says_nothing_of_its_length(tmp_path: Path) -> None:
    for size in (0, 0xFFFFFFFF):
        assert said(write_wav(tmp_path / "a.wav", tones(5, RATE), RATE, data_size=size)) == []


def test_an_mp3_without_a_tag_is_not_measured_by_its_bit_rate(tmp_path: Path) -> None:
    """FFmpeg takes the first frames for all: here it says 39 seconds of 20."""
    noise = np.tile(0.3 * np.random.default_rng(0).standard_normal((1, 44_100)).astype(np.float32), 10)
    sound = np.concatenate([np.zeros((1, 441_000), np.float32), noise], axis=1)
    variable = {"flags": "+qscale", "global_quality": "236"}
    path = encode(tmp_path / "a.mp3", sound, 44_100, options=variable)
    body = path.read_bytes()
    tag = body.index(b"Xing")
    first, second = body.rindex(b"\xff\xfb", 0, tag), body.index(b"\xff\xfb", tag)
    path.write_bytes(body[:first] + body[second:])
    with av.open(str(path)) as container:
        assert container.duration is not None
        assert container.duration > 30e6
    assert said(path) == []


def test_what_is_decoded_from_its_beginning_is_slow_where_it_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine_sound, "SLOW_STRETCH_S", 1e-9)
    for suffix in ("wav", "flac", "mp3", "ogg", "opus"):
        # Opus is entered 10 seconds ahead.
        assert said(encode(tmp_path / f"a.{suffix}", tones(12, 48_000, 2), 48_000)) == [], suffix
    aac = encode(tmp_path / "a.m4a", tones(12, 48_000), 48_000)
    ((grade, text),) = said(aac)
    assert grade == "slow"
    assert f"as aac in this container is decoded from its beginning; ffmpeg -i '{aac}' -vn -c:a flac" in text


def test_damage_within_a_sound_is_broken(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.flac", tones(4, 48_000), 48_000)
    body = bytearray(path.read_bytes())
    middle = len(body) // 2
    body[middle : middle + 6000] = b"\xff" * 6000
    path.write_bytes(body)
    ((grade, text),) = said(path)
    assert grade == "broken"
    assert "its sound" in text


def test_an_hour_is_examined_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are looked at as they come: no array of all of them is made."""
    largest = 0
    real = np.abs

    def watched(block: Any, *rest: Any, **more: Any) -> Any:
        nonlocal largest
        largest = max(largest, np.asarray(block).nbytes)
        return real(block, *rest, **more)

    path = write_wav(tmp_path / "a.wav", np.tile(tones(10, RATE), 30), RATE)
    monkeypatch.setattr(np, "abs", watched)
    assert said(path) == []
    assert 0 < largest < 1 << 20


# ---- arrays --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "bool"])
def test_arrays_of_numbers_are_good_and_nan_is_counted(tmp_path: Path, dtype: str) -> None:
    values = np.arange(6000).reshape(2, 3000).astype(dtype)
    np.save(tmp_path / "a.npy", values)
    assert said(tmp_path / "a.npy") == []
    if "float" not in dtype:
        return
    values[1, 7:9] = np.nan, -np.inf
    np.save(tmp_path / "b.npy", values)
    assert said(tmp_path / "b.npy") == [
        ("odd", "2 of 6,000 values are NaN or infinite; make it again, or leave it out")
    ]


def test_bfloat16_knows_its_nan(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0x7F80, 0x7FC0, 0xFF80, 0x0001], "<u2")
    head = json.dumps({"x": {"dtype": "BF16", "shape": [5], "data_offsets": [0, 10]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bits.tobytes())
    ((_, text),) = said(tmp_path / "a.safetensors")
    assert text.startswith("3 of 5 values")


@pytest.mark.parametrize("shape", [(0,), (4, 0, 3), ()])
def test_an_array_without_values_is_odd_and_a_number_is_none(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "a.npy", np.ones(shape, np.float32))
    found = said(tmp_path / "a.npy")
    assert [grade for grade, _ in found] == ([] if shape == () else ["odd"])


def test_an_array_is_read_in_pieces_to_its_last_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("libhelix.media.examine_array._BYTES_AT_ONCE", 1000)
    values = np.ones((7, 333), np.float32)
    values[-1, -1] = np.nan
    np.save(tmp_path / "a.npy", values)
    ((_, text),) = said(tmp_path / "a.npy")
    assert text.startswith("1 of 2,331 values")


def test_an_array_whose_values_are_gone_is_broken(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\0" * 10)
    item = Item(
        kind="tensor",
        path=str(tmp_path / "a.bin"),
        offset=0,
        size=40,
        mtime_ns=0,
        tensor=TensorInfo(dtype="float32", shape=(10,)),
    )
    found = examine(item)
    assert found is not None
    assert [f.grade for f in found] == ["broken"]
    assert "ends inside its values" in found[0].text


# ---- texts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "grade", "words"),
    [
        ("a cat".encode("utf-16"), "odd", "UTF-16"),
        (b"\xef\xbb\xbfcat", "odd", "byte order mark"),
        ("a \ufffd".encode(), "odd", "U+FFFD"),
        (b"", "odd", "empty"),
    ],
)
def test_texts_that_are_read_and_are_not_what_they_should_be(
    tmp_path: Path, content: bytes, grade: str, words: str
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    ((found, text),) = said(tmp_path / "a.txt")
    assert (found, words in text) == (grade, True), text


@pytest.mark.parametrize(
    ("content", "grades"),
    [
        (b'{"a": "\\ud83d\\ude00"}', []),
        (b'{"a": "\\\\ud800"}', []),
        (b'{"a": "ok \\ud800 bad"}', ["odd"]),
        (b'{"a": NaN}', ["broken"]),
        (b"[" * 100_000, ["broken"]),
        ('{"a": 1}'.encode("utf-16"), ["odd"]),
    ],
)
def test_json_is_looked_into(tmp_path: Path, content: bytes, grades: list[str]) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "a.json").write_bytes(content)
    (item,) = probe_items(tmp_path / "a.txt")
    found = examine(Item(kind="text", path=item.path, offset=0, size=item.size, mtime_ns=0, name="json"))
    assert [f.grade for f in found or []] == grades


# ---- videos --------------------------------------------------------------------------------------------


def test_a_long_video_with_one_key_frame_is_odd(tmp_path: Path) -> None:
    short = make_clip(tmp_path / "short.mp4", 50, gop=1000, size=(16, 32))
    assert said(short) == []
    ((grade, text),) = said(make_clip(tmp_path / "long.mp4", 300, gop=1000, size=(16, 32)))
    assert grade == "odd"
    assert text.startswith("its first frame of 300 is its only key frame")
    assert "ffmpeg -i" in text
    assert said(make_clip(tmp_path / "cut.mp4", 300, gop=100, size=(16, 32))) == []


@pytest.mark.parametrize(("seconds", "odd"), [(2.4, False), (2.0, False), (0.5, True), (6.0, True)])
def test_pictures_and_sound_of_other_lengths_are_odd(tmp_path: Path, seconds: float, odd: bool) -> None:
    silent = make_clip(tmp_path / "silent.mkv", 60, codec="mpeg4", size=(16, 32))
    path = with_sound(tmp_path / "a.mkv", silent, tones(seconds, 48_000), 48_000, "aac")
    items = probe_items(path)
    assert examine(items[0]) == []
    assert examine(items[1]) == []
    found = list(between(items))
    assert len(found) == odd
    if odd:
        item, finding = found[0]
        assert (item.kind, finding.grade) == ("audio", "odd")
        assert f"its sound lasts {seconds:.1f} s, its pictures 2.4 s; cut both there: ffmpeg" in finding.text
    assert list(between(items[:1])) == []
