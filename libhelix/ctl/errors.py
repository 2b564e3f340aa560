"""helixctl errors: the samples of an index that training could not decode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

import click
import msgspec

from libhelix.bad_samples import BadSample, list_of, noted
from libhelix.ctl.output import counted, say
from libhelix.index.cache import open_or_build
from libhelix.index.quarantine import entries

_SHOWN = 20


@click.command(
    epilog="Example: helixctl errors train.arrow",
    short_help="List samples that training could not decode.",
)
@click.argument("source", metavar="INDEX", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print every failure as JSON.")
def errors(source: str, as_json: bool) -> int:
    """List the samples of INDEX that this user's jobs could not decode, the latest first.

    What to do about them: fetch or encode their files again, or leave them out, with helixctl quarantine.
    """
    index = open_or_build(source)
    found = noted(index)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
        return 0
    if not found:
        say(f"{source}: no sample has failed in a job of yours (as {list_of(index)} says)")
        return 0
    _print(source, found, {entry.key for entry in entries(index)})
    return 0


def _print(source: str, found: Sequence[BadSample], out: set[str]) -> None:
    times: dict[str, int] = {}
    last: dict[str, BadSample] = {}
    for bad in found:
        times[bad.key] = times.get(bad.key, 0) + 1
        last.pop(bad.key, None)
        last[bad.key] = bad
    say(f"{source}: {counted(len(last), 'sample')} failed, {counted(len(found), 'time')} in all")
    for bad in list(reversed(last.values()))[:_SHOWN]:
        when = datetime.fromtimestamp(bad.time).strftime("%Y-%m-%d %H:%M")
        key = bad.key + (" (in quarantine)" if bad.key in out else "")
        why = bad.error.removeprefix(f"{bad.path}: ").removeprefix(f"{bad.key}: ")
        say(f"{when}  {times[bad.key]:>4,}x  {key}: {why}")
    if len(last) > _SHOWN:
        say(f"and {len(last) - _SHOWN:,} more (--json lists all)")
