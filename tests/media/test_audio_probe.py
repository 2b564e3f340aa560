"""What is said of a sound before it is decoded: exactly the samples that decoding gives."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from libhelix.errors import MediaError
from libhelix.media import audio, probe_items, video
from libhelix.media.pcm import decode
from libhelix.recipe import AudioInfo, Item
from tests.clips import make_clip
from tests.sounds import CODECS, decode_all, encode, tones, with_sound, write_wav


def heard(path: Path) -> AudioInfo:
    (item,) = probe_items(path)
    assert item.kind == "audio"
    assert item.audio is not None
    return item.audio


@pytest.mark.parametrize("suffix", sorted(CODECS))
@pytest.mark.parametrize("n", [30_000, 48_000, 50_001])
def test_priming_and_padding_are_not_counted(tmp_path: Path, suffix: str, n: int) -> None:
    path = encode(tmp_path / f"a.{suffix}", tones(n / 48_000, 48_000, 2), 48_000)
    info = heard(path)
    # FFmpeg's own Vorbis encoder fills the last block.
    assert info.samples == (decode_all(path).shape[1] if suffix == "ogg" else n)
    assert (info.rate, info.channels) == (48_000, 2)
    assert info.codec == {"wav": "pcm_s16le", "m4a": "aac", "ogg": "vorbis"}.get(suffix, suffix)


def test_a01_six_channels(tmp_path: Path) -> None:
    info = heard(encode(tmp_path / "a.flac", tones(1, 48_000, 6), 48_000))
    assert (info.rate, info.channels, info.samples) == (48_000, 6, 48_000)


def test_a02_a_low_rate(tmp_path: Path) -> None:
    info = heard(write_wav(tmp_path / "a.wav", tones(1, 8000), 8000))
    assert (info.rate, info.channels, info.samples, info.duration_s) == (8000, 1, 8000, 1.0)


def test_a03_cover_art_is_no_video(tmp_path: Path) -> None:
    plain = encode(tmp_path / "plain.mp3", tones(3, 44_100), 44_100).read_bytes()
    if plain[:3] == b"ID3":
        size = sum((byte & 127) << shift for byte, shift in zip(plain[6:10], (21, 14, 7, 0)))
        plain = plain[10 + size :]
    picture = encode_jpeg(tmp_path)
    body = b"\0image/jpeg\0\3\0" + picture
    frame = b"APIC" + len(body).to_bytes(4, "big") + b"\0\0" + body
    n = len(frame)
    tag = b"ID3\3\0\0" + bytes((n >> shift) & 127 for shift in (21, 14, 7, 0)) + frame
    path = tmp_path / "art.mp3"
    path.write_bytes(tag + plain)
    info = heard(path)
    assert (info.codec, info.samples) == ("mp3", 132_300)
    with pytest.raises(MediaError, match=r"art\.mp3: no video stream \(it has audio, video\)"):
        video.probe(path)


def encode_jpeg(folder: Path) -> bytes:
    from PIL import Image as Pil

    Pil.new("RGB", (16, 16), (200, 30, 30)).save(folder / "art.jpg")
    return (folder / "art.jpg").read_bytes()


def test_a05_the_first_sample_of_an_mp3_has_its_time(tmp_path: Path) -> None:
    info = heard(encode(tmp_path / "a.mp3", tones(1, 44_100), 44_100))
    num, den = info.time_base
    assert info.samples == 44_100
    assert info.start_pts * num / den == pytest.approx(1105 / 44_100)


def test_a05_an_mp4_ends_where_it_says(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.m4a", tones(1, 16_000), 16_000)
    assert decode_all(path).shape[1] == 16_384
    assert heard(path).samples == 16_000


@pytest.mark.parametrize("said", [0xFFFFFFFF, 0, 0x7FFFFFF0, 16_000 + 2])
def test_a06_a_wav_with_a_wrong_size_goes_to_the_end_of_the_file(tmp_path: Path, said: int) -> None:
    path = write_wav(tmp_path / "a.wav", tones(1, 8000), 8000, data_size=said)
    assert heard(path).samples == 8000
    assert decode_all(path).shape[1] == 8000


def test_what_follows_the_data_of_a_wav_is_not_heard(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", tones(1, 8000), 8000, after=b"LIST\4\0\0\0abcd")
    assert heard(path).samples == 8000


@pytest.mark.parametrize("kind", ["u8", "s24", "f32", "s16"])
def test_a07_every_sample_format_counts(tmp_path: Path, kind: str) -> None:
    assert heard(write_wav(tmp_path / "a.wav", tones(1, 16_000, 2), 16_000, kind)).samples == 16_000


def _without_total(path: Path, total: int = 0) -> Path:
    """A FLAC whose header has another total number of samples."""
    body = bytearray(path.read_bytes())
    at = 8 + 13  # marker, block header, then 36 bits behind 108
    body[at] = body[at] & 0xF0 | total >> 32
    body[at + 1 : at + 5] = (total & 0xFFFFFFFF).to_bytes(4, "big")
    path.write_bytes(body)
    return path


def test_a10_a_flac_of_unknown_length_is_counted(tmp_path: Path) -> None:
    path = _without_total(encode(tmp_path / "a.flac", tones(1, 48_000, 2), 48_000))
    assert heard(path).samples == 48_000


def test_a_flac_that_promises_more_than_it_has_is_truncated(tmp_path: Path) -> None:
    """Nobody allocates what a header of 36 bits says."""
    path = _without_total(encode(tmp_path / "a.flac", tones(1, 48_000, 2), 48_000), (1 << 36) - 1)
    with pytest.raises(MediaError, match=r"a\.flac: truncated: it ends at sample 48000 of 68719476735"):
        audio.probe(path)


@pytest.mark.parametrize("channels", [1, 2])
def test_a14_a_chained_ogg_is_refused(tmp_path: Path, channels: int) -> None:
    first = encode(tmp_path / "1.opus", tones(1, 48_000, 1), 48_000).read_bytes()
    second = encode(tmp_path / "2.opus", tones(1, 48_000, channels), 48_000).read_bytes()
    path = tmp_path / "a.opus"
    path.write_bytes(first + second)
    with pytest.raises(
        MediaError, match=rf"a\.opus: .*chained Ogg.*byte {len(first)}.*split it|a\.opus: unreadable"
    ):
        audio.probe(path)


def test_an_mp3_without_a_xing_header_is_counted(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.mp3", tones(3, 44_100), 44_100, options={"write_xing": "0"})
    with_it = path.read_bytes()
    at = with_it.find(b"Info")
    at = at if at >= 0 else with_it.find(b"Xing")
    if at >= 0:
        start = with_it.rfind(b"\xff\xfb", 0, at)
        following = with_it.find(b"\xff\xfb", at)
        path.write_bytes(with_it[:start] + with_it[following:])
    info = heard(path)
    assert info.samples == decode_all(path).shape[1]
    assert info.samples % 1152 == 0


def test_v19_sound_alone_is_audio_and_no_video(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.mp4", tones(1, 16_000), 16_000, codec="aac")
    assert heard(path).samples == 16_000
    with pytest.raises(MediaError, match=r"a\.mp4: no video stream \(it has audio\)"):
        video.probe(path)
    with pytest.raises(MediaError, match=r"b\.mp4: no audio stream \(it has video\)"):
        audio.probe(make_clip(tmp_path / "b.mp4", 4))


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "avi", "ts", "webm"])
def test_the_sound_of_a_video_is_its_second_item(tmp_path: Path, suffix: str) -> None:
    codec = {"webm": "libopus", "avi": "libmp3lame"}.get(suffix, "aac")
    silent = make_clip(tmp_path / f"silent.{suffix}", 30, codec="vp9" if suffix == "webm" else "mpeg4")
    path = with_sound(tmp_path / f"a.{suffix}", silent, tones(1.2, 48_000, 2), 48_000, codec)
    shown, sound = probe_items(path)
    assert (shown.kind, sound.kind) == ("video", "audio")
    assert (shown.path, shown.size, shown.mtime_ns) == (sound.path, sound.size, sound.mtime_ns)
    assert shown.video == video.probe(path)
    assert sound.audio == audio.probe(path)
    assert sound.audio is not None
    n = decode_all(path).shape[1]
    assert 0 <= n - sound.audio.samples < 1024
    assert sound.audio.samples == 57_600 or suffix not in ("mp4", "webm")
    assert [item.kind for item in probe_items(silent)] == ["video"]


@pytest.mark.parametrize("suffix", ["mp3", "ogg", "wav"])
def test_of_a_file_that_was_cut_what_is_there_counts(tmp_path: Path, suffix: str) -> None:
    whole = encode(tmp_path / f"whole.{suffix}", tones(20, 44_100, 2), 44_100).read_bytes()
    draw = random.Random(1)
    for _ in range(6):
        path = tmp_path / f"a.{suffix}"
        path.write_bytes(whole[: draw.randrange(len(whole) // 2, len(whole))])
        (item,) = probe_items(path)
        assert item.audio is not None
        out = np.empty((2, item.audio.samples), np.float32)
        decode(item, out)
        np.testing.assert_array_equal(out, decode_all(path)[:, : item.audio.samples])


@pytest.mark.parametrize("suffix", ["flac", "m4a"])
def test_a_cut_file_that_knows_its_length_is_refused(tmp_path: Path, suffix: str) -> None:
    path = encode(tmp_path / f"a.{suffix}", tones(3, 44_100), 44_100)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(MediaError, match=rf"a\.{suffix}: (truncated|unreadable container).*again"):
        audio.probe(path)


def test_what_is_no_sound_is_refused_by_name(tmp_path: Path) -> None:
    for name, content, text in (
        ("empty.wav", b"", "the file is empty; fetch it again"),
        ("junk.mp3", b"junk" * 1000, "container"),
        (
            "none.wav",
            write_wav(tmp_path / "x.wav", tones(0, 8000), 8000).read_bytes(),
            "container|no samples",
        ),
    ):
        (tmp_path / name).write_bytes(content)
        for look in (audio.probe, probe_items):
            with pytest.raises(MediaError, match=rf"{name}: .*({text})"):
                look(tmp_path / name)
    with pytest.raises(MediaError, match=r"gone\.wav: No such file"):
        audio.probe(tmp_path / "gone.wav")


def test_random_bytes_are_no_sound(tmp_path: Path) -> None:
    draw = random.Random(4)
    for size in (100, 5000, 100_000):
        path = tmp_path / "a.bin"
        path.write_bytes(draw.randbytes(size))
        with pytest.raises(MediaError, match=r"a\.bin: "):
            probe_items(path)


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3"])
def test_a_range_of_a_file_is_a_file(tmp_path: Path, suffix: str) -> None:
    alone = encode(tmp_path / f"a.{suffix}", tones(2, 44_100), 44_100)
    body = alone.read_bytes()
    packed = tmp_path / "packed.bin"
    packed.write_bytes(os.urandom(777) + body + os.urandom(3000))
    found = packed.stat()
    item = Item(kind="audio", path=str(packed), offset=777, size=len(body), mtime_ns=found.st_mtime_ns)
    assert audio.probe_item(item) == audio.probe(alone)
