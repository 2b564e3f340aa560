"""AV1, VP9 and MPEG-4: the size of their pictures, and which samples are key frames."""

from __future__ import annotations

from collections.abc import Iterator

from libhelix.media.headers.bits import Bits, leb128
from libhelix.media.headers.boxes import Sample, Unsure
from libhelix.media.headers.h264 import MOST_UNITS

_SEQUENCE, _FRAME_HEADER, _METADATA, _FRAME = 1, 3, 5, 6
_SELECT = 2
_LONGEST_HEADER = 256


class Av1:
    """What an av1C says, or the first sample; `size` is that of its pictures where no frame says another."""

    codec = "av1"
    aspect = (0, 0)

    def __init__(self, record: bytes) -> None:
        if len(record) < 4 or record[0] != 0x81:
            raise Unsure("av1C")
        self.size: tuple[int, int] | None = None
        self._tools = self._integer = 0
        if len(record) == 4:
            return
        size, head = leb128(record, 5)
        if record[4] != _SEQUENCE << 3 | 2 or head + size > len(record):
            raise Unsure("av1C has no sequence header")
        self._parse(Bits(record[head : head + size]))
        if head + size < len(record) and record[head + size] != _METADATA << 3 | 2:
            raise Unsure("av1C has other units")

    def _parse(self, bits: Bits) -> None:
        bits.take(3)
        if bits.take(2):
            raise Unsure("still pictures")
        if bits.flag():  # timing
            bits.take(64)
            if bits.flag():
                bits.ue()
            if bits.flag():
                raise Unsure("a decoder model")
        delays = bits.flag()
        if bits.take(5):
            raise Unsure("several operating points")
        bits.take(12)
        if bits.take(5) > 7:
            bits.take(1)
        if delays and bits.flag():
            bits.take(4)
        x, y = bits.take(4) + 1, bits.take(4) + 1
        self.size = bits.take(x) + 1, bits.take(y) + 1
        if bits.flag():
            raise Unsure("numbered frames")
        bits.take(3)
        bits.take(4)
        if bits.flag():
            bits.take(2)
        self._tools = _SELECT if bits.flag() else bits.take(1)
        self._integer = _SELECT
        if self._tools and not bits.flag():
            self._integer = bits.take(1)

    def first(self, sample: Sample) -> None:
        """Raise Unsure unless decoding can begin with this sample."""
        for kind, at, size in _units(sample):
            unit = sample.read(at, min(size, _LONGEST_HEADER))
            if kind == _SEQUENCE:
                before = self.size
                self._parse(Bits(unit))
                if before not in (None, self.size):
                    raise Unsure("pictures of several sizes")
            if kind in (_FRAME, _FRAME_HEADER):
                if self.size is None:
                    break
                bits = Bits(unit)
                if bits.take(4) != 1:
                    break  # a key frame, shown
                bits.take(1)
                tools = bits.flag() if self._tools == _SELECT else self._tools
                if tools and self._integer == _SELECT:
                    bits.take(1)
                if bits.flag():
                    raise Unsure("a frame of a size of its own")
                return
        raise Unsure("the first sample is no key frame")

    def key(self, sample: Sample) -> bool:
        """Whether a parser takes a sample for a key frame: by its first frame that is shown."""
        for kind, at, size in _units(sample):
            if kind in (_FRAME, _FRAME_HEADER) and size:
                head = sample.read(at, 1)[0]
                if head & 0x80:
                    return False
                if head & 0x10:
                    return not head & 0x60
        raise Unsure("a sample without a picture")


def _units(sample: Sample) -> Iterator[tuple[int, int, int]]:
    """(kind, place, bytes) of the content of every OBU. Raises Unsure."""
    at = 0
    for _ in range(MOST_UNITS):
        if at >= sample.size:
            return
        start = sample.read(at, 9)
        if start[0] & 0x85:
            raise Unsure("no OBUs, or of several layers")
        size, head = leb128(start, 1) if start[0] & 2 else (sample.size - at - 1, 1)
        at += head
        if size > sample.size - at:
            raise Unsure("an OBU is longer than its sample")
        yield start[0] >> 3 & 15, at, size
        at += size


