"""Listings and answers to samples: pure, and the same whether answers are new or known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from libhelix.index.formats import Draft, Listing, Member
from libhelix.index.known import Place, item_name
from libhelix.index.scan import Answer
from libhelix.recipe import Item, TextInfo

Keyed = tuple[str, tuple[Item, ...]]
"""A sample's key, and its items."""
Refused = list[tuple[str, str]]


def samples_of(
    listing: Listing, answers: Mapping[Place, Answer], keep_incomplete: bool
) -> tuple[list[tuple[str, Keyed]], Refused]:
    """((path by which it is ordered, sample)..., what was refused) of a listing."""
    refused: Refused = []
    found: list[_Made] = []
    for draft in listing.samples:
        made = _made(draft, answers, refused)
        if made is not None:
            found.append(made)
    if listing.alike and not keep_incomplete:
        found = _complete(listing.origin, found, refused)
    order = listing.origin
    return [(order or m.draft.members[0].path, (m.draft.key, m.items)) for m in found], refused


class _Made(NamedTuple):
    """A sample, and what its members are: of a video with sound, a video."""

    draft: Draft
    items: tuple[Item, ...]
    kinds: frozenset[str]


def _made(draft: Draft, answers: Mapping[Place, Answer], refused: Refused) -> _Made | None:
    """A sample; None where it has no items, or one that is needed cannot be used."""
    items: list[Item] = []
    kinds: set[str] = set()
    lacking = False
    for member in draft.members:
        if member.text:
            items.append(_text(member))
            kinds.add("text")
            continue
        answer = answers[member.place]
        if answer.items:
            items += [_named(member.name, item) for item in answer.items]
            kinds.add(answer.items[0].kind)
            continue
        refused.append((member.path, _reason(member, answer)))
        lacking = lacking or member.needed
    return None if lacking or not items else _Made(draft, tuple(items), frozenset(kinds))


def _named(member: str, item: Item) -> Item:
    name = item_name(member, item.name)
    return item if name == item.name else msgspec.structs.replace(item, name=name)


def _text(member: Member) -> Item:
    return Item(
        kind="text",
        path=member.path,
        offset=member.offset,
        size=member.size,
        mtime_ns=member.mtime_ns,
        name=member.name,
        text=TextInfo(),
    )


def _reason(member: Member, answer: Answer) -> str:
    if not member.label:
        return answer.refused
    return f"{member.label}: {answer.refused.removeprefix(member.path + ': ')}"


def _complete(origin: str, found: list[_Made], refused: Refused) -> list[_Made]:
    """Those that have every kind of item which most have; recipes would fail for the others."""
    counts = Counter(kind for made in found for kind in made.kinds)
    usual = {kind for kind, n in counts.items() if 2 * n > len(found)}
    whole = []
    for made in found:
        missing = usual - made.kinds
        if not missing:
            whole.append(made)
            continue
        has, lacks = ", ".join(item.name for item in made.items), " or ".join(sorted(missing))
        key = made.draft.key
        at = f"{origin}: sample {key!r}" if origin else f"{key}: the sample"
        cure = "add it, or give --keep-incomplete"
        refused.append((made.items[0].path, f"{at} has {has} but no {lacks}, as most have; {cure}"))
    return whole
