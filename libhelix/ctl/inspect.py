"""helixctl inspect: what an index holds."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import click
import numpy as np

from libhelix.ctl.figures import duration, line, size, spread
from libhelix.index.read import Index

_SHOWN_SIZES = 10
_SHOWN_NAMES = 20
_NUMBER = re.compile(r"/\d+$")


@click.command(epilog="Example: helixctl inspect train.arrow", short_help="Show what an index holds.")
@click.argument("path", metavar="INDEX", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def inspect(path: str, as_json: bool) -> None:
    """Show the kinds and names of items, codecs, picture sizes, and the spread of bytes, frames, rates and
    durations in INDEX."""
    found = summary(Index.open(path))
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(
        f"{path}: {found['samples']:,} samples below {found['root']}, {found['refused']:,} files left out"
    )
    click.echo(f"fingerprint  {found['fingerprint']}")
    for name in ("kinds", "names", "codecs", "pictures"):
        if not found[name]:
            continue
        counted = ", ".join(f"{key} {n:,}" for key, n in found[name].items())
        click.echo(f"{name:<12} {counted}")
    click.echo(line("", "min", "p50", "p95", "max", "total"))
    for name, values in found["spread"].items():
        label, shown = _SHOWN_AS[name]
        total = found["total"].get(name)
        click.echo(line(label, *map(shown, values.values()), "" if total is None else shown(total)))


_SHOWN_AS: dict[str, tuple[str, Callable[[float], str]]] = {
    "items": ("items", "{:,.0f}".format),
    "bytes": ("bytes", size),
    "frames": ("frames", "{:,.0f}".format),
    "fps": ("fps", "{:.2f}".format),
    "duration_s": ("duration", duration),
}


def summary(index: Index) -> dict[str, Any]:
    """Counts and spreads over all samples of an index, as plain JSON values."""
    widths, heights = index.column("width").to_pylist(), index.column("height").to_pylist()
    pictures = Counter(f"{w}x{h}" for w, h in zip(widths, heights, strict=True) if w is not None)
    rest = sum(pictures.values()) - sum(n for _, n in pictures.most_common(_SHOWN_SIZES))
    columns = {"bytes": index.column("size")}
    columns.update((name, index.column(name)) for name in ("frames", "fps", "duration_s"))
    each = np.sort(np.array(index.items_each()))
    values = {"items": each} if len(each) and each[-1] > 1 else {}
    values |= {name: _values(column) for name, column in columns.items() if column.null_count < len(column)}
    return {
        "samples": len(index),
        "root": index.root,
        "refused": index.refused,
        "fingerprint": index.fingerprint,
        "kinds": _counts(index, "kind"),
        "names": _names(index),
        "codecs": _counts(index, "codec"),
        "pictures": dict(pictures.most_common(_SHOWN_SIZES)) | ({"other": rest} if rest else {}),
        "spread": {name: spread(found) for name, found in values.items()},
        "total": {name: found.sum().item() for name, found in values.items() if name != "fps"},
    }


def _names(index: Index) -> dict[str, int]:
    """How often items of a kind have a name; the numbers of lists count together."""
    kinds, names = index.column("kind").to_pylist(), index.column("name").to_pylist()
    found = Counter(f"{kind} {_NUMBER.sub('/*', name)}" for kind, name in zip(kinds, names) if name)
    rest = sum(found.values()) - sum(n for _, n in found.most_common(_SHOWN_NAMES))
    return dict(found.most_common(_SHOWN_NAMES)) | ({"other": rest} if rest else {})


def _counts(index: Index, column: str) -> dict[str, int]:
    return dict(Counter(v for v in index.column(column).to_pylist() if v is not None).most_common())


def _values(column: Any) -> Any:
    return np.sort(column.drop_null().to_numpy(zero_copy_only=False))
