"""Sounds that broke other loaders (A01 to A14), varied: layouts, rates, art, padding, headers that lie.

tests/media/test_audio_probe.py and test_audio_exact.py have each case as it was reported; here are relatives.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from libhelix.errors import MediaError
from libhelix.media import audio, probe_items, video
from libhelix.media.mixing import resampled_length
from libhelix.media.pcm import decode
from libhelix.recipe import AudioInfo
from tests.clips import make_clip
from tests.sounds import Array, decode_all, encode, tones, with_sound, write_wav

RATE = 48_000
HALF = 0.5**0.5


def heard(path: Path) -> AudioInfo:
    (item,) = probe_items(path)
    assert item.audio is not None
    return item.audio


def sound(path: Path, channels: int, rate: int | None = None) -> Array:
    """The whole of it, mixed and resampled."""
    (item,) = probe_items(path)
    assert item.audio is not None
    n = resampled_length(item.audio.samples, item.audio.rate, rate or item.audio.rate)
    out = np.full((channels, n), 77, np.float32)
    decode(item, out, rate=rate)
    return out


def chunk(name: bytes, body: bytes, size: int | None = None) -> bytes:
    said = len(body) if size is None else size
    return name + struct.pack("<I", said) + body + b"\0" * (len(body) & 1)


def form(tag: int, channels: int, rate: int, bits: int, mask: int | None = None) -> bytes:
    """A "fmt " chunk; with a mask, WAVE_FORMAT_EXTENSIBLE."""
    block = channels * bits // 8
    plain = struct.pack("<HHIIHH", tag if mask is None else 0xFFFE, channels, rate, rate * block, block, bits)
    if mask is None:
        return chunk(b"fmt ", plain)
    guid = struct.pack("<H", tag) + bytes.fromhex("000000001000800000aa00389b71")
    return chunk(b"fmt ", plain + struct.pack("<HHI", 22, bits, mask) + guid)


def riff(path: Path, *chunks: bytes, kind: bytes = b"RIFF", size: int | None = None) -> Path:
    body = b"WAVE" + b"".join(chunks)
    path.write_bytes(kind + struct.pack("<I", len(body) if size is None else size) + body)
    return path


def s16(values: Array) -> bytes:
    return bytes(np.rint(values.T * 32768).clip(-32768, 32767).astype("<i2").tobytes())


# ---- A01: channels -------------------------------------------------------------------------------------

MASKS = {
    # mask: (what goes left, what goes right), by channel number
    0x3: ((1, 0), (0, 1)),
    0x33: ((1, 0, HALF, 0), (0, 1, 0, HALF)),  # quad, back
    0x7: ((1, 0, HALF), (0, 1, HALF)),  # 3.0
    0xB: ((1, 0, 0), (0, 1, 0)),  # 2.1
    0x3F: ((1, 0, HALF, 0, HALF, 0), (0, 1, HALF, 0, 0, HALF)),  # 5.1, back
    0x60F: ((1, 0, HALF, 0, HALF, 0), (0, 1, HALF, 0, 0, HALF)),  # 5.1, side
    0x63F: ((1, 0, HALF, 0, HALF, 0, HALF, 0), (0, 1, HALF, 0, 0, HALF, 0, HALF)),  # 7.1
}


@pytest.mark.parametrize("mask", MASKS, ids=hex)
def test_a01_every_layout_is_mixed_by_its_places(tmp_path: Path, mask: int) -> None:
    pair = np.asarray(MASKS[mask])
    channels = pair.shape[1]
    values = np.rint(tones(0.3, RATE, channels) * 32768) / 32768
    path = riff(tmp_path / "a.wav", form(1, channels, RATE, 16, mask), chunk(b"data", s16(values)))
    assert heard(path).channels == channels
    np.testing.assert_array_equal(sound(path, channels), values.astype(np.float32))
    stereo = pair @ values / pair.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(sound(path, 2), stereo, atol=1e-6)
    both = pair.sum(axis=0) @ values / pair.sum()
    np.testing.assert_allclose(sound(path, 1), both[None], atol=1e-6)


@pytest.mark.parametrize("channels", [5, 6, 16])
def test_a01_channels_without_places_are_averaged_or_kept(tmp_path: Path, channels: int) -> None:
    values = np.rint(tones(0.1, RATE, channels) * 32768) / 32768
    path = riff(tmp_path / "a.wav", form(1, channels, RATE, 16, 0), chunk(b"data", s16(values)))
    np.testing.assert_array_equal(sound(path, channels), values.astype(np.float32))
    if channels == 16:
        np.testing.assert_allclose(sound(path, 1), values.mean(axis=0, keepdims=True), atol=1e-6)
        with pytest.raises(MediaError, match=r"a\.wav: 16 channels .* do not become 2; ask for 1"):
            sound(path, 2)


@pytest.mark.parametrize(("suffix", "codec"), [("m4a", "aac"), ("ac3", "ac3"), ("mka", "libopus")])
def test_a01_six_channels_keep_their_order_in_lossy_codecs(tmp_path: Path, suffix: str, codec: str) -> None:
    t = np.arange(RATE) / RATE
    hertz = (300, 500, 700, 60, 1100, 1300)
    values = np.stack([0.3 * np.sin(2 * np.pi * f * t) for f in hertz]).astype(np.float32)
    path = encode(tmp_path / f"a.{suffix}", values, RATE, codec=codec)
    out = sound(path, 6)
    for channel, f in enumerate(hertz):
        power = np.abs(np.fft.rfft(out[channel, 4800:43_200] * np.hanning(38_400)))
        assert abs(power.argmax() * RATE / 38_400 - f) < 10, channel


# ---- A02: rates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [8000, 11_025, 22_050, 44_056, 96_000, 192_000])
@pytest.mark.parametrize("wanted", [16_000, 24_000])
def test_a02_any_rate_becomes_any_other_of_its_length(tmp_path: Path, rate: int, wanted: int) -> None:
    t = np.arange(rate // 2 + 7) / rate
    path = write_wav(tmp_path / "a.wav", 0.5 * np.sin(2 * np.pi * 1000 * t)[None], rate)
    out = sound(path, 1, wanted)
    assert out.shape[1] == -(-len(t) * wanted // rate)
    power = np.abs(np.fft.rfft(out[0] * np.hanning(out.shape[1])))
    assert abs(power.argmax() * wanted / out.shape[1] - 1000) < 5
    assert np.abs(out[0, 500:-500]).max() == pytest.approx(0.5, abs=0.01)


# ---- A03: pictures and tags ----------------------------------------------------------------------------


def _art() -> bytes:
    import io

    from PIL import Image as Pil

    body = io.BytesIO()
    Pil.new("RGB", (300, 200), (200, 30, 30)).save(body, "jpeg")
    return body.getvalue()


def test_a03_art_in_a_flac_is_no_video(tmp_path: Path) -> None:
    body = encode(tmp_path / "plain.flac", tones(1, 44_100), 44_100).read_bytes()
    art = _art()
    block = (
        struct.pack(">II", 3, 10) + b"image/jpeg" + struct.pack(">IIIIII", 0, 300, 200, 24, 0, len(art)) + art
    )
    first = 8 + 34
    assert body[4] & 127 == 0
    path = tmp_path / "art.flac"
    path.write_bytes(body[:first] + b"\x06" + len(block).to_bytes(3, "big") + block + body[first:])
    assert (heard(path).codec, heard(path).samples) == ("flac", 44_100)
    np.testing.assert_array_equal(sound(path, 1), sound(tmp_path / "plain.flac", 1))


def _synchsafe(n: int) -> bytes:
    return bytes((n >> shift) & 127 for shift in (21, 14, 7, 0))


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a03_tags_of_every_kind_around_an_mp3_are_not_heard(tmp_path: Path, version: int) -> None:
    plain = encode(tmp_path / "plain.mp3", tones(2, 44_100), 44_100, options={"id3v2_version": "0"})
    body = plain.read_bytes()
    if body[:3] == b"ID3":
        body = body[10 + sum((b & 127) << s for b, s in zip(body[6:10], (21, 14, 7, 0))) :]
    picture = b"\0image/jpeg\0\3\0" + _art() if version > 2 else b"\0JPG\3\0" + _art()
    name, n = (b"PIC", len(picture)) if version == 2 else (b"APIC", len(picture))
    size = n.to_bytes(3, "big") if version == 2 else _synchsafe(n) if version == 4 else n.to_bytes(4, "big")
    frame = name + size + (b"" if version == 2 else b"\0\0") + picture + b"\0" * 100
    ape = b"APETAGEX" + struct.pack("<IIII8x", 2000, 32 + 40, 1, 0) + b"\0" * 40
    last = b"TAG" + b"title".ljust(125, b"\0")
    path = tmp_path / "a.mp3"
    path.write_bytes(b"ID3" + bytes((version, 0, 0)) + _synchsafe(len(frame)) + frame + body + ape + last)
    assert (heard(path).codec, heard(path).samples) == ("mp3", 88_200)
    np.testing.assert_array_equal(sound(path, 1), decode_all(path)[:, :88_200])


# ---- A05: priming and padding --------------------------------------------------------------------------


_LENGTHS = {"mp3": range(47), "m4a": range(-48, 1)}
"""What the files themselves say, as FFmpeg writes them: LAME's tag in MP3, milliseconds in MP4."""


