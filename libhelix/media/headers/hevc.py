"""HEVC: the size of its pictures, and whether decoding can begin with a sample."""

from __future__ import annotations

from libhelix.media.headers.bits import Bits, unescaped
from libhelix.media.headers.boxes import Sample, Unsure
from libhelix.media.headers.h264 import MOST_UNITS, aspect_of, sei_kinds

_FIRST_KEY, _LAST_KEY, _LAST_SLICE = 16, 21, 31
_VPS, _SPS, _PPS, _SEI = 32, 33, 34, 39
_LONGEST_SEI = 1 << 16
_MOST_SETS = 64
_DISPLAY_ORIENTATION = 47


class Hevc:
    """What an hvcC says; `size` is that of all its pictures."""

    codec = "hevc"

    def __init__(self, record: bytes) -> None:
        if len(record) < 23 or record[0] != 1:
            raise Unsure("hvcC")
        self.length_bytes = (record[21] & 3) + 1
        shapes, kinds, at, units = set(), set(), 23, 0
        for _ in range(record[22]):
            kind, count = record[at] & 63 if at < len(record) else 0, record[at + 1 : at + 3]
            at += 3
            for _ in range(int.from_bytes(count, "big")):
                units += 1
                if units > MOST_UNITS:
                    raise Unsure("too many parameters")
                length = int.from_bytes(record[at : at + 2], "big")
                unit = record[at + 2 : at + 2 + length]
                at += 2 + length
                if at > len(record):
                    raise Unsure("hvcC is cut off")
                _check(unit, kind)
                kinds.add(kind)
                if kind == _SPS:
                    shapes.add(sps_shape(unit))
        if len(shapes) != 1 or not {_VPS, _PPS} <= kinds:
            raise Unsure("hvcC lacks parameters, or has several")
        (self._shape,) = shapes
        self.size, self.aspect = self._shape

    def first(self, sample: Sample) -> None:
        """Raise Unsure unless decoding can begin with this sample."""
        at, n = 0, self.length_bytes
        for _ in range(MOST_UNITS):
            if at + n + 1 >= sample.size:
                break
            head = sample.read(at, n + 1)
            length, kind = int.from_bytes(head[:n], "big"), head[n] >> 1 & 63
            at += n
            if not 1 < length <= sample.size - at or head[n] & 0x80:
                raise Unsure("no NAL units")
            if _FIRST_KEY <= kind <= _LAST_KEY:
                return
            if kind <= _LAST_SLICE:
                break
            if length <= _LONGEST_SEI:
                unit = sample.read(at, length)
                _check(unit, kind)
                if kind == _SPS and sps_shape(unit) != self._shape:
                    raise Unsure("pictures of several sizes")
            at += length
        raise Unsure("the first sample is no key frame")

    def key(self, sample: Sample) -> None:
        """Demuxers take the sync table's word for which samples are key frames."""
        del sample


def _check(unit: bytes, kind: int) -> None:
    """Raise Unsure for a unit of another kind or layer, and for an orientation within the stream."""
    if len(unit) < 3 or unit[0] >> 1 & 63 != kind or unit[0] & 0x81 or unit[1] >> 3 or not unit[1] & 7:
        raise Unsure("a NAL unit of another kind, or of another layer")
    if kind == _SEI and _DISPLAY_ORIENTATION in sei_kinds(unit[2:]):
        raise Unsure("an orientation within the stream")


def sps_shape(unit: bytes) -> tuple[tuple[int, int], tuple[int, int]]:
    """(width, height) of the pictures that a sequence parameter set is of, cropped, and the aspect of their
    pixels, 0 to 0 where it does not say that. Raises Unsure."""
    bits = Bits(unescaped(unit[2:]))
    bits.take(4)
    layers = bits.take(3)
    bits.take(1)
    bits.take(88), bits.take(8)
    present = [(bits.flag(), bits.flag()) for _ in range(layers)]
    if layers:
        bits.take(2 * (8 - layers))
    for profile, level in present:
        bits.take(88 * profile + 8 * level)
    bits.ue()
    chroma = bits.ue()
    planes = chroma == 3 and bits.flag()
    width, height = bits.ue(), bits.ue()
    if bits.flag():
        x = 2 if chroma in (1, 2) and not planes else 1
        y = 2 if chroma == 1 and not planes else 1
        left, right, top, bottom = bits.ue(), bits.ue(), bits.ue(), bits.ue()
        width, height = width - x * (left + right), height - y * (top + bottom)
    if chroma > 3 or width <= 0 or height <= 0:
        raise Unsure("sequence parameters that make no sense")
    _skip_to_usability(bits, layers, chroma)
    return (width, height), aspect_of(bits) if bits.flag() else (0, 0)


def _skip_to_usability(bits: Bits, layers: int, chroma: int) -> None:
    """From behind the cropping of a sequence parameter set: ISO/IEC 23008-2, 7.3.2.2."""
    bits.ue(), bits.ue()
    order = bits.ue() + 4
    if order > 16:
        raise Unsure("sequence parameters that make no sense")
    for _ in range(layers + 1 if bits.flag() else 1):
        bits.ue(), bits.ue(), bits.ue()
    for _ in range(6):
        bits.ue()
    if bits.flag() and bits.flag():
        _skip_scaling(bits, chroma)
    bits.take(2)
    if bits.flag():
        bits.take(8), bits.ue(), bits.ue(), bits.take(1)
    sets = bits.ue()
    if sets > _MOST_SETS:
        raise Unsure("sequence parameters that make no sense")
    pictures = 0
    for i in range(sets):
        pictures = _references(bits, i, pictures)
    if bits.flag():
        for _ in range(min(bits.ue(), _MOST_SETS)):
            bits.take(order), bits.take(1)
    bits.take(2)


def _skip_scaling(bits: Bits, chroma: int) -> None:
    for size in range(4):
        for _ in range(0, 6, 3 if size == 3 and chroma != 3 else 1) if size < 3 else (0, 1):
            if not bits.flag():
                bits.ue()
                continue
            if size > 1:
                bits.se()
            for _ in range(min(64, 1 << (4 + (size << 1)))):
                bits.se()


def _references(bits: Bits, number: int, before: int) -> int:
    """Pictures in a set of short-term references, of which the one before it has so many."""
    if number and bits.flag():
        bits.take(1), bits.ue()
        kept = 0
        for _ in range(before + 1):
            kept += bits.flag() or bits.flag()
        return kept
    pictures = bits.ue() + bits.ue()
    if pictures > _MOST_SETS:
        raise Unsure("sequence parameters that make no sense")
    for _ in range(pictures):
        bits.ue(), bits.take(1)
    return pictures
