"""FLAC: what STREAMINFO says, if the last frame of the file agrees."""

from __future__ import annotations

from typing import NamedTuple

from libhelix.media.headers.boxes import Source, Unsure
from libhelix.recipe import AudioInfo

_STREAMINFO_BYTES = 34
_MOST_BLOCKS = 128
_TAIL_BYTES = 1 << 16
"""Before the longest frame: tags may follow the last one."""
_MOST_TAIL = 1 << 21
_LENGTHS = (0, 192, 576, 1152, 2304, 4608, -8, -16, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Samples of a frame by its header's code; negative: in so many bits behind the number."""
_RATES = (0, 88200, 176400, 192000, 8000, 16000, 22050, 24000, 32000, 44100, 48000, 96000, -1000, -1, -10, 0)
"""By its code; negative: so many times the number that follows."""
_BITS = (0, 8, 12, -1, 16, 20, 24, 32)
_LONGEST_HEADER = 16


def _crc_table() -> bytes:
    table = bytearray(256)
    for i in range(256):
        value = i
        for _ in range(8):
            value = (value << 1 ^ 0x07 if value & 0x80 else value << 1) & 0xFF
        table[i] = value
    return bytes(table)


_CRC8 = _crc_table()


def probe(source: Source) -> AudioInfo:
    """The sound of a FLAC file. Raises Unsure where its length is unknown, or its end is not there."""
    info, at = _stream_info(source)
    packed = int.from_bytes(info[10:18], "big")
    rate, channels = packed >> 44, (packed >> 41 & 7) + 1
    bits, total = (packed >> 36 & 31) + 1, packed & (1 << 36) - 1
    smallest, largest = int.from_bytes(info[0:2], "big"), int.from_bytes(info[2:4], "big")
    longest = int.from_bytes(info[7:10], "big")
    if not total or not rate or bits not in (8, 12, 16, 20, 24, 32) or not 16 <= smallest <= largest:
        raise Unsure("a FLAC of unknown length")
    first = _frame(source.read(at, _LONGEST_HEADER), largest)
    last = _last_frame(source, at, total, largest, longest)
    if first is None or first.begin != 0 or last is None:
        raise Unsure("the last frame is not at the end")
    for frame in (first, last):
        if frame.channels != channels or frame.rate not in (0, rate) or frame.bits not in (0, bits):
            raise Unsure("frames of another kind than STREAMINFO says")
    return AudioInfo(
        codec="flac", stream=0, rate=rate, channels=channels, samples=total, start_pts=0, time_base=(1, rate)
    )


def _stream_info(source: Source) -> tuple[bytes, int]:
    """(STREAMINFO, where frames begin)"""
    if source.read(0, 8) != b"fLaC" + bytes([source.read(4, 1)[0] & 0x80, 0, 0, _STREAMINFO_BYTES]):
        raise Unsure("no FLAC")
    info = source.read(8, _STREAMINFO_BYTES)
    at, last = 4, False
    for i in range(_MOST_BLOCKS):
        head = source.read(at, 4)
        if len(head) < 4 or head[0] & 127 == 127 or (i and not head[0] & 127):
            break
        at += 4 + int.from_bytes(head[1:], "big")
        last = bool(head[0] & 128)
        if last:
            return info, at
    raise Unsure("blocks that do not end")


def _last_frame(source: Source, begin: int, total: int, largest: int, longest: int) -> _Frame | None:
    """The frame near the end of the file that ends with the last sample; None where there is none."""
    size = min(source.size - begin, _TAIL_BYTES + longest)
    if size > _MOST_TAIL:
        return None
    tail = source.read(source.size - size, size)
    at = len(tail)
    while (at := tail.rfind(b"\xff", 0, at)) >= 0:
        frame = _frame(tail[at : at + _LONGEST_HEADER], largest)
        if frame is not None and frame.begin + frame.samples == total:
            return frame
    return None


class _Frame(NamedTuple):
    """What the header of a frame says; `rate` and `bits` are 0 where STREAMINFO has them."""

    begin: int
    samples: int
    rate: int
    channels: int
    bits: int


def _frame(head: bytes, largest: int) -> _Frame | None:
    """The frame whose header that is; None for anything else."""
    if len(head) < 6 or head[0] != 0xFF or head[1] & 0xFE != 0xF8 or head[2] < 16 or head[3] & 1:
        return None
    number, at = _number(head)
    if number is None:
        return None
    samples, rate = _LENGTHS[head[2] >> 4], _RATES[head[2] & 15]
    if samples < 0:
        width = -samples // 8
        samples = int.from_bytes(head[at : at + width], "big") + 1
        at += width
    if rate < 0:
        width = 1 if rate == -1000 else 2
        rate = -rate * int.from_bytes(head[at : at + width], "big")
        at += width
    bits, channels = _BITS[head[3] >> 1 & 7], head[3] >> 4
    if at >= len(head) or head[2] & 15 == 15 or channels > 10 or bits < 0:
        return None
    check = 0
    for byte in head[:at]:
        check = _CRC8[check ^ byte]
    if check != head[at]:
        return None
    begin = number if head[1] & 1 else number * largest
    return _Frame(begin, samples, rate, channels + 1 if channels < 8 else 2, bits)


def _number(head: bytes) -> tuple[int | None, int]:
    """(the number of a frame or sample, coded as UTF-8 codes characters, what follows it)"""
    lead = head[4]
    if lead < 0x80:
        return lead, 5
    more = 0
    while more < 6 and lead & 0x40 >> more:
        more += 1
    if not more or len(head) < 5 + more:
        return None, 5
    value = lead & (0x3F >> more)
    for byte in head[5 : 5 + more]:
        if byte & 0xC0 != 0x80:
            return None, 5
        value = value << 6 | byte & 0x3F
    return value, 5 + more
