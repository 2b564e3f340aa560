"""helixctl quarantine: samples that training leaves out."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click
import msgspec

from libhelix.bad_samples import noted
from libhelix.ctl.keys import near_keys
from libhelix.ctl.output import say
from libhelix.errors import UsageError
from libhelix.index.cache import open_or_build, progress_bar
from libhelix.index.lint import lint_samples
from libhelix.index.quarantine import Entry, entries, file_of, keep, locked, rows_of
from libhelix.index.read import Index


@click.group(short_help="Leave samples out of training.")
def quarantine() -> None:
    """Leave samples out of training, by a list beside the index: INDEX.quarantine.

    Loaders read it when they are made; one that is restored inside an epoch goes on as it was begun, until it
    is made or restored between epochs. Every node needs the same list.
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
        say(f"{entry.key}: {entry.why}" if entry.why else entry.key)
    if not kept:
        say(f"{source}: no sample is left out")


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
    """Leave samples out of loaders that are made from now on: of a key that repeats, all."""
    if not keys and failed is None:
        raise UsageError("name the keys to leave out, or give --failed TIMES")
    index = open_or_build(source)
    _check_keys(index, keys)
    new = {key: Entry(key, why) for key in keys}
    if failed is not None:
        new |= {entry.key: entry for entry in _failing(index, failed)}
    with locked(index):
        kept = {entry.key: entry for entry in entries(index)}
        added = [key for key in new if key not in kept]
        for key, entry in new.items():
            # What somebody left out stays so, with the reason, also when it fails.
            if key not in kept or (entry.why and not entry.failed):
                kept[key] = entry
        keep(index, list(kept.values()))
    say(f"{file_of(index)}: {_counted(index, added)} added, {_counted(index, list(kept))} left out")


@quarantine.command(epilog="Example: helixctl quarantine rm train.arrow clips/0017.mp4")
@click.argument("source", metavar="INDEX", type=click.Path())
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
def rm(source: str, keys: tuple[str, ...]) -> None:
    """Take samples in again."""
    index = open_or_build(source)
    with locked(index):
        kept = {entry.key: entry for entry in entries(index)}
        for key in keys:
            if key not in kept:
                raise UsageError(f"{key!r} is not in quarantine; see helixctl quarantine ls {source}")
        left = [key for key in kept if key not in keys]
        keep(index, [kept[key] for key in left])
    gone = list(dict.fromkeys(keys))
    say(f"{file_of(index)}: {_counted(index, gone)} taken in again, {_counted(index, left)} left out")


@quarantine.command(epilog="Example: helixctl quarantine retry train.arrow")
@click.argument("source", metavar="INDEX", type=click.Path())
def retry(source: str) -> int:
    """Decode what is left out since it failed, and take in what is all right, such as files fetched again.

    What somebody left out (quarantine add KEY) stays out. So does a file that has changed since it was
    indexed: run helixctl index first. Exits with 1 where something that failed stays out.
    """
    index = open_or_build(source)
    kept = entries(index)
    failed = [entry for entry in kept if entry.failed]
    rows = rows_of(index, [entry.key for entry in failed])
    why: dict[int, str] = {}
    if rows:
        numbers = sorted(row for some in rows.values() for row in some)
        with progress_bar(doing="decoding") as progress:
            found = lint_samples(index, numbers, progress=progress)
        why = {note.sample: note.text for note in reversed(found.notes) if note.grade == "broken"}
    broken = {key: why[row] for key, some in rows.items() for row in some if row in why}
    mended = {entry.key for entry in failed} - broken.keys()
    with locked(index):  # others may have changed it meanwhile
        keep(index, [entry for entry in entries(index) if not (entry.failed and entry.key in mended)])
    for entry in failed:
        if entry.key in broken:
            say(f"stays out: {entry.key}: {broken[entry.key]}")
        else:
            say(f"in again: {entry.key}" if entry.key in rows else f"no sample any more: {entry.key}")
    by_hand = len(kept) - len(failed)
    if by_hand:
        say(f"not looked at: {by_hand:,} that somebody left out")
    return int(bool(broken))


def _counted(index: Index, keys: Sequence[str]) -> str:
    """How many samples these keys are; keys may repeat."""
    n = sum(map(len, rows_of(index, keys).values()))
    return f"{n:,}" if n == len(set(keys)) else f"{n:,} (of {len(set(keys)):,} keys)"


def _failing(index: Index, least: int) -> list[Entry]:
    times: dict[str, int] = {}
    why: dict[str, str] = {}
    for bad in noted(index):
        times[bad.key] = times.get(bad.key, 0) + 1
        why[bad.key] = bad.error.removeprefix(f"{bad.path}: ")
    there = rows_of(index, list(times))
    return [Entry(key, why[key], failed=True) for key, n in times.items() if n >= least and key in there]


def _check_keys(index: Index, keys: Sequence[str]) -> None:
    there = rows_of(index, keys)
    for key in keys:
        if key not in there:
            raise UsageError(f"{index.path} has no sample {key!r}{near_keys(index, key)}")