@pytest.mark.parametrize("suffix", ["mp3", "m4a", "opus", "flac", "wav"])
@pytest.mark.parametrize("n", [100, 576, 1023, 1024, 1025, 1152, 2304, 5761])
def test_a05_short_sounds_have_their_own_length(tmp_path: Path, suffix: str, n: int) -> None:
    path = encode(tmp_path / f"a.{suffix}", tones(n / RATE, RATE), RATE)
    found = heard(path).samples
    assert found - n in _LENGTHS.get(suffix, (0,))
    assert sound(path, 1).shape == (1, found)


@pytest.mark.parametrize("rate", [16_000, 22_050, 32_000, 44_100])
@pytest.mark.parametrize("suffix", ["mp3", "m4a"])
def test_a05_lengths_are_exact_at_every_rate(tmp_path: Path, suffix: str, rate: int) -> None:
    values = tones(1.234, rate)
    path = encode(tmp_path / f"a.{suffix}", values, rate)
    assert heard(path).samples == values.shape[1]
    # In its place: the best match of what comes out is at no shift.
    out = sound(path, 1)[0]
    middle = values[0, 2000:12_000]
    match = [float(out[2000 + shift : 12_000 + shift] @ middle) for shift in range(-1200, 1201, 1)]
    assert abs(int(np.argmax(match)) - 1200) <= 1


