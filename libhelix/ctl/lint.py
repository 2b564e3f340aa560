"""helixctl lint: decode everything once, and say what training would trip over."""

from __future__ import annotations

import json

import click
import msgspec

from libhelix.index.cache import progress_bar
from libhelix.index.lint import Result
from libhelix.index.lint import lint as lint_index
from libhelix.index.read import Index

_SHOWN = 20
_GRADES = ("broken", "odd", "slow")


@click.command(
    epilog="Example: helixctl lint train.arrow --fraction 0.01",
    short_help="Decode all samples, list bad ones.",
)
@click.argument("path", metavar="INDEX", type=click.Path())
@click.option(
    "--fraction",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="Of the samples, spread over all.  [default: 1]",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Decoding processes.  [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def lint(path: str, fraction: float, jobs: int | None, as_json: bool) -> int:
    """Decode the samples of INDEX completely, and list what is broken, odd or slow, with the cure.

    Exits with 1 where something is broken.
    """
    index = Index.open(path)
    with progress_bar(doing="decoding") as progress:
        found = lint_index(index, fraction, jobs=jobs, progress=progress)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
    else:
        _print(found, path, len(index))
    return int(any(note.grade == "broken" for note in found.notes))


def _print(found: Result, path: str, samples: int) -> None:
    counts = {grade: sum(note.grade == grade for note in found.notes) for grade in _GRADES}
    told = ", ".join(f"{n:,} {grade}" for grade, n in counts.items())
    click.echo(f"{path}: {found.samples:,} of {samples:,} samples decoded, {found.items:,} items: {told}")
    for kind, n in found.skipped.items():
        click.echo(f"not looked into: {n:,} of kind {kind}")
    for grade in _GRADES:
        notes = [note for note in found.notes if note.grade == grade]
        for note in notes[:_SHOWN]:
            label = f" ({note.item})" if note.item else ""
            where = "" if note.path.endswith(note.key) else f" in {note.path}"
            click.echo(f"{grade:<7} {note.key}{label}{where}: {note.text}")
        if len(notes) > _SHOWN:
            click.echo(f"{'':<7} and {len(notes) - _SHOWN:,} more {grade} (--json lists all)")
