"""The weights of a mixture along the stream: the schedule that it was made with, and what was set on the way.

A state keeps the two apart: the schedule says which data set it is, the journal where training has taken it.
"""

from __future__ import annotations

from dataclasses import dataclass

from libhelix.wire.settings import Segment

Schedule = tuple[Segment, ...]


@dataclass(frozen=True)
class Journal:
    """A schedule, and the weights that were set while training, in the order of their places."""

    schedule: Schedule
    entries: Schedule = ()

    @property
    def in_force(self) -> Schedule:
        """Both as one schedule; where both change the weights at one place, the journal does."""
        found = {segment.first: segment for segment in (*self.schedule, *self.entries)}
        return tuple(found[first] for first in sorted(found))

    def entered(self, segment: Segment) -> Journal:
        """The journal once these weights are set. What was set for places from there on is forgotten.

        Weights that are in force there anyway are no entry.
        """
        before = Journal(self.schedule, tuple(e for e in self.entries if e.first < segment.first))
        there = [s for s in before.in_force if s.first <= segment.first][-1]
        if there.weights == segment.weights:
            return before
        return Journal(self.schedule, (*before.entries, segment))
