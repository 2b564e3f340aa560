"""Core numbers, for people."""

from __future__ import annotations

from collections.abc import Iterable


def as_ranges(numbers: Iterable[int]) -> str:
    """Numbers as in "0-3,8"."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{a}-{b}" if a < b else f"{a}" for a, b in ranges)
