"""helixctl lint: decode everything once, and say what training would trip over."""

from __future__ import annotations

import json

import click
import msgspec

from libhelix.ctl.output import counted, say
from libhelix.errors import UsageError
from libhelix.index.cache import progress_bar
from libhelix.index.lint import Result
from libhelix.index.lint import lint as lint_index
from libhelix.index.read import Index

_SHOWN = 20
_GRADES = ("broken", "odd", "slow")
_EXAMPLES = """\b
Examples:
  helixctl lint train.arrow                          all of it
  helixctl lint train.arrow --fraction 0.01          a hundredth
  helixctl lint train.arrow --sample 500 --seed 1    500 samples, others than with seed 0
"""


@click.command(epilog=_EXAMPLES, short_help="Decode all samples, list bad ones.")
@click.argument("path", metavar="INDEX", type=click.Path())
@click.option(
    "--fraction",
    type=click.FloatRange(0, 1, min_open=True),
    help="Of the samples, spread over all.  [default: 1]",
)
@click.option("--sample", "count", type=click.IntRange(min=1), help="So many samples, spread over all.")
@click.option("--seed", type=int, default=0, help="Which samples are drawn.  [default: 0]")
@click.option("--jobs", type=click.IntRange(min=1), help="Decoding processes.  [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def lint(
    path: str, fraction: float | None, count: int | None, seed: int, jobs: int | None, as_json: bool
) -> int:
    """Decode the samples of INDEX completely, and list what is broken, odd or slow, with the cure.

    Looked into are videos, pictures, sounds, stored arrays and texts, JSON among them. Exits with 1 where
    something is broken.
    """
    if fraction is not None and count is not None:
        raise UsageError("--fraction and --sample both say how many; give one of them")
    index = Index.open(path)
    if fraction is not None:
        count = max(1, round(len(index) * fraction))
    with progress_bar(doing="decoding") as progress:
        found = lint_index(index, count, seed=seed, jobs=jobs, progress=progress)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
    else:
        _print(found, path)
    return int(any(note.grade == "broken" for note in found.notes))


def _print(found: Result, path: str) -> None:
    counts = {grade: sum(note.grade == grade for note in found.notes) for grade in _GRADES}
    told = ", ".join(f"{n:,} {grade}" for grade, n in counts.items())
    drawn = "" if found.seed is None else f" (drawn with seed {found.seed})"
    say(
        f"{path}: {found.samples:,} of {counted(found.of, 'sample')} decoded{drawn}, "
        f"{counted(found.items, 'item')}: {told}"
    )
    for kind, n in found.skipped.items():
        say(f"not looked into: {n:,} of kind {kind}")
    for grade in _GRADES:
        notes = [note for note in found.notes if note.grade == grade]
        for note in notes[:_SHOWN]:
            label = f" ({note.item})" if note.item else ""
            where = "" if note.path.endswith(note.key) else f" in {note.path}"
            say(f"{grade:<7} {note.key}{label}{where}: {note.text}")
        if len(notes) > _SHOWN:
            say(f"{'':<7} and {len(notes) - _SHOWN:,} more {grade} (--json lists all)")