class Vp9:
    """VP9 says its size in key frames alone."""

    codec = "vp9"
    aspect = (0, 0)

    def __init__(self, record: bytes) -> None:
        if len(record) != 12 or record[0] != 1 or record[10:] != b"\0\0":
            raise Unsure("vpcC")
        self.size: tuple[int, int] | None = None

    def first(self, sample: Sample) -> None:
        """Take the size from the first sample. Raises Unsure."""
        bits = Bits(sample.read(0, 32))
        profile = _vp9_profile(bits)
        # Shown anew, another kind, or not shown; then the bit for lost frames and the sync code.
        if bits.take(3) != 1 or bits.take(25) & 0xFFFFFF != 0x498342:
            raise Unsure("the first sample is no key frame")
        if profile > 1:
            bits.take(1)
        rgb = bits.take(3) == 7
        bits.take((4 if profile & 1 else 1) if not rgb else profile & 1)
        self.size = bits.take(16) + 1, bits.take(16) + 1

    def key(self, sample: Sample) -> bool:
        """Whether a parser takes a sample for a key frame."""
        bits = Bits(sample.read(0, 8))
        _vp9_profile(bits)
        return bits.take(2) == 0


def _vp9_profile(bits: Bits) -> int:
    if bits.take(2) != 2:
        raise Unsure("no VP9")
    profile = bits.take(1) | bits.take(1) << 1
    return profile + bits.take(1) if profile == 3 else profile


class Mpeg4:
    """What the esds of MPEG-4 part 2 holds: its video object layer."""

    codec = "mpeg4"
    aspect = (1, 1)
    """Others are left to the scan."""

    def __init__(self, record: bytes) -> None:
        layers = [i for i in range(0x20, 0x30) if b"\0\0\1" + bytes([i]) in record]
        if len(layers) != 1 or record.count(b"\0\0\1" + bytes(layers)) != 1:
            raise Unsure("no video object layer, or several")
        self._layer = record[record.index(b"\0\0\1" + bytes(layers)) + 4 :]
        self.size = _vol_size(Bits(self._layer))

    def first(self, sample: Sample) -> None:
        """Raise Unsure unless decoding can begin with this sample."""
        head = sample.read(0, 4096)
        at = head.find(b"\0\0\1\xb6")
        if at < 0 or at + 4 >= len(head) or head[at + 4] >> 6:
            raise Unsure("the first sample is no key frame")
        for i in range(0x20, 0x30):
            begin = head.find(b"\0\0\1" + bytes([i]), 0, at)
            if begin >= 0 and _vol_size(Bits(head[begin + 4 : at])) != self.size:
                raise Unsure("pictures of several sizes")

    def key(self, sample: Sample) -> None:
        """Demuxers take the sync table's word for which samples are key frames."""
        del sample


def _vol_size(bits: Bits) -> tuple[int, int]:
    bits.take(9)
    version = 1
    if bits.flag():
        version = bits.take(4)
        bits.take(3)
    if bits.take(4) != 1:
        raise Unsure("pixels that are not square")
    if bits.flag():
        bits.take(3)
        if bits.flag():
            bits.take(79)
    shape = bits.take(2)
    if shape or version not in (1, 2, 5) or not bits.flag():
        raise Unsure("pictures that are no rectangles")
    resolution = bits.take(16)
    if not resolution or not bits.flag():
        raise Unsure("no clock")
    if bits.flag():
        bits.take(max(1, (resolution - 1).bit_length()))
    marked = bits.flag()
    width = bits.take(13)
    marked = bits.flag() and marked
    height = bits.take(13)
    if not marked or not width or not height:
        raise Unsure("no size")
    return width, height
