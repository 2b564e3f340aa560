"""WAV and FLAC are told by their headers, exactly as FFmpeg has them; what is unusual is left to it."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

from libhelix.media import probe_items
from tests.media.both import agreed, by_headers, by_scan
from tests.sounds import encode, tones, write_wav

GUID = bytes.fromhex("000000001000800000aa00389b71")


def chunk(name: bytes, content: bytes, size: int | None = None) -> bytes:
    said = len(content) if size is None else size
    return name + said.to_bytes(4, "little") + content + b"\0" * (len(content) & 1)


def wave(path: Path, *chunks: bytes, form: bytes = b"RIFF") -> Path:
    body = b"WAVE" + b"".join(chunks)
    size = 0xFFFFFFFF if form == b"RF64" else len(body)
    path.write_bytes(form + size.to_bytes(4, "little") + body)
    return path


def fmt(tag: int = 1, channels: int = 1, rate: int = 8000, bits: int = 16, more: bytes = b"") -> bytes:
    block = channels * bits // 8
    return chunk(b"fmt ", struct.pack("<HHIIHH", tag, channels, rate, rate * block, block, bits) + more)


def extensible(bits: int, valid: int, tag: int, channels: int = 2, guid: bytes = GUID) -> bytes:
    more = struct.pack("<HHIH", 22, valid, 3, tag) + guid
    return fmt(0xFFFE, channels, 48_000, bits, more)


SILENCE = bytes(range(1, 241)) * 100
DATA = chunk(b"data", SILENCE)


@pytest.mark.parametrize("kind", ["u8", "s16", "s24", "f32"])
@pytest.mark.parametrize("channels", [1, 2, 6])
def test_pcm_of_all_widths(kind: str, channels: int, tmp_path: Path) -> None:
    (heard,) = agreed(write_wav(tmp_path / "a.wav", tones(0.5, 8000, channels), 8000, kind))
    assert heard.audio is not None
    assert (heard.audio.samples, heard.audio.channels) == (4000, channels)


@pytest.mark.parametrize(
    "chunks",
    [
        [fmt(3, bits=64), DATA],
        [fmt(bits=32), DATA],
        [fmt(more=b"\0\0"), DATA],
        [extensible(16, 16, 1), DATA],
        [extensible(24, 24, 1), DATA],
        [extensible(32, 32, 3), DATA],
        [chunk(b"LIST", b"INFOabc"), fmt(), chunk(b"JUNK", bytes(29)), DATA],
        [chunk(b"bext", bytes(602)), fmt(), DATA, chunk(b"LIST", b"adtl")],
        [fmt(), chunk(b"data", SILENCE, 0)],
        [fmt(), chunk(b"data", SILENCE, 0xFFFFFFFF)],
        [fmt(), chunk(b"data", SILENCE, len(SILENCE) + 1000)],
        [fmt(), chunk(b"data", SILENCE + b"x")],
        [fmt(channels=2), chunk(b"data", SILENCE[:-3])],
    ],
)
def test_headers_of_all_kinds(chunks: list[bytes], tmp_path: Path) -> None:
    agreed(wave(tmp_path / "a.wav", *chunks))


def test_a_wide_header_says_the_length(tmp_path: Path) -> None:
    wide = chunk(b"ds64", struct.pack("<QQQI", 0, len(SILENCE), 0, 0))
    data = chunk(b"data", SILENCE, 0xFFFFFFFF) + chunk(b"LIST", b"INFOabcd")
    (heard,) = agreed(wave(tmp_path / "a.wav", wide, fmt(), data, form=b"RF64"))
    assert heard.audio is not None
    assert heard.audio.samples == len(SILENCE) // 2


@pytest.mark.parametrize(
    "chunks",
    [
        [fmt(6, bits=8), DATA],
        [fmt(bits=12), DATA],
        [fmt(2, bits=4), DATA],
        [extensible(24, 20, 1), DATA],
        [extensible(16, 16, 1, guid=b"x" * 14), DATA],
        [fmt(), fmt(), DATA],
        [fmt(), DATA, DATA],
        [fmt(), chunk(b"SMV0", bytes(40)), DATA],
        [fmt(), chunk(b"data", b"")],
        [DATA, fmt()],
        [fmt(channels=65), DATA],
        [fmt(rate=0), DATA],
        [fmt(channels=2), chunk(b"data", bytes.fromhex("72f81f4e") + SILENCE)],
    ],
)
def test_what_is_unusual_is_left_to_the_scan(chunks: list[bytes], tmp_path: Path) -> None:
    assert by_headers(wave(tmp_path / "a.wav", *chunks)) is None


def test_an_rf64_that_does_not_say_its_sizes_first_is_left_to_the_scan(tmp_path: Path) -> None:
    assert by_headers(wave(tmp_path / "a.wav", fmt(), DATA, form=b"RF64")) is None


@pytest.mark.parametrize("rate", [8000, 22_050, 44_100, 48_000, 96_000, 37_800])
@pytest.mark.parametrize("n", [100, 4096, 8192, 30_001])
def test_flac_says_its_length(rate: int, n: int, tmp_path: Path) -> None:
    (heard,) = agreed(encode(tmp_path / "a.flac", tones(n / rate, rate, 2), rate))
    assert heard.audio is not None
    assert (heard.audio.samples, heard.audio.rate) == (n, rate)


def test_tags_may_follow_the_last_frame(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.flac", tones(1, 48_000), 48_000)
    path.write_bytes(path.read_bytes() + b"TAG" + bytes(125))
    agreed(path)


def test_a_flac_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.flac", tones(3, 44_100), 44_100)
    body = path.read_bytes()
    for part in (0.3, 0.6, 0.9):
        path.write_bytes(body[: int(len(body) * part)])
        assert by_headers(path) is None
        said = by_scan(path)
        assert isinstance(said, str)
        assert "truncated" in said


def test_a_flac_of_unknown_length_is_counted(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.flac", tones(1, 48_000), 48_000)
    body = bytearray(path.read_bytes())
    body[21] &= 0xF0
    body[22:26] = bytes(4)
    path.write_bytes(body)
    assert by_headers(path) is None
    (heard,) = probe_items(path)
    assert heard.audio is not None
    assert heard.audio.samples == 48_000


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_damaged_headers_never_say_something_else_than_the_scan(suffix: str, tmp_path: Path) -> None:
    whole = encode(tmp_path / f"whole.{suffix}", tones(0.3, 16_000, 2), 16_000).read_bytes()
    draw = random.Random(suffix)
    said: Counter[bool] = Counter()
    path = tmp_path / f"a.{suffix}"
    for _ in range(500):
        body = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            body[draw.randrange(48 if suffix == "wav" else 120)] = draw.choice(
                [0, 1, 255, draw.randrange(256)]
            )
        path.write_bytes(body)
        ours = by_headers(path)
        said[ours is not None] += 1
        assert ours is None or ours == by_scan(path)
    assert said[True] > 30


def test_a_wav_of_millions_of_chunks_takes_no_memory(tmp_path: Path) -> None:
    path = wave(tmp_path / "a.wav", fmt(), chunk(b"JUNK", b"") * 100_000, DATA)
    by_headers(path)
    tracemalloc.start()
    try:
        assert by_headers(path) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 18
