"""What need not be probed again: the items of an index that is there already, and of a build that broke off.

A file counts as unchanged while its size and modification time are.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import itemgetter

import msgspec

from libhelix.errors import IndexProblem
from libhelix.index.formats import Member
from libhelix.index.read import Index
from libhelix.index.scan import Answer
from libhelix.index.schema import PROBING
from libhelix.recipe import Item, Sample, TextInfo

PART = "."
"""Between the name of a member and that of one of several items in it: "npz.weights"."""
Place = tuple[str, int, int, int]
_At = tuple[int, int, bool, str, str]
"""Of an item: offset, size, whether its file is a sample by itself, name, kind."""


def item_name(member: str, part: str) -> str:
    """How an item of a member is called in its sample."""
    return f"{member}{PART}{part}" if member and part else member or part


class Known:
    """Answers by place. Those of an index are found by what it says of the bytes of a member."""

    def __init__(self, samples: Iterable[Sample] = (), root: str = "") -> None:
        self._items: dict[tuple[str, int], dict[_At, tuple[int, Item]]] = {}
        self._starts: dict[tuple[str, int], list[_At]] = {}
        self.answers: dict[Place, Answer] = {}
        for sample in samples:
            path = os.path.join(root, sample.key)
            lone = all(item.path == path for item in sample.items)
            for item in sample.items:
                at = (item.offset, item.size, lone, item.name, item.kind)
                items = self._items.setdefault((item.path, item.mtime_ns), {})
                items.setdefault(at, (len(items), item))

    def answer(self, member: Member) -> Answer | None:
        """What is known of a member, or None."""
        return self.answers.get(member.place) or self._of_index(member)

    def _of_index(self, member: Member) -> Answer | None:
        file = (member.path, member.mtime_ns)
        items = self._items.get(file)
        if items is None:
            return None
        starts = self._starts.get(file)
        if starts is None:
            starts = self._starts[file] = sorted(items)
        end = member.offset + member.size
        found: list[tuple[int, Item]] = []
        for i in range(bisect_left(starts, (member.offset,)), len(starts)):
            at = starts[i]
            if at[0] >= end:
                break
            part = _part(member.name, at[2], at[3])
            if part is not None and at[0] + at[1] <= end:
                order, item = items[at]
                found.append((order, _as_probed(item, part)))
        # The size of a member is known where its last item ends with it; else it may have changed.
        if not found or max(i.offset + i.size for _, i in found) != end:
            return None
        return Answer(tuple(item for _, item in sorted(found, key=itemgetter(0))))


def _as_probed(item: Item, part: str) -> Item:
    """What probing said of it: tokens were counted later, perhaps by another tokenizer."""
    text = TextInfo() if item.text is not None else None
    return msgspec.structs.replace(item, name=part, text=text)


def _part(member: str, lone: bool, name: str) -> str | None:
    """What its content calls an item, if an item of that name may be of a member called so."""
    if lone or not member:
        return name if lone and not member else None
    if name == member:
        return ""
    return name.removeprefix(member + PART) if name.startswith(member + PART) else None


def read_samples(path: str) -> tuple[Sequence[Sample], str]:
    """(the samples of an index, its root); nothing where there is none of this format, or one whose media
    were probed by other rules."""
    try:
        index = Index.open(path)
    except IndexProblem:
        return (), ""
    return (list(index), index.root) if index.probing == PROBING else ((), "")
