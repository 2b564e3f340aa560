"""Bits of codec headers."""

from __future__ import annotations

from libhelix.media.headers.boxes import Unsure


class Bits:
    """Bits from the first on; raises Unsure behind the last."""

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "big")
        self._left = 8 * len(data)

    def take(self, n: int) -> int:
        """The next n bits as a number."""
        self._left -= n
        if self._left < 0:
            raise Unsure("a codec header is cut off")
        return self._value >> self._left & (1 << n) - 1

    def align(self) -> None:
        """Go on with the next whole byte."""
        self.take(self._left % 8)

    def flag(self) -> bool:
        """The next bit."""
        return bool(self.take(1))

    def ue(self) -> int:
        """An Exp-Golomb number."""
        zeros = 0
        while not self.take(1):
            zeros += 1
            if zeros > 31:
                raise Unsure("a number without end")
        return (1 << zeros) - 1 + self.take(zeros)

    def se(self) -> int:
        """A signed Exp-Golomb number."""
        value = self.ue()
        return (value + 1) // 2 if value & 1 else -(value // 2)


def unescaped(nal: bytes) -> bytes:
    """A NAL unit without its emulation prevention bytes."""
    return nal.replace(b"\0\0\3", b"\0\0") if b"\0\0\3" in nal else nal


def leb128(data: bytes, at: int) -> tuple[int, int]:
    """(the number at that place, what follows it); raises Unsure."""
    value = 0
    for i in range(8):
        if at + i >= len(data):
            break
        value |= (data[at + i] & 0x7F) << 7 * i
        if not data[at + i] & 0x80:
            return value, at + i + 1
    raise Unsure("a number without end")
