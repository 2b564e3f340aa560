"""Keys that are like one which is not there."""

from __future__ import annotations

import difflib

import pyarrow.compute as pc

from libhelix.index.read import Index

NEAR = 5
_COMPARED = 20_000
"""More would take seconds."""


def near_keys(index: Index, key: str) -> str:
    """What to add to an error: "; near are: ..." the keys that hold this one or look like it, or nothing."""
    keys = index.keys()
    inside = keys.filter(pc.match_substring(keys, key, ignore_case=True))
    if len(inside):
        found: list[str] = inside.slice(0, NEAR).to_pylist()
    else:
        found = difflib.get_close_matches(key, keys.slice(0, _COMPARED).to_pylist(), NEAR, 0.5)
    return f"; near are: {', '.join(found)}" if found else ""
