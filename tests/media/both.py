"""Headers against the scan: what each says of the same file."""

from __future__ import annotations

import os
from pathlib import Path

from libhelix.errors import MediaError
from libhelix.media import headers, scan_media
from libhelix.recipe import Item

Said = tuple[Item, ...] | str | None
"""Items, or why there are none; None where the headers leave it to the scan."""


def item_of(path: Path) -> Item:
    found = os.stat(path)
    return Item(kind="", path=str(path), offset=0, size=found.st_size, mtime_ns=found.st_mtime_ns)


def by_headers(path: Path) -> Said:
    with path.open("rb") as file:
        head = file.read(32)
    try:
        return headers.probe(item_of(path), head)
    except MediaError as e:
        return str(e)


def by_scan(path: Path) -> Said:
    try:
        return scan_media(item_of(path))
    except MediaError as e:
        return str(e)


def agreed(path: Path) -> tuple[Item, ...]:
    """What both say; fails where the headers say nothing, or something else."""
    ours = by_headers(path)
    assert ours is not None, "left to the scan"
    assert ours == by_scan(path)
    assert not isinstance(ours, str)
    return ours
