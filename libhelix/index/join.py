"""Several indexes as one: the samples of the second are numbered after those of the first, and so on."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from libhelix.index.read import Index
from libhelix.recipe import Sample


class Joined:
    """The samples of some indexes, source after source."""

    def __init__(self, indexes: Sequence[Index]) -> None:
        self.indexes = tuple(indexes)
        self.sizes = tuple(len(index) for index in indexes)
        self._ends = list(accumulate(self.sizes))

    @property
    def fingerprint(self) -> str:
        """Of the one index, or of all in their order."""
        if len(self.indexes) == 1:
            return self.indexes[0].fingerprint
        marks = "\n".join(index.fingerprint for index in self.indexes)
        return hashlib.blake2b(marks.encode(), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return self._ends[-1]

    def source_of(self, i: int) -> Index:
        """The index that holds a sample."""
        return self.indexes[bisect_right(self._ends, i)]

    def __getitem__(self, i: int) -> Sample:
        if not 0 <= i < self._ends[-1]:
            raise IndexError(f"sample {i} of {self._ends[-1]}")
        source = bisect_right(self._ends, i)
        if source == 0:
            return self.indexes[0][i]
        return msgspec.structs.replace(self.indexes[source][i - self._ends[source - 1]], id=i)
