"""Free ranges of a ring. helixd grants extents in them, and a trainer sees whether it may hold one more."""

from __future__ import annotations

from collections.abc import Iterable


def gaps(extents: Iterable[tuple[int, int]], size: int, start: int) -> list[tuple[int, int]]:
    """The free ranges (begin, bytes) beside extents (offset, bytes), round the ring from `start` on.

    Extents do not overlap; they, and free ranges, may run over the end of the ring to its beginning.
    """
    ordered = sorted((offset % size, nbytes) for offset, nbytes in extents)
    if not ordered:
        return [(start % size, size)]
    found = []
    for (offset, nbytes), (following, _) in zip(ordered, ordered[1:] + ordered[:1]):
        begin = (offset + nbytes) % size
        free = (following - begin) % size
        if free:
            found.append((begin, free))
    return sorted(found, key=lambda gap: (gap[0] - start) % size)
