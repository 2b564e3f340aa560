"""The extents of a ring. The daemon is the only allocator; nothing here touches memory.

    free --grant--> granted --lease--> leased --release by the last holder--> free
                       |
                       +--cancel--> free

An extent is found by its generation, which is never used twice: a release that comes late or twice names a
generation that is gone, and is counted and ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from libhelix.plan.ring import gaps


@dataclass
class Extent:
    """nbytes from offset on, round the ring. `holders` is None until it is leased."""

    offset: int
    nbytes: int
    generation: int
    holders: set[int] | None = None


@dataclass
class Ledger:
    """Extents by generation. `page` is what extents are aligned to, in bytes."""

    nbytes: int
    page: int
    ignored_releases: int = 0
    changes: int = 0
    """How often something was granted or came free: what had no room then may have it now."""
    _next: int = 1
    _extents: dict[int, Extent] = field(default_factory=dict)

    def grant(self, nbytes: int) -> Extent | None:
        """The next free range that holds `nbytes`, or None while there is none.

        Round the ring, from the end of the newest extent on: what is delivered and released in order leaves
        one free range, and never a gap that is too small. The ring is mapped twice in a row, so that an
        extent may run over its end.
        """
        need = round_up(nbytes, self.page)
        newest = max(self._extents.values(), key=lambda e: e.generation, default=None)
        start = newest.offset + newest.nbytes if newest is not None else 0
        for begin, size in gaps(self._ranges(), self.nbytes, start):
            if size >= need:
                extent = Extent(begin, need, self._next)
                self._next += 1
                self._extents[extent.generation] = extent
                self.changes += 1
                return extent
        return None

    def _ranges(self) -> list[tuple[int, int]]:
        return [(e.offset, e.nbytes) for e in self._extents.values()]

    def lease(self, generation: int, holders: Iterable[int]) -> None:
        """Hand a granted extent to its holders."""
        extent = self._extents[generation]
        if extent.holders is not None:
            raise AssertionError(f"extent {extent} is leased twice")
        extent.holders = set(holders)
        if not extent.holders:
            raise AssertionError(f"extent {extent} is leased to nobody")

    def release(self, generation: int, holder: int) -> bool:
        """A holder lets go. True when the extent is free now."""
        extent = self._extents.get(generation)
        if extent is None or extent.holders is None or holder not in extent.holders:
            self.ignored_releases += 1
            return False
        extent.holders.remove(holder)
        if extent.holders:
            return False
        del self._extents[generation]
        self.changes += 1
        return True

    def release_all(self, holder: int) -> None:
        """A holder is gone, with all it held."""
        for extent in list(self._extents.values()):
            if extent.holders is not None and holder in extent.holders:
                self.release(extent.generation, holder)

    def cancel(self, generation: int) -> None:
        """A granted extent is free again; no worker may still write to it."""
        if self._extents[generation].holders is not None:
            raise AssertionError(f"extent {self._extents[generation]} is leased, not granted")
        del self._extents[generation]
        self.changes += 1

    def generations(self) -> list[int]:
        """Of all extents that are not free."""
        return sorted(self._extents)

    def used(self) -> tuple[int, int]:
        """Bytes (granted, leased)."""
        granted = sum(e.nbytes for e in self._extents.values() if e.holders is None)
        leased = sum(e.nbytes for e in self._extents.values() if e.holders is not None)
        return granted, leased

    def only_leased(self) -> bool:
        """Whether something is leased and nothing granted: only its holders can make room."""
        return bool(self._extents) and all(e.holders is not None for e in self._extents.values())

    def check(self) -> None:
        """Extents do not overlap, and begin inside the ring."""
        free = sum(size for _, size in gaps(self._ranges(), self.nbytes, 0))
        if free + sum(e.nbytes for e in self._extents.values()) != self.nbytes:
            raise AssertionError(f"extents overlap: {list(self._extents.values())}")
        for extent in self._extents.values():
            if not 0 <= extent.offset < self.nbytes or extent.offset % self.page or extent.nbytes <= 0:
                raise AssertionError(f"extent {extent} is outside the ring or its pages")


def round_up(n: int, to: int) -> int:
    """n, or the next multiple of `to`."""
    return (n + to - 1) // to * to
