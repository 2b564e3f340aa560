"""How a simulated daemon plans: with helixd's own code, or with one thing of it exchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from bench.simulate.corpus import Corpus
from helixd.core.windows import Ahead, Windows
from libhelix.plan import window as w
from libhelix.plan.opening import Opening
from libhelix.plan.planner import Planner, Window
from libhelix.plan.progress import Told, unpack_window
from libhelix.plan.rows import Known
from libhelix.wire import messages as m
from libhelix.wire.settings import Base

_KEPT = 32


class SlicePlanner(Planner):
    """Every step as a distributed sampler gives it: of n ranks, rank r takes every n-th draw from r on."""

    def plan(self, opening: Opening) -> Window:
        """The one step of a window."""
        assert self.fixed is not None, "made for fixed batches"
        ranks, samples = self.geometry.ranks, self.fixed.samples
        micros = [
            tuple(
                tuple(opening.taken[(j * samples + i) * ranks + rank] for i in range(samples))
                for rank in range(ranks)
            )
            for j in range(self.geometry.micros)
        ]
        return self._window(opening, w.Planned((tuple(micros),)), ())


class Book:
    """Windows that were planned, for all daemons of a job: they plan the same from the same rows."""

    def __init__(self, corpus: Corpus, *, oracle: bool) -> None:
        self._corpus, self._oracle = corpus, oracle
        self.planned: dict[Base, Ahead] = {}
        self._windows: dict[Base, Window] = {}
        self._openings: dict[Base, Opening] = {}

    def opening(self, planner: Planner, base: Base) -> Opening:
        """A window with all its rows."""
        found = self._openings.get(base)
        if found is None:
            found = self._openings[base] = planner.open(base)
            while draws := found.wants():
                for draw, sample in zip(draws, planner.ids(base.epoch, draws)):
                    found.put(draw, self._corpus.row(sample, oracle=self._oracle))
            for old in list(self._openings)[:-_KEPT]:
                del self._openings[old]
                self.planned.pop(old, None)
                self._windows.pop(old, None)
        return found

    def window(self, planner: Planner, opening: Opening) -> Window:
        """A window, planned by whoever asks first."""
        if opening.base not in self._windows:
            self._windows[opening.base] = planner.plan(opening)
        return self._windows[opening.base]


class SharedWindows(Windows):
    """The windows of one daemon of many, from their book: none describes or plans what another has."""

    def __init__(self, planner: Planner, book: Book) -> None:
        super().__init__(planner)
        self._book = book

    def _open(self, base: Base) -> None:
        self.openings[base] = self._book.opening(self.planner, base)

    def planned_now(self, opening: Opening, window: Window, schema: m.Schema, shapes: Known) -> Ahead | None:
        """A window and its rows, which are one for all daemons."""
        known = self._book.planned.get(opening.base)
        if known is None:
            known = super().planned_now(opening, window, schema, shapes)
            if known is not None:
                self._book.planned[opening.base] = known
            return known
        if self.openings.pop(opening.base, None) is None:
            return None
        self.planned[opening.base] = known
        return known


@contextmanager
def planning(*, slices: bool, book: Book | None) -> Iterator[None]:
    """Streams that are made inside plan so."""
    changes: dict[str, Any] = {}
    if slices:
        changes["Planner"] = SlicePlanner
    if book is not None:
        changes["Windows"] = lambda planner: SharedWindows(planner, book)
    with patch.multiple("helixd.core.stream", **changes) if changes else _nothing():
        yield


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def told_once() -> Iterator[None]:
    """Ranks that are told the same window unpack it once, all together."""
    known: dict[tuple[bytes, ...], Told] = {}

    def unpack(parts: list[bytes]) -> Told:
        key = tuple(parts)
        if key not in known:
            if len(known) >= _KEPT:
                del known[next(iter(known))]
            known[key] = unpack_window(parts)
        return known[key]

    with patch("libhelix.session.unpack_window", unpack):
        yield
