"""Listings and answers to samples: pure, and the same whether answers are new or known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

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
    found: list[tuple[Draft, tuple[Item, ...]]] = []
    for draft in listing.samples:
        items = _items(draft, answers, refused)
        if items:
            found.append((draft, items))
    if listing.alike and not keep_incomplete:
        found = _complete(listing.origin, found, refused)
    order = listing.origin
    return [(order or d.members[0].path, (d.key, items)) for d, items in found], refused


def _items(draft: Draft, answers: Mapping[Place, Answer], refused: Refused) -> tuple[Item, ...]:
    """The items of a sample; none where one that is needed cannot be used."""
    items: list[Item] = []
    lacking = False
    for member in draft.members:
        if member.text:
            items.append(_text(member))
            continue
        answer = answers[member.place]
        if answer.items:
            items += [_named(member.name, item) for item in answer.items]
            continue
        refused.append((member.path, _reason(member, answer)))
        lacking = lacking or member.needed
    return () if lacking else tuple(items)


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


def _complete(
    origin: str, found: list[tuple[Draft, tuple[Item, ...]]], refused: Refused
) -> list[tuple[Draft, tuple[Item, ...]]]:
    """Those that have every kind of item which most have; recipes would fail for the others."""
    counts = Counter(kind for _, items in found for kind in {item.kind for item in items})
    usual = {kind for kind, n in counts.items() if 2 * n > len(found)}
    whole = []
    for draft, items in found:
        missing = usual - {item.kind for item in items}
        if not missing:
            whole.append((draft, items))
            continue
        has, lacks = ", ".join(item.name for item in items), " or ".join(sorted(missing))
        at = f"{origin}: sample {draft.key!r}" if origin else f"{draft.key}: the sample"
        refused.append(
            (
                items[0].path,
                f"{at} has {has} but no {lacks}, as most have; add it, or give --keep-incomplete",
            )
        )
    return whole