# ---- A06, A07: WAV -------------------------------------------------------------------------------------


def test_a06_chunks_before_the_data_and_odd_sizes_are_passed_over(tmp_path: Path) -> None:
    values = tones(0.5, 8000)
    data = s16(values)
    for before in (
        [chunk(b"LIST", b"INFOISFT\5\0\0\0Lavf\0")],
        [chunk(b"bext", b"x" * 603), chunk(b"junk", b"")],
        [chunk(b"data"[::-1], b"\0" * 101)],
        [chunk(b"fact", struct.pack("<I", 99_999_999))],
    ):
        for said in (None, 0xFFFFFFFF, 0, len(data) + 7):
            path = riff(
                tmp_path / "a.wav", form(1, 1, 8000, 16), *before, chunk(b"data", data, said), size=0xFFFFFFFF
            )
            assert heard(path).samples == 4000, (before, said)
            np.testing.assert_allclose(sound(path, 1), values, atol=1e-4)


def test_a06_rf64_says_its_size_in_64_bits(tmp_path: Path) -> None:
    data = s16(tones(0.5, 8000))
    wide = chunk(b"ds64", struct.pack("<QQQI", 4 + len(data) + 60, len(data), 4000, 0))
    data_chunk, after = chunk(b"data", data, 0xFFFFFFFF), chunk(b"LIST", b"abcd")
    parts = (wide, form(1, 1, 8000, 16), data_chunk, after)
    path = riff(tmp_path / "a.wav", *parts, kind=b"RF64", size=0xFFFFFFFF)
    assert heard(path).samples == 4000


