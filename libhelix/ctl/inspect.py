"""helixctl inspect: what an index holds."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import click
import numpy as np

from libhelix.index.read import Index

_SHOWN_SIZES = 10


@click.command(epilog="Example: helixctl inspect train.arrow", short_help="Show what an index holds.")
@click.argument("path", metavar="INDEX", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def inspect(path: str, as_json: bool) -> None:
    """Show kinds, codecs, picture sizes, and the spread of bytes, frames, rates and durations in INDEX."""
    found = summary(Index.open(path))
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(f"{path}: {found['samples']} samples below {found['root']}, {found['refused']} files left out")
    click.echo(f"fingerprint  {found['fingerprint']}")
    for name in ("kinds", "codecs", "pictures"):
        counted = ", ".join(f"{key} {n}" for key, n in found[name].items())
        click.echo(f"{name:<12} {counted}")
    click.echo(f"{'':<12} {'min':>12} {'p50':>12} {'p95':>12} {'max':>12}")
    for name, spread in found["spread"].items():
        cells = " ".join(f"{spread[q]:>12.6g}" for q in ("min", "p50", "p95", "max"))
        click.echo(f"{name:<12} {cells}")


def summary(index: Index) -> dict[str, Any]:
    """Counts and spreads over all samples of an index, as plain JSON values."""
    widths, heights = index.column("width").to_pylist(), index.column("height").to_pylist()
    pictures = Counter(f"{w}x{h}" for w, h in zip(widths, heights, strict=True))
    rest = sum(pictures.values()) - sum(n for _, n in pictures.most_common(_SHOWN_SIZES))
    spread = {"bytes": index.column("size")}
    spread.update((name, index.column(name)) for name in ("frames", "fps", "duration_s"))
    return {
        "samples": len(index),
        "root": index.root,
        "refused": index.refused,
        "fingerprint": index.fingerprint,
        "kinds": _counts(index, "kind"),
        "codecs": _counts(index, "codec"),
        "pictures": dict(pictures.most_common(_SHOWN_SIZES)) | ({"other": rest} if rest else {}),
        "spread": {
            name: _spread(column) for name, column in spread.items() if column.null_count < len(index)
        },
    }


def _counts(index: Index, column: str) -> dict[str, int]:
    return dict(Counter(index.column(column).to_pylist()).most_common())


def _spread(column: Any) -> dict[str, float]:
    values = np.sort(column.drop_null().to_numpy(zero_copy_only=False))
    # The nearest rank, not an interpolation: every figure shown is that of some sample.
    at = {"min": 0.0, "p50": 0.5, "p95": 0.95, "max": 1.0}
    return {name: float(values[round(q * (len(values) - 1))]) for name, q in at.items()}
