"""A recipe on a command line, and what its rows say.

--recipe module:Class --param name=value makes one; --recipe module:name is one that a module has made, such
as what Together returns.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import click
import msgspec
import numpy as np

from libhelix.ctl.figures import count, milliseconds, size, spread
from libhelix.errors import HelixError, RecipeNotImportable, UsageError
from libhelix.recipe import Recipe
from libhelix.recipes.rows import UNDECLARED, Rows
from libhelix.recipes.run import imported, recipe_class


def recipe_options(*, required: bool, help: str) -> Callable[[Any], Any]:
    """The options "name" and "params", which `recipe_of` takes."""
    recipe = click.option("--recipe", "name", metavar="MODULE:NAME", required=required, help=help)
    param = click.option(
        "--param",
        "params",
        metavar="NAME=VALUE",
        multiple=True,
        help="A parameter of the recipe, as JSON where it is JSON, else as text.",
    )
    return lambda command: recipe(param(command))


def recipe_of(name: str, params: tuple[str, ...]) -> Recipe:
    """The recipe. Raises UsageError that names the option, RecipeNotImportable with the cause."""
    # What modules print is no result; and they are found as `python -m` finds them.
    sys.path.insert(0, os.getcwd())
    with redirect_stdout(sys.stderr):
        return _made(name, params)


def _made(name: str, params: tuple[str, ...]) -> Recipe:
    module, _, qualname = name.partition(":")
    if not module or not qualname:
        raise UsageError(f"--recipe {name}: write module:Class, such as libhelix.recipes:Clip")
    try:
        found = imported(module, qualname)
        if isinstance(found, Recipe):
            return _whole(name, found, params)
        cls = recipe_class(module, qualname)
    except RecipeNotImportable as e:
        if e.__cause__ is None:
            raise
        cause = f"{type(e.__cause__).__name__}: {e.__cause__}"
        raise RecipeNotImportable(
            f"--recipe {name}: {cause}; run this where it can be imported, or set PYTHONPATH"
        ) from e
    values = _values(cls, params)
    try:
        return msgspec.convert(values, cls)
    except msgspec.ValidationError as e:
        if isinstance(e.__cause__, HelixError):
            raise UsageError(f"--recipe {name}: {e.__cause__}") from e
        # "Expected `int | null`, got `str` - at `$.frames`"
        problem, _, where = str(e).replace("`", "").partition(" - at $.")
        field = where.partition("[")[0].partition(".")[0]
        if not field:
            raise UsageError(f"--recipe {name}: {problem}; give it with --param") from e
        raise UsageError(f"--param {field}={json.dumps(values[field])}: {problem}") from e


def _whole(name: str, recipe: Recipe, params: tuple[str, ...]) -> Recipe:
    if params:
        raise UsageError(f"--param {params[0]}: {name} is made already; name a class to give parameters")
    return recipe


def _values(cls: type[Recipe], params: tuple[str, ...]) -> dict[str, Any]:
    known = [field.encode_name for field in msgspec.structs.fields(cls)]
    values: dict[str, Any] = {}
    for param in params:
        field, equals, text = param.partition("=")
        if not equals:
            raise UsageError(f"--param {param}: write name=value, such as frames=8")
        if field not in known:
            has = ", ".join(known) or "none"
            raise UsageError(f"--param {param}: {cls.__name__} has no parameter {field!r}; it has: {has}")
        if field in values:
            raise UsageError(f"--param {param}: {field} is given twice")
        try:
            values[field] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            values[field] = text
    return values


def columns_of(rows: Rows) -> dict[str, Any]:
    """What rows declare, and "bytes" and "decode_us", of the samples that can be described."""
    good = np.ones(len(rows), dtype=bool)
    good[list(rows.errors)] = False
    found = {name: column[column != UNDECLARED] for name, column in rows.costs.items()}
    return found | {"bytes": rows.nbytes[good], "decode_us": rows.decode_us[good]}


_SHOWN: dict[str, tuple[str, Callable[[float], str]]] = {
    "bytes": ("bytes", size),
    "decode_us": ("decode", milliseconds),
}


def rows_table(rows: Rows) -> list[tuple[str, ...]]:
    """The spreads for people: a head, and a line for every column."""
    lines: list[tuple[str, ...]] = [("", "min", "p50", "p95", "max", "mean", "total")]
    for name, values in spreads(rows).items():
        label, figure = _SHOWN.get(name, (name, count))
        lines.append((label, *map(figure, values.values())))
    return lines


def spreads(rows: Rows) -> dict[str, dict[str, float]]:
    """Quantiles, mean and total of every column."""
    return {
        name: {**spread(np.sort(values)), "mean": float(values.mean()), "total": float(values.sum())}
        for name, values in columns_of(rows).items()
    }
