"""What was ready and has not had its turn. Users take turns, so that one with a thousand connections that
always have more to say waits behind one with a single one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Turn:
    """What to do for a connection, and whose it is."""

    whose: object
    do: Callable[[], None]

    def __call__(self) -> None:
        self.do()


class Waiting:
    """By owner, who waits longest first; of each, by descriptor, who waits longest first. What is no Turn is
    the daemon's own, and takes turns as one more user."""

    def __init__(self) -> None:
        self._of: dict[object, dict[int, Callable[[], None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def add(self, ready: Iterable[tuple[int, Callable[[], None]]]) -> None:
        """Descriptors that are ready; those that wait already keep their place."""
        for fd, do in ready:
            whose = do.whose if isinstance(do, Turn) else None
            self._of.setdefault(whose, {})[fd] = do

    def pop(self) -> Callable[[], None]:
        """Whose turn it is."""
        whose = next(iter(self._of))
        theirs = self._of.pop(whose)
        do = theirs.pop(next(iter(theirs)))
        if theirs:
            self._of[whose] = theirs  # behind the others
        return do
