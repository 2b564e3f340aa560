"""Sound in mp4 and mov: what its decoder gives, told by headers and a few packets."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from libhelix.media.headers.bits import Bits
from libhelix.media.headers.boxes import Box, Sample, Unsure, children, maybe, only
from libhelix.media.headers.tables import Array, Tables, chunk_lengths

_AAC, _MP3 = (0x40, 0x67), (0x69, 0x6B)
_AAC_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)
_AAC_CHANNELS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 8}
_HALF_RATE = 24_000
"""Up to this rate an AAC stream may hold a second layer that doubles it, of which its header says nothing."""
_SINGLE, _PAIR, _DATA, _FILL = 0, 1, 4, 6
"""Elements of AAC: one channel, two, notes, padding."""
_MOST_ELEMENTS, _LONGEST_FILL = 8, 600
_LAST_PACKETS = 6
"""Which a scan decodes, to see where sound ends."""
_MP3_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
_MP3_SAME = 0xFFFE0C00
_OPUS_FRAME = (480, 960, 1920, 2880) * 3 + (480, 960) * 2 + (120, 240, 480, 960) * 4
"""Samples of a frame of Opus, by its configuration."""
_PCM = {b"sowt": "pcm_s16le", b"twos": "pcm_s16be"}
_PCM_AT_ONCE = 1024
"""Samples that a demuxer puts into one packet of PCM."""
_BESIDE = frozenset(b"esds wave dOps alac btrt chan pcmC free frma mp4a".split())
_LOOKED_AT = 8
"""Packets whose lengths are compared with what the table says of them."""


class Heard(NamedTuple):
    """What a decoder makes of a stream: `samples` of every packet, per channel."""

    codec: str
    rate: int
    channels: int
    samples: Array
    ticks: Array
    """Of every packet, as the table has it."""
    primed: bool = False
    """A decoder leaves out its first samples by itself, unless the edit list leaves some out."""


Packet = Callable[[int], Sample]
"""A packet by its number."""


def read_sound(body: bytes, tables: Tables, ticks: Array, packet: Packet) -> Heard:
    """What stsd's one entry and some packets say of a sound; `ticks`: of its packets. Raises Unsure."""
    name, compression, _, boxes = _entry(body, tables)
    if compression not in (0, 0xFFFE):
        raise Unsure("sound that is compressed otherwise")
    if name == b"mp4a":
        kind, config = decoder_config(body, only(boxes, b"esds"))
        if kind in _AAC:
            rate, channels = _aac(config)
            _check_elements(channels, len(ticks), packet)
            return Heard("aac", rate, channels, np.full(len(ticks), 1024), ticks)
        if kind in _MP3:
            return _mp3(ticks, packet)
    elif name == b".mp3":
        return _mp3(ticks, packet)
    elif name == b"Opus":
        return _opus(body, only(boxes, b"dOps"), ticks, packet)
    elif name == b"alac":
        return _alac(body, only(boxes, b"alac"), ticks, packet)
    raise Unsure(f"{name!r}")


class _Form(NamedTuple):
    channels: int
    bits: int
    rate: int


def _entry(body: bytes, tables: Tables) -> tuple[bytes, int, _Form, list[Box]]:
    """(name, compression, form, boxes) of the one entry of sound."""
    name, at, end = entry_of(body, tables.entries)
    if end - at < 28:
        raise Unsure("an entry of sound is short")
    version, _, _, channels, bits, compression, _, rate = struct.unpack_from(">HHIHHHHI", body, at + 8)
    if version > 1 or rate & 0xFFFF:
        raise Unsure("an entry of sound of version 2")
    boxes = children(body, at + 28 + 16 * version, end, _BESIDE)
    wave = maybe(boxes, b"wave")
    if wave is not None:
        boxes = children(body, wave.begin, wave.end, {*_BESIDE, b"\0\0\0\0"})
    return name, compression, _Form(channels, bits, rate >> 16), boxes


