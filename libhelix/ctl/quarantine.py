"""helixctl quarantine: samples that training leaves out."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence

import click
import msgspec

from libhelix.bad_samples import noted
from libhelix.errors import UsageError
from libhelix.index.cache import open_or_build, progress_bar
from libhelix.index.lint import lint_samples
from libhelix.index.quarantine import Entry, entries, file_of, keep, rows_of
from libhelix.index.read import Index


@click.group(short_help="Leave samples out of training.")
def quarantine() -> None:
    """Leave samples out of training, by a list beside the index: INDEX.quarantine.

    Loaders read it when they are made; a job that is restored inside an epoch ends that as it was begun.
    Every node needs the same list.
    """


@quarantine.command(name="ls", epilog="Example: helixctl quarantine ls train.arrow")
@click.argument("source", metavar="INDEX", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def ls(source: str, as_json: bool) -> None:
    """List what is left out, and why."""
    kept = entries(open_or_build(source))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(kept)))
        return
    for entry in kept:
        click.echo(f"{entry.key}: {entry.why}" if entry.why else entry.key)
    if not kept:
        click.echo(f"{source}: no sample is left out")


@quarantine.command(
    epilog="Examples: helixctl quarantine add train.arrow clips/0017.mp4 --why 'wrong label'\n\n"
    "helixctl quarantine add train.arrow --failed 2"
)
@click.argument("source", metavar="INDEX", type=click.Path())
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option("--why", default="", help="Kept with the keys.")
@click.option(
    "--failed",
    type=click.IntRange(min=1),
    metavar="TIMES",
    help="Add those that failed so often: helixctl errors.",
)
def add(source: str, keys: tuple[str, ...], why: str, failed: int | None) -> None:
    """Leave samples out from the next epoch on."""
    if not keys and failed is None:
        raise UsageError("name the keys to leave out, or give --failed TIMES")
    index = open_or_build(source)
    _check_keys(index, keys)
    new = {key: Entry(key, why) for key in keys}
    if failed is not None:
        new |= {entry.key: entry for entry in _failing(index, failed)}
    kept = {entry.key: entry for entry in entries(index)}
    added = [entry for key, entry in new.items() if key not in kept]
    if new:
        keep(index, list((kept | new).values()))
    click.echo(f"{file_of(index)}: {len(added):,} added, {len(kept | new):,} left out")


@quarantine.command(epilog="Example: helixctl quarantine rm train.arrow clips/0017.mp4")
@click.argument("source", metavar="INDEX", type=click.Path())
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
def rm(source: str, keys: tuple[str, ...]) -> None:
    """Take samples in again."""
    index = open_or_build(source)
    kept = {entry.key: entry for entry in entries(index)}
    for key in keys:
        if key not in kept:
            raise UsageError(f"{key!r} is not in quarantine; see helixctl quarantine ls {source}")
    keep(index, [entry for key, entry in kept.items() if key not in keys])
    click.echo(f"{file_of(index)}: {len(keys):,} taken in again, {len(kept) - len(keys):,} left out")


@quarantine.command(epilog="Example: helixctl quarantine retry train.arrow")
@click.argument("source", metavar="INDEX", type=click.Path())
def retry(source: str) -> int:
    """Decode what is left out completely, and take in what is all right, such as files fetched again.

    A file that has changed since it was indexed is not all right: run helixctl index first. Exits with 1
    where something stays out.
    """
    index = open_or_build(source)
    kept = entries(index)
    rows = rows_of(index, [entry.key for entry in kept])
    why: dict[int, str] = {}
    if rows:
        with progress_bar(doing="decoding") as progress:
            found = lint_samples(index, sorted(rows.values()), progress=progress)
        why = {note.sample: note.text for note in reversed(found.notes) if note.grade == "broken"}
    stay = [Entry(key, why[row]) for key, row in rows.items() if row in why]
    gone = [entry.key for entry in kept if rows.get(entry.key, -1) not in why]
    keep(index, stay)
    for key in gone:
        click.echo(f"in again: {key}" if key in rows else f"no sample any more: {key}")
    for entry in stay:
        click.echo(f"stays out: {entry.key}: {entry.why}")
    return int(bool(stay))


def _failing(index: Index, least: int) -> list[Entry]:
    times: dict[str, int] = {}
    why: dict[str, str] = {}
    for bad in noted(index):
        times[bad.key] = times.get(bad.key, 0) + 1
        why[bad.key] = bad.error.removeprefix(f"{bad.path}: ")
    there = rows_of(index, list(times))
    return [Entry(key, why[key]) for key, n in times.items() if n >= least and key in there]


def _check_keys(index: Index, keys: Sequence[str]) -> None:
    there = rows_of(index, keys)
    for key in keys:
        if key not in there:
            near = difflib.get_close_matches(key, index.keys().to_pylist()[:100_000], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"{index.path} has no sample {key!r}{hint}")
