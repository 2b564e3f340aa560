"""WAV: rate, channels, codec and length of PCM, by its chunks."""

from __future__ import annotations

import struct
from typing import NamedTuple

from libhelix.media.headers.boxes import Source, Unsure
from libhelix.recipe import AudioInfo

_CODECS = {
    (1, 8): "pcm_u8", (1, 16): "pcm_s16le", (1, 24): "pcm_s24le", (1, 32): "pcm_s32le",
    (3, 32): "pcm_f32le", (3, 64): "pcm_f64le",
}  # fmt: skip
"""By format tag and bits of a sample."""
_EXTENSIBLE = 0xFFFE
_GUID = bytes.fromhex("000000001000800000aa00389b71")
"""What follows the format tag in the format that WAVE_FORMAT_EXTENSIBLE names."""
_PLAIN = frozenset(
    b"fmt |data|ds64|fact|LIST|bext|JUNK|junk|PAD |FLLR|cue |smpl|inst|acid|iXML|axml|id3 |ID3 |PEAK|_PMX|"
    b"chna|minf|elm1|DISP".split(b"|")
)
_MOST_CHUNKS = 1000
_DISGUISED = bytes.fromhex("72f81f4e")
"""AC-3 and its like inside of PCM begin with these words; a demuxer looks for them."""
_LOOKED_THROUGH = 1 << 16
_MOST_CHANNELS = 64
_UNKNOWN = 0xFFFFFFFF


class Wave(NamedTuple):
    """What a WAV says of itself. `data_at`, `data_size`: where its samples lie, as far as the file goes."""

    form: bytes
    data_at: int
    data_size: int
    chunks: tuple[bytes, ...]


def read_wave(source: Source) -> Wave | None:
    """What a WAV says up to its data; None for what is none, or has no data."""
    head = source.read(0, 12)
    if head[:4] not in (b"RIFF", b"RF64") or head[8:] != b"WAVE":
        return None
    long = head[:4] == b"RF64"
    at, wide, form = 12, 0, b""
    names: list[bytes] = []
    while at + 8 <= source.size and len(names) < _MOST_CHUNKS:
        head = source.read(at, 8)
        name, size = head[:4], int.from_bytes(head[4:], "little")
        names.append(name)
        if long and names[0] != b"ds64":
            return None  # its sizes are nowhere
        at += 8
        if name == b"ds64":
            wide = int.from_bytes(source.read(at, 16)[8:], "little")
        elif name == b"fmt ":
            form = source.read(at, min(size, 40))
        elif name == b"data":
            if size == _UNKNOWN and wide:
                size = wide
            # 0 and all ones are what a writer leaves that cannot seek back, or was interrupted.
            return Wave(form, at, min(size or source.size, source.size - at), tuple(names))
        at += size + (size & 1)
    return None


def probe(source: Source) -> AudioInfo:
    """The sound of a WAV of PCM. Raises Unsure."""
    wave = read_wave(source)
    if wave is None or wave.chunks.count(b"fmt ") != 1 or not _PLAIN.issuperset(wave.chunks):
        raise Unsure("no WAV, or one with other chunks")
    _check_rest(source, wave)
    tag, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", wave.form.ljust(16, b"\0"))
    if tag == _EXTENSIBLE:
        if len(wave.form) < 40 or wave.form[18:20] != bits.to_bytes(2, "little") or wave.form[26:] != _GUID:
            raise Unsure("an extensible format of another kind")
        tag = int.from_bytes(wave.form[24:26], "little")
    elif len(wave.form) > 18:
        raise Unsure("a format that is longer than it should be")
    codec = _CODECS.get((tag, bits))
    if codec is None or not 0 < channels <= _MOST_CHANNELS or block != channels * bits // 8:
        raise Unsure("no PCM")
    samples = wave.data_size // block
    if not samples or not 0 < rate < 1 << 31:
        raise Unsure("no samples")
    if _DISGUISED in source.read(wave.data_at, min(wave.data_size, _LOOKED_THROUGH)):
        raise Unsure("PCM that may be something else")
    return AudioInfo(
        codec=codec, stream=0, rate=rate, channels=channels, samples=samples, start_pts=0, time_base=(1, rate)
    )


def _check_rest(source: Source, wave: Wave) -> None:
    """Raise Unsure for chunks behind the data that would change what it is."""
    at, seen = wave.data_at + wave.data_size + (wave.data_size & 1), 0
    while at + 8 <= source.size:
        head = source.read(at, 8)
        seen += 1
        if head[:4] in (b"fmt ", b"data") or head[:4] not in _PLAIN or seen > _MOST_CHUNKS:
            raise Unsure(f"{head[:4]!r} behind the data")
        size = int.from_bytes(head[4:], "little")
        at += 8 + size + (size & 1)