def entry_of(body: bytes, stsd: Box) -> tuple[bytes, int, int]:
    """(name, begin, end) of the one entry, behind its name. Raises Unsure where there are more."""
    if stsd.end - stsd.begin < 24 or body[stsd.begin : stsd.begin + 8] != b"\0\0\0\0\0\0\0\1":
        raise Unsure("several entries in stsd")
    size = int.from_bytes(body[stsd.begin + 8 : stsd.begin + 12], "big")
    if size != stsd.end - stsd.begin - 8 or body[stsd.begin + 22 : stsd.begin + 24] != b"\0\1":
        raise Unsure("stsd")
    return body[stsd.begin + 12 : stsd.begin + 16], stsd.begin + 16, stsd.end


def decoder_config(body: bytes, esds: Box) -> tuple[int, bytes]:
    """(object type, what the decoder is configured with) of an esds. Raises Unsure."""
    at, end = esds.begin + 4, esds.end
    at, end = _descriptor(body, at, end, 3)
    if end - at < 3 or body[at + 2] & 0xE0:
        raise Unsure("a descriptor that depends on others")
    at, end = _descriptor(body, at + 3, end, 4)
    if end - at < 13:
        raise Unsure("a descriptor is short")
    kind = body[at]
    if at + 13 == end:
        return kind, b""
    at, end = _descriptor(body, at + 13, end, 5)
    return kind, body[at:end]


def _descriptor(body: bytes, at: int, end: int, tag: int) -> tuple[int, int]:
    """[begin, end) of the content of the descriptor that begins there."""
    if at >= end or body[at] != tag:
        raise Unsure(f"descriptor {tag} is missing")
    size = 0
    for i in range(1, 5):
        if at + i >= end:
            break
        size = size << 7 | body[at + i] & 0x7F
        if not body[at + i] & 0x80:
            if at + i + 1 + size > end:
                break
            return at + i + 1, at + i + 1 + size
    raise Unsure(f"descriptor {tag} is cut off")


def _aac(config: bytes) -> tuple[int, int]:
    """(rate, channels) of AAC-LC. Raises Unsure for other profiles."""
    bits = Bits(config)
    if bits.take(5) != 2:
        raise Unsure("not AAC-LC")
    rate, channels = bits.take(4), bits.take(4)
    if rate >= len(_AAC_RATES) or channels not in _AAC_CHANNELS or bits.take(3):
        raise Unsure("AAC of another kind")
    plain = False
    if 8 * len(config) >= 16 + 17:
        if bits.take(11) != 0x2B7 or bits.take(5) != 5 or bits.take(1):
            raise Unsure("AAC with a second layer")
        plain = True
    if _AAC_RATES[rate] <= _HALF_RATE and not plain:
        raise Unsure("AAC that may have a second layer")
    return _AAC_RATES[rate], _AAC_CHANNELS[channels]


def _check_elements(channels: int, n: int, packet: Packet) -> None:
    """Raise Unsure unless packets, above all those at both ends, hold sound of so many channels, and are of
    no encoder whose first packet FFmpeg leaves out."""
    for i in sorted({*_some(n), *range(min(n, 2)), *range(max(0, n - _LAST_PACKETS), n)}):
        head = packet(i).read(0, _LONGEST_FILL)
        if b"libfaac" in head:
            raise Unsure("AAC by libfaac")
        bits = Bits(head)
        for _ in range(_MOST_ELEMENTS):
            kind = bits.take(3)
            if kind == _FILL:
                size = bits.take(4)
                bits.take(8 * (size if size < 15 else size + bits.take(8) - 1))
            elif kind == _DATA:
                bits.take(4)
                aligned, size = bits.flag(), bits.take(8)
                size += bits.take(8) if size == 255 else 0
                if aligned:
                    bits.align()
                bits.take(8 * size)
            else:
                break
        if kind != (_PAIR if channels == 2 else _SINGLE):
            raise Unsure("a packet without sound, or of other channels")


