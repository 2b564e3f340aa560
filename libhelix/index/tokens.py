"""Counting the tokens of texts while an index is built, so that packs of text can be planned."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from libhelix.errors import MediaError
from libhelix.recipe import Item, TextInfo

_TEXTS = 1024
"""That many samples at a time: enough to keep all cores busy, and little memory."""

Keyed = tuple[str, tuple[Item, ...]]


class Counting(Protocol):
    """What counts the tokens of texts, and how it is told from others."""

    @property
    def fingerprint(self) -> str: ...

    def count(self, texts: Sequence[str]) -> list[int]: ...


def opened(path: str | Path) -> Counting:
    """The tokenizer of a tokenizer.json. Raises UsageError where it cannot be used."""
    from libhelix.media.tokenizer import tokenizer

    found = tokenizer(os.path.abspath(os.fspath(path)))
    found.count([])  # loads it: better now than after the files were scanned
    return found


def counted(
    samples: Sequence[Keyed], root: str, counting: Counting
) -> tuple[list[Keyed], list[tuple[str, str]]]:
    """The samples, their texts with token counts; and (path, reason) of those whose text cannot be read."""
    kept: list[Keyed] = []
    refused: list[tuple[str, str]] = []
    for first in range(0, len(samples), _TEXTS):
        texts: list[str] = []
        some: list[Keyed] = []
        for key, items in samples[first : first + _TEXTS]:
            try:
                texts += [_read(item, root) for item in items if item.kind == "text"]
                some.append((key, items))
            except MediaError as e:
                refused.append((os.path.join(root, key), str(e)))
        counts = iter(counting.count(texts))
        for key, items in some:
            kept.append((key, tuple(_with_count(item, counting, counts) for item in items)))
    return kept, refused


def _read(item: Item, root: str) -> str:
    from libhelix.media import text

    return text.read(msgspec.structs.replace(item, path=os.path.join(root, item.path)))


def _with_count(item: Item, counting: Counting, counts: Iterator[int]) -> Item:
    if item.kind != "text":
        return item
    info = TextInfo(tokens=next(counts), tokenizer=counting.fingerprint)
    return msgspec.structs.replace(item, text=info)
