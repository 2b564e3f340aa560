"""Any stretch of a sound equals the same stretch of a full decode; rates, channels and types are as told."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from libhelix.errors import MediaError, UsageError
from libhelix.media import pcm, probe_items
from libhelix.media.mixing import mixing_matrix, resampled_length
from libhelix.media.pcm import decode
from libhelix.recipe import Item
from tests.clips import make_clip
from tests.sounds import CODECS, Array, decode_all, encode, tones, with_sound, write_wav

RATE = 48_000


def sound_of(path: Path) -> Item:
    return next(item for item in probe_items(path) if item.kind == "audio")


def heard(path: Path, n: int, channels: int = 1, dtype: Any = np.float32, **how: Any) -> Array:
    out = np.full((channels, n), 77, dtype)
    decode(sound_of(path), out, **how)
    return out


def _stretches(path: Path, count: int) -> None:
    item = sound_of(path)
    assert item.audio is not None
    whole, total = decode_all(path), item.audio.samples
    draw = random.Random(2)
    found = np.empty((item.audio.channels, total), np.float32)
    decode(item, found)
    np.testing.assert_array_equal(found, whole[:, :total])
    for _ in range(count):
        start = draw.randrange(total)
        stop = min(total, start + draw.choice((1, 900, 30_000)))
        found = np.empty((item.audio.channels, stop - start), np.float32)
        decode(item, found, start=start, stop=stop)
        np.testing.assert_array_equal(found, whole[:, start:stop], err_msg=f"{start}:{stop}")


@pytest.mark.parametrize("suffix", sorted(CODECS))
def test_random_stretches_equal_the_full_decode(tmp_path: Path, suffix: str) -> None:
    _stretches(encode(tmp_path / f"a.{suffix}", tones(25, RATE, 2), RATE), 12)


@pytest.mark.parametrize("bit_rate", [8_000, 320_000])
def test_an_mp3_whose_bits_come_from_afar_is_entered_early_enough(tmp_path: Path, bit_rate: int) -> None:
    rate = 16_000 if bit_rate < 32_000 else RATE
    options = {"b": str(bit_rate)}
    _stretches(encode(tmp_path / "a.mp3", tones(20, rate), rate, options=options), 12)


@pytest.mark.parametrize("mode", ["voip", "audio"])
def test_an_opus_of_either_kind_is_entered_early_enough(tmp_path: Path, mode: str) -> None:
    options = {"application": mode, "b": "12000"}
    _stretches(encode(tmp_path / "a.opus", tones(30, RATE), RATE, options=options), 12)


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_the_sound_of_a_video_is_exact(tmp_path: Path, suffix: str) -> None:
    silent = make_clip(tmp_path / f"silent.{suffix}", 60, codec="mpeg4")
    _stretches(with_sound(tmp_path / f"a.{suffix}", silent, tones(2.4, RATE, 2), RATE, "aac"), 8)


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "ogg", "opus"])
def test_a_late_stretch_costs_no_decode_of_all_before_it(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = sound_of(encode(tmp_path / f"a.{suffix}", tones(40, RATE, 2), RATE))
    assert item.audio is not None
    total = item.audio.samples
    decoded = 0
    real = pcm._check_same

    def counting(path: str, frame: Any, *others: Any) -> None:
        nonlocal decoded
        decoded += frame.samples
        real(path, frame, *others)

    monkeypatch.setattr(pcm, "_check_same", counting)
    decode(item, np.empty((2, 1000), np.float32), start=total - 1000)
    if suffix == "wav":
        assert decoded == 0  # it is read where it lies
        return
    assert 1000 <= decoded <= 11 * RATE
    assert decoded >= total - 1000 - pcm.entry(item.audio, total - 1000)


def test_a_seek_that_lands_late_leads_back_to_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encode(tmp_path / "a.flac", tones(3, RATE), RATE)
    item = sound_of(path)
    monkeypatch.setattr(pcm, "_route", lambda *_: pcm._Route(True, 110_000))
    out = np.empty(500, np.float32)
    decode(item, out, start=100_000, stop=100_500)
    np.testing.assert_array_equal(out, decode_all(path)[0, 100_000:100_500])


@pytest.mark.parametrize("kind", ["u8", "s24", "f32", "s16"])
def test_a07_full_scale_is_one_in_every_format(tmp_path: Path, kind: str) -> None:
    sound = np.zeros((2, 16_000), np.float32)
    sound[0, 5], sound[1, 6] = 0.5, -0.5
    out = heard(write_wav(tmp_path / "a.wav", sound, 16_000, kind), 16_000, 2)
    np.testing.assert_allclose(out, sound, atol=1 / 128 if kind == "u8" else 1e-6)


def test_16_bits_come_back_as_they_were(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(-32768, 32768, (2, 20_000)).astype(np.int16)
    path = write_wav(tmp_path / "a.wav", values / np.float32(32768), RATE)
    np.testing.assert_array_equal(heard(path, 20_000, 2, np.int16), values)
    path = encode(tmp_path / "a.flac", values / np.float32(32768), RATE)
    np.testing.assert_array_equal(heard(path, 20_000, 2, np.int16), values)


def test_int16_clips_and_does_not_wrap(tmp_path: Path) -> None:
    loud = np.array([[1.5, -1.5, 1.0, -1.0, 0.25]], np.float32)
    out = heard(write_wav(tmp_path / "a.wav", loud, RATE, "f32"), 5, 1, np.int16)
    assert out.tolist() == [[32767, -32768, 32767, -32768, 8192]]


def test_a02_a_low_rate_doubled_is_twice_as_long(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", tones(1, 8000), 8000)
    assert np.abs(heard(path, 16_000, rate=16_000)).max() < 0.7


@pytest.mark.parametrize("rates", [(8000, 16_000), (44_100, 16_000), (48_000, 44_100), (192_000, 16_000)])
@pytest.mark.parametrize("n", [1, 2, 31, 255, 4099, 100_003])
def test_a_resampled_sound_has_its_length_and_stays_in_place(
    tmp_path: Path, rates: tuple[int, int], n: int
) -> None:
    before, after = rates
    sound = 0.5 * np.sin(2 * np.pi * 440 * np.arange(n) / before)[None]
    length = resampled_length(n, before, after)
    assert length == -(-n * after // before)
    out = heard(write_wav(tmp_path / "a.wav", sound, before, "f32"), length, rate=after)
    wanted = 0.5 * np.sin(2 * np.pi * 440 * np.arange(length) / after)
    middle = slice(200, -200)
    np.testing.assert_allclose(out[0, middle], wanted[middle], atol=1e-4)
    assert np.abs(out).max() < 1.0  # all of it was written


def test_fewer_samples_are_the_first_ones(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", tones(1, RATE), RATE)
    for rate in (RATE, 16_000):
        np.testing.assert_array_equal(heard(path, 1000, rate=rate), heard(path, rate, rate=rate)[:, :1000])


def test_orders_and_strides_do_not_matter(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.flac", tones(1, RATE, 2), RATE)
    wanted = heard(path, RATE, 2)
    item = sound_of(path)
    last = np.empty((RATE, 2), np.float32)
    decode(item, last, order="TC")
    np.testing.assert_array_equal(last.T, wanted)
    wide = np.zeros((2, 2 * RATE), np.float32)
    decode(item, wide[:, ::2])
    np.testing.assert_array_equal(wide[:, ::2], wanted)
    assert not wide[:, 1::2].any()


def test_a01_channels_are_mixed_as_written_down(tmp_path: Path) -> None:
    six = tones(1, RATE, 6)
    path = encode(tmp_path / "a.flac", six, RATE)
    apart = heard(path, RATE, 6)  # FL FR FC LFE BL BR
    h = 0.5**0.5
    left = (apart[0] + h * apart[2] + h * apart[4]) / (1 + 2 * h)
    right = (apart[1] + h * apart[2] + h * apart[5]) / (1 + 2 * h)
    np.testing.assert_allclose(heard(path, RATE, 2), [left, right], atol=1e-6)
    np.testing.assert_allclose(heard(path, RATE, 1), [(left + right) / 2], atol=1e-6)
    with pytest.raises(MediaError, match=r"a\.flac: 6 channels .* do not become 4; ask for 1"):
        heard(path, RATE, 4)


def test_mixing_of_few_and_of_many_channels() -> None:
    assert mixing_matrix(("FL", "FR"), 1).tolist() == [[0.5, 0.5]]
    assert mixing_matrix(("FC",), 2).tolist() == [[1], [1]]
    assert mixing_matrix(("FC",), 1).tolist() == [[1]]
    assert mixing_matrix(("NONE",) * 16, 1).tolist() == [[0.0625] * 16]
    assert np.array_equal(mixing_matrix(("NONE",) * 16, 16), np.eye(16))


def test_an_array_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    item = sound_of(write_wav(tmp_path / "a.wav", tones(1, 8000), 8000))
    for out in (np.empty(8001, np.float32), np.empty(8000, np.float64), np.empty((1, 1, 8000), np.float32)):
        with pytest.raises(UsageError, match="8000 samples"):
            decode(item, out)
    with pytest.raises(MediaError, match=r"a\.wav: samples 0 to 8001 were asked for, it has 8000"):
        decode(item, np.empty(8001, np.float32), stop=8001)
    silent = probe_items(make_clip(tmp_path / "b.mp4", 4))[0]
    with pytest.raises(MediaError, match="not indexed as audio"):
        decode(silent, np.empty(1, np.float32))


def test_damage_within_is_told_and_not_closed_up(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.flac", tones(4, RATE), RATE)
    item = sound_of(path)
    body = bytearray(path.read_bytes())
    middle = len(body) // 2
    body[middle : middle + 6000] = b"\xff" * 6000
    path.write_bytes(body)
    item = msgspec.structs.replace(item, mtime_ns=path.stat().st_mtime_ns)
    with pytest.raises(MediaError, match=r"a\.flac: its sound (is damaged behind|ends at) sample \d+"):
        decode(item, np.empty(4 * RATE, np.float32))


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", tones(1, 8000), 8000)
    item = sound_of(path)
    write_wav(path, tones(0.5, 8000), 8000)
    with pytest.raises(MediaError, match="changed since it was indexed"):
        decode(item, np.empty(8000, np.float32))


def test_a_wav_that_is_cut_while_it_is_read_is_not_half_a_sound(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "x.wav", tones(10.0, 16_000), 16_000)
    item = sound_of(path)
    blocks = pcm.heard(item)
    next(blocks)
    os.truncate(path, 200_000)
    with pytest.raises(MediaError, match=r"x\.wav: ends inside its sound; run helixctl index again"):
        next(blocks)