def _mp3(ticks: Array, packet: Packet) -> Heard:
    heads = [int.from_bytes(packet(i).read(0, 4).ljust(4, b"\0"), "big") for i in _some(len(ticks))]
    # What stays the same within a stream: all but bit rate, padding and how channels are joined.
    if len({head & _MP3_SAME for head in heads}) != 1 or len({head >> 6 & 3 == 3 for head in heads}) != 1:
        raise Unsure("no MP3 frames, or of several kinds")
    head = heads[0]
    version, layer, rate = head >> 19 & 3, head >> 17 & 3, head >> 10 & 3
    if (
        head >> 21 != 0x7FF
        or version not in _MP3_RATES
        or layer != 1
        or rate > 2
        or head >> 12 & 15 in (0, 15)
    ):
        raise Unsure("no MP3 frames")
    samples = np.full(len(ticks), 1152 if version == 3 else 576)
    return Heard("mp3", _MP3_RATES[version][rate], 1 if head >> 6 & 3 == 3 else 2, samples, ticks)


def _opus(body: bytes, box: Box, ticks: Array, packet: Packet) -> Heard:
    if box.end - box.begin < 11 or body[box.begin] or body[box.begin + 10]:
        raise Unsure("Opus of several streams")
    channels = body[box.begin + 1]
    for i in _some(len(ticks)):
        if i < len(ticks) - 1 and opus_samples(packet(i).read(0, 2)) != ticks[i]:
            raise Unsure("packets of other lengths than the table says")
    samples = ticks.copy()
    samples[-1] = opus_samples(packet(len(ticks) - 1).read(0, 2))
    primed = body[box.begin + 2 : box.begin + 4] != b"\0\0"
    return Heard("opus", 48_000, channels, samples, ticks, primed)


def opus_samples(head: bytes | memoryview) -> int:
    """Samples at 48 kHz, from a packet's first bytes (RFC 6716, section 3.1)."""
    code = head[0] & 3
    frames = (1, 2, 2)[code] if code < 3 else head[1] & 63 if len(head) > 1 else 0
    return _OPUS_FRAME[head[0] >> 3] * frames


def _alac(body: bytes, box: Box, ticks: Array, packet: Packet) -> Heard:
    if box.end - box.begin != 28:
        raise Unsure("ALAC of another kind")
    length, version, _, _, _, _, channels = struct.unpack_from(">IBBBBBB", body, box.begin + 4)
    (rate,) = struct.unpack_from(">I", body, box.begin + 24)
    if version or not 0 < channels <= 2 or not 0 < length < 1 << 16:
        raise Unsure("ALAC of another kind")
    samples = np.full(len(ticks), length)
    # An element says how many samples it has where these are not as many as usual.
    bits = Bits(packet(len(ticks) - 1).read(0, 7))
    if bits.take(3) != channels - 1:
        raise Unsure("ALAC of another kind")
    bits.take(16)
    if bits.flag():
        bits.take(3)
        samples[-1] = bits.take(32)
    if not 0 < samples[-1] <= length:
        raise Unsure("ALAC of another kind")
    return Heard("alac", rate, channels, samples, ticks)


def read_pcm(body: bytes, tables: Tables) -> Heard:
    """PCM that is listed sample by sample, of which demuxers make packets. Raises Unsure."""
    name, _, form, _ = _entry(body, tables)
    if name not in _PCM or form.bits != 16 or tables.sample_size != 2 * form.channels:
        raise Unsure("PCM of another kind")
    in_chunk = chunk_lengths(tables)
    packets = -(-in_chunk // _PCM_AT_ONCE)
    samples = np.full(int(packets.sum()), _PCM_AT_ONCE)
    samples[np.cumsum(packets) - 1] = in_chunk - (packets - 1) * _PCM_AT_ONCE
    return Heard(_PCM[name], form.rate, form.channels, samples, samples)


def _some(n: int) -> list[int]:
    """Numbers of a few packets: the first, the last, some between."""
    return sorted({*(i * (n - 1) // _LOOKED_AT for i in range(_LOOKED_AT + 1))})
