"""H.264: the size of its pictures, and which samples its parser calls key frames."""

from __future__ import annotations

from libhelix.media.headers.bits import Bits, unescaped
from libhelix.media.headers.boxes import Sample, Unsure

_WITH_CHROMA = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)
_SLICE, _PARTITION, _IDR, _SEI, _SPS = 1, 2, 5, 6, 7
MOST_UNITS = 64
"""Looked at in a sample, before its first slice."""
_LONGEST_SEI = 1 << 16
_RECOVERY_POINT, _DISPLAY_ORIENTATION = 6, 47
_OWN_ASPECT = 255
_ASPECTS = (
    (0, 0), (1, 1), (12, 11), (10, 11), (16, 11), (40, 33), (24, 11), (20, 11), (32, 11), (80, 33), (18, 11),
    (15, 11), (64, 33), (160, 99), (4, 3), (3, 2), (2, 1),
)  # fmt: skip
"""By aspect_ratio_idc: ISO/IEC 14496-10, table E-1."""


class Avc:
    """What an avcC says; `size` is that of all its pictures."""

    codec = "h264"

    def __init__(self, record: bytes) -> None:
        if len(record) < 7 or record[0] != 1:
            raise Unsure("avcC")
        self.length_bytes = (record[4] & 3) + 1
        units, at = _units(record, 6, record[5] & 31)
        if at >= len(record) or not units:
            raise Unsure("avcC")
        pictures, _ = _units(record, at + 1, record[at])
        if not pictures or any(unit[:1] not in (b"\x68", b"\x28", b"\x48") for unit in pictures):
            raise Unsure("avcC has no picture parameters")
        shapes = {sps_shape(unit) for unit in units}
        if len(shapes) != 1:
            raise Unsure("pictures of several sizes")
        (self._shape,) = shapes
        self.size, self.aspect = self._shape

    def first(self, sample: Sample) -> None:
        """Raise Unsure unless decoding can begin with this sample."""
        if self._slice(sample) != _IDR:
            raise Unsure("the first sample is no key frame")

    def key(self, sample: Sample) -> bool:
        """Whether a parser takes a sample for a key frame."""
        return self._slice(sample) != _SLICE

    def _slice(self, sample: Sample) -> int:
        """The kind of the first slice; _SEI for one that a recovery point is before."""
        at, recovery = 0, False
        n = self.length_bytes
        for _ in range(MOST_UNITS):
            if at + n >= sample.size:
                break
            head = sample.read(at, n + 1)
            length, kind = int.from_bytes(head[:n], "big"), head[n] & 31
            at += n
            if not 0 < length <= sample.size - at or head[n] & 0x80:
                raise Unsure("no NAL units")
            if kind == _IDR:
                return _IDR
            if kind in (_SLICE, _PARTITION):
                return _SEI if recovery else _SLICE
            if kind in (_SEI, _SPS) and length <= _LONGEST_SEI:
                unit = sample.read(at, length)
                if kind == _SEI:
                    recovery = self._recovers(unit) or recovery
                elif sps_shape(unit) != self._shape:
                    raise Unsure("pictures of several sizes")
            at += length
        raise Unsure("a sample without a slice")

    def _recovers(self, sei: bytes) -> bool:
        kinds = list(sei_kinds(sei[1:]))
        if _DISPLAY_ORIENTATION in kinds:
            raise Unsure("an orientation within the stream")
        return _RECOVERY_POINT in kinds


def _units(record: bytes, at: int, count: int) -> tuple[list[bytes], int]:
    """(so many units with 16 bits of length, what follows them)"""
    found = []
    for _ in range(count):
        length = int.from_bytes(record[at : at + 2], "big")
        at += 2 + length
        if not length or at > len(record):
            raise Unsure("parameter sets are cut off")
        found.append(record[at - length : at])
    return found, at


def sei_kinds(payload: bytes) -> list[int]:
    """The kinds of messages in an SEI unit, behind its header."""
    data = unescaped(payload)
    found, at = [], 0
    while at + 2 < len(data):
        kind, at = _sum(data, at)
        size, at = _sum(data, at)
        found.append(kind)
        at += size
    return found


def _sum(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    while at < len(data) and data[at] == 255:
        value, at = value + 255, at + 1
    return (value + data[at], at + 1) if at < len(data) else (value, at)


def sps_shape(unit: bytes) -> tuple[tuple[int, int], tuple[int, int]]:
    """(width, height) of the pictures that a sequence parameter set is of, cropped, and the aspect of their
    pixels, 0 to 0 where it does not say that. Raises Unsure."""
    if len(unit) < 5 or unit[0] & 0x9F != _SPS:
        raise Unsure("no sequence parameters")
    bits = Bits(unescaped(unit[1:]))
    profile = bits.take(8)
    bits.take(16)
    bits.ue()
    chroma, planes = 1, False
    if profile in _WITH_CHROMA:
        chroma = bits.ue()
        planes = chroma == 3 and bits.flag()
        bits.ue(), bits.ue(), bits.take(1)
        if bits.flag():
            for i in range(12 if chroma == 3 else 8):
                if bits.flag():
                    _skip_scaling(bits, 16 if i < 6 else 64)
    bits.ue()
    order = bits.ue()
    if order == 0:
        bits.ue()
    elif order == 1:
        bits.take(1), bits.se(), bits.se()
        for _ in range(min(bits.ue(), 256)):
            bits.se()
    bits.ue(), bits.take(1)
    width, height = 16 * (bits.ue() + 1), 16 * (bits.ue() + 1)
    frames_only = bits.flag()
    if not frames_only:
        height *= 2
        bits.take(1)
    bits.take(1)
    if bits.flag():
        x = 2 if chroma in (1, 2) and not planes else 1
        y = (2 if chroma == 1 and not planes else 1) * (1 if frames_only else 2)
        left, right, top, bottom = bits.ue(), bits.ue(), bits.ue(), bits.ue()
        width, height = width - x * (left + right), height - y * (top + bottom)
    if chroma > 3 or width <= 0 or height <= 0:
        raise Unsure("sequence parameters that make no sense")
    return (width, height), aspect_of(bits) if bits.flag() else (0, 0)


def aspect_of(bits: Bits) -> tuple[int, int]:
    """How wide a pixel is to its height, from the beginning of usability information; 0 to 0: not said."""
    kind = bits.take(8) if bits.flag() else 0
    if kind == _OWN_ASPECT:
        return bits.take(16), bits.take(16)
    return _ASPECTS[kind] if kind < len(_ASPECTS) else (0, 0)


def _skip_scaling(bits: Bits, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.se()) % 256
        last = following or last
