"""helixctl diff: two ways to load the same data, batch by batch, up to the first difference."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from typing import Any

import click
import numpy as np

from libhelix.ctl.output import counted, say
from libhelix.errors import HelixError, UsageError
from libhelix.recipes.dataset import as_array, flattened

_EXAMPLES = """\b
Examples:
  helixctl diff before:make_data_loader after:make_loader
  helixctl diff before:make_data_loader after:make_loader --tolerance 2 --batches 10

Each names a function without parameters that returns an iterable; make both without shuffling. Batches may be
dicts, lists or tuples; a list is compared with a dict by the order of its values.
"""
_MISSING = object()


@click.command(epilog=_EXAMPLES, short_help="Compare a loader with another, batch by batch.")
@click.argument("one", metavar="MODULE:FUNCTION")
@click.argument("other", metavar="MODULE:FUNCTION")
@click.option("--batches", type=click.IntRange(min=1), help="Compare so many.  [default: all]")
@click.option(
    "--tolerance", type=click.FloatRange(min=0), default=0.0, help="Largest difference of two equal values."
)
def diff(one: str, other: str, batches: int | None, tolerance: float) -> int:
    """Compare what two functions load, such as a DataLoader and a Loader, and say where they differ first: in
    which batch, and in which of its fields by shape, dtype or value.

    Exit code 1 where they differ.
    """
    sys.path.insert(0, os.getcwd())
    with redirect_stdout(sys.stderr):  # what modules print is no result
        pairs = itertools.zip_longest(_iterated(one), _iterated(other), fillvalue=_MISSING)
        compared, found = _first(itertools.islice(pairs, batches), tolerance, (one, other))
    for line in found:
        say(line)
    if found:
        return 1
    say(f"the same: {counted(compared, 'batch') if compared == 1 else f'{compared:,} batches'}")
    return 0


def _first(
    pairs: Iterable[tuple[Any, Any]], tolerance: float, names: tuple[str, str]
) -> tuple[int, list[str]]:
    """How many batches were the same, and what differs in the one after."""
    compared = 0
    for a, b in pairs:
        if a is _MISSING or b is _MISSING:
            ended, goes_on = names if a is _MISSING else names[::-1]
            return compared, [f"{ended} ends after {compared:,} batches, {goes_on} goes on"]
        found = differences(a, b, tolerance)
        if found:
            return compared, [f"batch {compared}:", *(f"  {line}" for line in found)]
        compared += 1
    return compared, []


def differences(one: Any, other: Any, tolerance: float = 0.0) -> list[str]:
    """A line for every value of two batches that differs by more."""
    a, b = dict(flattened(one)), dict(flattened(other))
    if a.keys() != b.keys() and len(a) == len(b) and (_in_order(a) or _in_order(b)):
        names = a if _in_order(b) else b
        a, b = dict(zip(names, a.values())), dict(zip(names, b.values()))
    found = [f"{name}: only in the first" for name in a if name not in b]
    found += [f"{name}: only in the second" for name in b if name not in a]
    for name in a:
        if name in b and (line := _difference(a[name], b[name], tolerance)):
            found.append(f"{name}: {line}")
    return found


def _in_order(values: dict[str, Any]) -> bool:
    return list(values) == [str(i) for i in range(len(values))]


def _difference(one: Any, other: Any, tolerance: float) -> str:
    """What differs in a value; nothing where nothing does."""
    one, other = _on_host(one), _on_host(other)
    a, b = as_array(one), as_array(other)
    if a is None or b is None:
        return "" if type(one) is type(other) and _equal(one, other) else f"{one!r:.60} and {other!r:.60}"
    (dtype, values), (other_dtype, other_values) = a, b
    if values.shape != other_values.shape:
        return f"shapes {list(values.shape)} and {list(other_values.shape)}"
    if dtype != other_dtype:
        return f"dtypes {dtype} and {other_dtype}"
    return _far(_numbers(dtype, values), _numbers(dtype, other_values), tolerance)


def _on_host(value: Any) -> Any:
    return value.cpu() if hasattr(value, "cpu") else value


def _equal(one: Any, other: Any) -> bool:
    """Of values that are no arrays of numbers that batches have: complex ones, strings, objects."""
    if hasattr(one, "equal"):  # a tensor
        return one.dtype == other.dtype and bool(one.equal(other))
    return bool(np.array_equal(one, other))


def _numbers(dtype: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype(np.float64) if values.dtype.kind in "fb" else values


def _far(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], tolerance: float) -> str:
    same = (a == b) | ((a != a) & (b != b))  # NaN is as good as NaN
    if same.all():
        return ""
    with np.errstate(invalid="ignore"):
        apart = np.maximum(a, b) - np.minimum(a, b)  # of integers: as such, and unsigned it cannot overflow
    if apart.dtype.kind == "i":
        apart = apart.view(f"u{apart.dtype.itemsize}")
    apart = np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart.astype(np.float64)))
    if not (apart > tolerance).any():
        return ""
    at = np.unravel_index(int(apart.argmax()), apart.shape)
    share = 100 * float((apart > tolerance).mean())
    where = f"at {[int(i) for i in at]}: {a[at]:g} and {b[at]:g}"
    return f"largest difference {apart[at]:g}, {where}; {share:.3g} % of values differ"


def _iterated(name: str) -> Iterator[Any]:
    """What the function of a name returns, gone through; closed at the end, where it can be."""
    module, _, qualname = name.partition(":")
    if not module or not qualname:
        raise UsageError(f"{name}: write module:function")
    try:
        made: Any = importlib.import_module(module)
        for part in qualname.split("."):
            made = getattr(made, part)
    except (ImportError, AttributeError) as e:
        raise UsageError(f"{name}: {e}; run this where it can be imported, or set PYTHONPATH") from e
    try:
        made = made() if callable(made) else made
        batches = iter(made)
    except HelixError:
        raise
    except Exception as e:
        raise UsageError(
            f"{name}: {type(e).__name__}: {e}; it is to be a function without parameters that returns a "
            "loader, or another iterable of batches"
        ) from e
    try:
        yield from batches
    finally:
        if hasattr(made, "close"):
            made.close()
