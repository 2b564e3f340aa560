"""helixctl inspect: what an index holds, and what a recipe will make of it."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from libhelix.ctl.figures import duration, line, size, spread, table
from libhelix.ctl.output import counted, say, written
from libhelix.ctl.plotting import Panel, histograms
from libhelix.ctl.recipes import columns_of, recipe_of, recipe_options, rows_table, spreads
from libhelix.errors import IndexProblem
from libhelix.index.cache import progress_bar
from libhelix.index.read import Index
from libhelix.recipe import Recipe
from libhelix.recipes.rows import Rows, path_of, spec_of

_SHOWN_SIZES = 10
_SHOWN_NAMES = 20
_PANELS = 4
_NUMBER = re.compile(r"/\d+$")
_CHANNELS = {1: "mono", 2: "stereo"}
_EXAMPLES = """\b
Examples:
  helixctl inspect train.arrow
  helixctl inspect train.arrow --plot train.png
  helixctl inspect train.arrow --recipe libhelix.recipes:Clip --param frames=8
"""


@click.command(epilog=_EXAMPLES, short_help="Show what an index holds.")
@click.argument("path", metavar="INDEX", type=click.Path())
@recipe_options(required=False, help="Also show the tokens and the decoding that it predicts.")
@click.option(
    "--plot",
    "picture",
    metavar="OUT.png",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write histograms, with matplotlib: the extra datahelix[plot].",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def inspect(
    path: str, name: str | None, params: tuple[str, ...], picture: Path | None, as_json: bool
) -> None:
    """Show the kinds and names of items, codecs, picture sizes, sounds and arrays, and the spread of bytes,
    frames, rates, durations and tokens in INDEX; with a recipe, what its samples cost and how long an epoch
    keeps one core busy."""
    recipe = recipe_of(name, params) if name is not None else None
    index = Index.open(path)
    columns = columns_in(index)
    found = summary(index, columns)
    rows = _rows(index, recipe) if recipe is not None else None
    if rows is not None:
        found["predicted"] = _predicted(rows)
    if picture is not None:
        with written(picture, "--plot") as file:
            histograms(f"{path}: {len(index):,} samples", _panels(columns, rows, found), file)
    if as_json:
        click.echo(json.dumps(found))
        return
    _print(path, found)
    if rows is not None:
        _print_predicted(rows)


_SHOWN_AS: dict[str, tuple[str, Callable[[float], str]]] = {
    "items": ("items", "{:,.0f}".format),
    "bytes": ("bytes", size),
    "pixels": ("pixels", "{:,.0f}".format),
    "frames": ("frames", "{:,.0f}".format),
    "fps": ("fps", "{:.2f}".format),
    "duration_s": ("duration", duration),
    "sound_s": ("sound", duration),
    "tokens": ("tokens", "{:,.0f}".format),
}
_WITHOUT_TOTAL = ("fps", "pixels")


def columns_in(index: Index) -> dict[str, Any]:
    """Sorted numbers of items, by name, where the index has some; "items" are those of a sample."""
    each = np.sort(np.array(index.items_each()))
    found = {"items": each} if len(each) and each[-1] > 1 else {}
    columns = {"bytes": index.column("size")}
    columns.update((name, index.column(name)) for name in ("frames", "fps", "duration_s"))
    values = {name: _values(column) for name, column in columns.items()}
    rate, samples = _values(index.column("rate")), _values(index.column("samples"))
    values["sound_s"] = samples / rate
    values["pixels"] = _values(index.column("width")).astype(np.int64) * _values(index.column("height"))
    tokens = _values(index.column("tokens"))
    values["tokens"] = tokens[tokens >= 0]
    found |= {name: np.sort(values[name]) for name in _SHOWN_AS if name in values and len(values[name])}
    return found


def summary(index: Index, columns: dict[str, Any]) -> dict[str, Any]:
    """Counts and spreads over all samples of an index, as plain JSON values."""
    sides = (index.column(name).to_pylist() for name in ("width", "height"))
    sounds = (index.column(name).to_pylist() for name in ("rate", "channels"))
    arrays = (index.column(name).to_pylist() for name in ("dtype", "shape"))
    return {
        "samples": len(index),
        "root": index.root,
        "refused": index.refused,
        "fingerprint": index.fingerprint,
        "kinds": _counts(index, "kind"),
        "names": _names(index),
        "codecs": _counts(index, "codec"),
        "pictures": _most(Counter(f"{w}x{h}" for w, h in zip(*sides) if w is not None)),
        "sounds": _most(
            Counter(f"{r} Hz {_CHANNELS.get(c, f'{c} channels')}" for r, c in zip(*sounds) if r is not None)
        ),
        "arrays": _most(Counter(f"{d} {s}".replace(", ", "x") for d, s in zip(*arrays) if d is not None)),
        "spread": {name: spread(values) for name, values in columns.items()},
        "total": {n: values.sum().item() for n, values in columns.items() if n not in _WITHOUT_TOTAL},
    }


def _names(index: Index) -> dict[str, int]:
    """How often items of a kind have a name; the numbers of lists count together."""
    kinds, names = index.column("kind").to_pylist(), index.column("name").to_pylist()
    found = Counter(f"{kind} {_NUMBER.sub('/*', name)}" for kind, name in zip(kinds, names) if name)
    return _most(found, _SHOWN_NAMES)


def _most(found: Counter[str], shown: int = _SHOWN_SIZES) -> dict[str, int]:
    most = dict(found.most_common(shown))
    rest = sum(found.values()) - sum(most.values())
    return most | ({"other": rest} if rest else {})


def _counts(index: Index, column: str) -> dict[str, int]:
    return dict(Counter(v for v in index.column(column).to_pylist() if v is not None).most_common())


def _values(column: Any) -> Any:
    return column.drop_null().to_numpy(zero_copy_only=False)


def _print(path: str, found: dict[str, Any]) -> None:
    say(
        f"{path}: {counted(found['samples'], 'sample')} below {found['root']}, "
        f"{counted(found['refused'], 'file')} left out"
    )
    say(f"fingerprint  {found['fingerprint']}")
    for name in ("kinds", "names", "codecs", "pictures", "sounds", "arrays"):
        if not found[name]:
            continue
        each = ", ".join(f"{key} {n:,}" for key, n in found[name].items())
        say(f"{name:<12} {each}")
    say(line("", "min", "p50", "p95", "max", "total"))
    for name, values in found["spread"].items():
        label, shown = _SHOWN_AS[name]
        total = found["total"].get(name)
        say(line(label, *map(shown, values.values()), "" if total is None else shown(total)))


# ---- with a recipe -------------------------------------------------------------------------------------


def _rows(index: Index, recipe: Recipe) -> Rows:
    """The rows of all samples: those that helixctl describe stored, or made now and not kept."""
    path = path_of(index, recipe)
    if os.path.exists(path):
        try:
            rows = Rows.open(path)
        except IndexProblem:
            rows = None
        if rows is not None and (rows.origin.index, rows.origin.recipe, len(rows)) == (
            index.fingerprint,
            spec_of(recipe),
            len(index),
        ):
            return rows
    from libhelix.recipes.describe import describe_all

    with progress_bar(doing="describing") as progress:
        return describe_all(index, recipe, progress=progress)


def _predicted(rows: Rows) -> dict[str, Any]:
    return {
        "recipe": str(rows.origin.recipe),
        "params": json.loads(rows.origin.recipe.params),
        "drawn": rows.origin.drawn,
        "failed": list(rows.errors.values()),
        "spread": spreads(rows),
        "epoch_core_s": float(columns_of(rows)["decode_us"].sum()) / 1e6,
    }


def _print_predicted(rows: Rows) -> None:
    say(f"{rows.origin.recipe} makes of it, by what headers say:")
    say(*table(rows_table(rows)))
    core_s = float(columns_of(rows)["decode_us"].sum()) / 1e6
    say(f"an epoch is {duration(core_s)} of one core")
    if rows.errors:
        say(f"{counted(len(rows.errors), 'sample')} failed; the first: {next(iter(rows.errors.values()))}")
    if rows.origin.drawn:
        say(f"random draws change it: these are of seed {rows.origin.seed}, epoch {rows.origin.epoch}")


# ---- as a picture --------------------------------------------------------------------------------------

_DRAWN = ("duration_s", "sound_s", "bytes", "pixels", "frames", "fps", "items")


def _panels(columns: dict[str, Any], rows: Rows | None, found: dict[str, Any]) -> list[Panel]:
    """The four that say most: what the recipe predicts, durations, sizes; else how often codecs come."""
    panels = []
    if rows is not None:
        predicted = columns_of(rows)
        if "tokens" in predicted:
            panels.append(Panel("tokens of a sample, predicted", predicted["tokens"]))
        panels.append(Panel("decoding of a sample, predicted, ms of a core", predicted["decode_us"], 1e3))
    elif "tokens" in columns:
        panels.append(Panel("tokens of a text", columns["tokens"]))
    titles = {
        "duration_s": "seconds of video",
        "sound_s": "seconds of sound",
        "bytes": "MiB of an item",
        "pixels": "megapixels",
        "frames": "frames",
        "fps": "frames per second",
        "items": "items of a sample",
    }
    units = {"bytes": float(1 << 20), "pixels": 1e6}
    panels += [Panel(titles[n], columns[n], units.get(n, 1.0)) for n in _DRAWN if n in columns]
    bars = {"codecs": found["codecs"], "kinds of items": found["kinds"]}
    panels += [Panel(title, counts=counts) for title, counts in bars.items() if counts]
    return [panel for panel in panels if panel.counts is not None or len(panel.numbers)][:_PANELS]