def test_a06_a_wav_within_a_shard_does_not_run_into_its_neighbour(tmp_path: Path) -> None:
    from libhelix.media.ranges import probe_range

    alone = write_wav(tmp_path / "a.wav", tones(0.5, 8000), 8000, data_size=0xFFFFFFFF).read_bytes()
    (tmp_path / "b.bin").write_bytes(b"x" * 512 + alone + b"\1\2" * 5000)
    (item,) = probe_range(str(tmp_path / "b.bin"), 512, len(alone), (tmp_path / "b.bin").stat().st_mtime_ns)
    assert item.audio is not None
    assert item.audio.samples == 4000


def _s24(values: Array) -> bytes:
    wide = np.rint(values * (1 << 23)).astype("<i4")
    return bytes(wide.view(np.uint8).reshape(-1, 4)[:, :3].tobytes())


PEAKS: dict[str, tuple[int, int, Callable[[Array], bytes]]] = {
    "s16": (1, 16, lambda v: np.rint(v * 32768).astype("<i2").tobytes()),
    "s24": (1, 24, _s24),
    "s32": (1, 32, lambda v: np.rint(v * (1 << 31)).astype("<i4").tobytes()),
    "f32": (3, 32, lambda v: v.astype("<f4").tobytes()),
    "f64": (3, 64, lambda v: v.astype("<f8").tobytes()),
    "u8": (1, 8, lambda v: (np.rint(v * 128) + 128).astype("u1").tobytes()),
}


@pytest.mark.parametrize("kind", PEAKS)
@pytest.mark.parametrize("extensible", [False, True])
def test_a07_half_of_full_scale_is_half_in_every_format(tmp_path: Path, kind: str, extensible: bool) -> None:
    tag, bits, pack = PEAKS[kind]
    values = np.zeros(1000)
    values[3], values[5], values[7] = 0.5, -0.5, -1
    mask = 4 if extensible else None
    path = riff(tmp_path / "a.wav", form(tag, 1, 16_000, bits, mask), chunk(b"data", pack(values)))
    assert heard(path).samples == 1000
    np.testing.assert_allclose(sound(path, 1)[0], values, atol=1e-6)


OTHERS = [("pcm_alaw", "wav"), ("pcm_mulaw", "wav"), ("pcm_s16be", "aiff"), ("pcm_s24be", "aiff")]
OTHERS += [("pcm_f32be", "caf"), ("adpcm_ima_wav", "wav")]


@pytest.mark.parametrize(("codec", "suffix"), OTHERS)
def test_a07_companded_and_big_endian_samples_have_their_scale(
    tmp_path: Path, codec: str, suffix: str
) -> None:
    values = np.full((1, 16_160), 0.5, np.float32) * np.sin(np.arange(16_160) / 20, dtype=np.float32)
    path = encode(tmp_path / f"a.{suffix}", values, 16_000, codec=codec)
    out = sound(path, 1)
    assert out.shape[1] == decode_all(path).shape[1]
    assert out.shape[1] - 16_160 in range(1100)  # a last block may be filled
    settled = slice(200, 16_160)  # ADPCM adapts
    np.testing.assert_allclose(out[:, settled], values[:, settled], atol=0.05)


# ---- A10: headers of FLAC ------------------------------------------------------------------------------


def _with_total(path: Path, total: int) -> Path:
    body = bytearray(path.read_bytes())
    body[21] = body[21] & 0xF0 | total >> 32
    body[22:26] = (total & 0xFFFFFFFF).to_bytes(4, "big")
    path.write_bytes(body)
    return path


@pytest.mark.parametrize("seconds", [0.01, 0.5, 3])
@pytest.mark.parametrize("channels", [1, 2, 6])
def test_a10_a_flac_without_a_total_is_counted(tmp_path: Path, seconds: float, channels: int) -> None:
    path = encode(tmp_path / "a.flac", tones(seconds, RATE, channels), RATE)
    wanted = decode_all(path)
    _with_total(path, 0)
    assert heard(path).samples == wanted.shape[1]
    np.testing.assert_array_equal(sound(path, channels), wanted)


