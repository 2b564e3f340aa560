"""The memory of rings: helixd makes it and passes it on, and maps what nodes send each other bytes of."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

from helixd.core.actions import Payload
from libhelix.wire import segment


class Segments:
    """By the numbers of their arenas. What cannot be is answered with its cause."""

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}
        self._mapped: dict[int, memoryview] = {}

    def make(self, arena: int, nbytes: int, *, memfd: bool) -> str | None:
        """Make one; no memory is taken yet."""
        try:
            self._descriptors[arena] = segment.create(nbytes, memfd=memfd)
        except OSError as e:
            return f"no segment of {nbytes} bytes: {e.strerror}"
        return None

    def descriptor(self, arena: int) -> int | None:
        """To be passed on; None where it could not be made."""
        return self._descriptors.get(arena)

    def reach(self, arena: int) -> str | None:
        """Map it here, unless it is."""
        if arena not in self._descriptors or arena in self._mapped:
            return None
        try:
            self._mapped[arena] = memoryview(mmap.mmap(self._descriptors[arena], 0))
        except OSError as e:
            return e.strerror or str(e)
        return None

    def land(self, arena: int, payload: Payload, to: Sequence[tuple[int, int, int]]) -> None:
        """Write parts of a payload: (offset in it, offset in the segment, count)."""
        if (memory := self._mapped.get(arena)) is not None:
            for source, begin, count in to:
                memory[begin : begin + count] = payload[source : source + count]

    def part(self, arena: int, begin: int, count: int) -> memoryview | None:
        """Some of its bytes, in place; None where it is not mapped, or is gone."""
        memory = self._mapped.get(arena)
        return memory[begin : begin + count] if memory is not None else None

    def drop(self, arena: int) -> None:
        """Let go of one. Bytes that are being sent from it stay until they are sent."""
        descriptor = self._descriptors.pop(arena, None)
        if descriptor is not None:
            os.close(descriptor)
        self._mapped.pop(arena, None)

    def close(self) -> None:
        """Let go of all."""
        for arena in list(self._descriptors):
            self.drop(arena)