@pytest.mark.parametrize("total", [1, 1000, 47_999])
def test_a10_a_flac_that_says_less_gives_what_it_says(tmp_path: Path, total: int) -> None:
    path = encode(tmp_path / "a.flac", tones(1, RATE), RATE)
    wanted = decode_all(path)
    _with_total(path, total)
    assert heard(path).samples == total
    np.testing.assert_array_equal(sound(path, 1), wanted[:, :total])


@pytest.mark.parametrize("total", [48_001, 1 << 20, (1 << 36) - 1])
def test_a10_a_flac_that_says_more_is_truncated_and_allocates_nothing(tmp_path: Path, total: int) -> None:
    path = _with_total(encode(tmp_path / "a.flac", tones(1, RATE), RATE), total)
    with pytest.raises(MediaError, match=rf"a\.flac: truncated: it ends at sample 48000 of {total}"):
        audio.probe(path)


# ---- A14: chains ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["opus", "ogg"])
@pytest.mark.parametrize("second", ["opus", "ogg"])
@pytest.mark.parametrize("channels", [1, 2])
def test_a14_no_chain_of_streams_is_read(tmp_path: Path, first: str, second: str, channels: int) -> None:
    one = encode(tmp_path / f"1.{first}", tones(1, RATE, 2), RATE).read_bytes()
    # FFmpeg's own Vorbis encoder makes stereo alone.
    two = encode(
        tmp_path / f"2.{second}", tones(1, RATE, 2 if second == "ogg" else channels), RATE
    ).read_bytes()
    for links in ([one, two], [one, two, one], [one, one]):
        path = tmp_path / "a.ogg"
        path.write_bytes(b"".join(links))
        for look in (audio.probe, probe_items):
            with pytest.raises(MediaError, match=r"a\.ogg: (a chained Ogg.*split it|unreadable container)"):
                look(path)


def test_a14_streams_side_by_side_are_no_chain(tmp_path: Path) -> None:
    """Pages of several streams may begin together: a video with its sound, or two languages."""
    silent = make_clip(tmp_path / "silent.mkv", 20, codec="vp8", size=(32, 64))
    path = with_sound(tmp_path / "a.ogg", silent, tones(0.8, RATE), RATE, "libopus")
    kinds = [item.kind for item in probe_items(path)]
    assert kinds == ["video", "audio"]


# ---- codecs that FFmpeg does not know ------------------------------------------------------------------


def test_sound_of_an_unknown_codec_is_none_and_pictures_of_one_are_refused(tmp_path: Path) -> None:
    silent = make_clip(tmp_path / "silent.mp4", 20, size=(32, 64))
    whole = with_sound(tmp_path / "a.mp4", silent, tones(0.8, RATE), RATE, "libopus").read_bytes()
    (tmp_path / "deaf.mp4").write_bytes(whole.replace(b"Opus", b"zzzz"))
    assert [item.kind for item in probe_items(tmp_path / "deaf.mp4")] == ["video"]
    with pytest.raises(MediaError, match=r"deaf\.mp4: the codec of its audio stream is not known; encode it"):
        audio.probe(tmp_path / "deaf.mp4")
    (tmp_path / "blind.mp4").write_bytes(whole.replace(b"avc1", b"zzzz"))
    for look in (video.probe, probe_items):
        with pytest.raises(MediaError, match=r"blind\.mp4: the codec of its video stream is not known"):
            look(tmp_path / "blind.mp4")
    assert audio.probe(tmp_path / "blind.mp4").samples == 38_400
    (tmp_path / "neither.mp4").write_bytes(whole.replace(b"avc1", b"zzzz").replace(b"Opus", b"zzzz"))
    with pytest.raises(MediaError, match=r"neither\.mp4: the codec of its \w+ stream is not known"):
        probe_items(tmp_path / "neither.mp4")
