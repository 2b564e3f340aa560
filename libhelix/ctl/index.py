"""helixctl index: build an index file."""

from __future__ import annotations

import json
import os
from typing import Literal

import click
import msgspec

from libhelix.ctl.output import say
from libhelix.index.build import BuildReport, build
from libhelix.index.cache import progress_bar
from libhelix.index.formats import Options
from libhelix.index.journal import path_of
from libhelix.index.sources import FORMATS

_SHOWN = 10


_EXAMPLES = """\b
Examples:
  helixctl index /data/videos -o train.arrow                    folders, recursively
  helixctl index '/data/2024-*/*.mp4' -o train.arrow            files that match
  helixctl index /data/pairs --group stem -o train.arrow        a.mp4 with a.txt
  helixctl index /data/frames --group folder -o train.arrow     a folder of frames a film
  helixctl index 'shards/*.tar' -o train.arrow                  WebDataset shards
  helixctl index llava.jsonl --media-root coco -o train.arrow   JSONL, a line a sample
  helixctl index 'data/*.parquet' -o train.arrow                Parquet with paths
  helixctl index 'data/*.parquet' --extract media -o train.arrow   or with content
"""


@click.command(epilog=_EXAMPLES, short_help="Build an index of media files.")
@click.argument("sources", metavar="SRC...", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(), help="The index file to write.")
@click.option("--media-root", type=click.Path(), help="Where paths in JSONL and Parquet begin.")
@click.option(
    "--group",
    type=click.Choice(["stem", "folder"]),
    help="Join files that differ in their suffix alone, or all files of a folder.",
)
@click.option("--extract", metavar="DIR", type=click.Path(), help="Copy what Parquet holds to tars in DIR.")
@click.option("--ignore-zeros", is_flag=True, help="Read on behind the end of a tar, as of joined ones.")
@click.option("--keep-incomplete", is_flag=True, help="Keep samples that lack what most others have.")
@click.option("--rebuild", is_flag=True, help="Open all files again, also unchanged ones.")
@click.option("--jobs", type=click.IntRange(min=1), help="Scanning processes.  [default: all cores]")
@click.option(
    "--tokenizer",
    type=click.Path(),
    help="A tokenizer.json: count the tokens of texts, to plan packs of them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def index(
    sources: tuple[str, ...],
    output: str,
    media_root: str | None,
    group: Literal["stem", "folder"] | None,
    extract: str | None,
    ignore_zeros: bool,
    keep_incomplete: bool,
    rebuild: bool,
    jobs: int | None,
    tokenizer: str | None,
    as_json: bool,
) -> None:
    """Index the media in SRC: files, folders with all that is below them, patterns, tar shards, JSONL and
    Parquet, also mixed.

    What a file is follows from its content. What cannot be used is left out and listed with its reason. The
    media are not copied; the index names them below their common folder. Where OUTPUT is there already, only
    new and changed files are opened; after Ctrl-C the same command goes on where it was.
    """
    options = Options(
        media_root=os.path.abspath(media_root) if media_root is not None else None,
        group=group or "",
        extract=extract,
        ignore_zeros=ignore_zeros,
        keep_incomplete=keep_incomplete,
    )
    again = os.path.exists(output)
    try:
        with progress_bar() as progress:
            report = build(
                sources,
                output,
                options=options,
                rebuild=rebuild,
                jobs=jobs,
                progress=progress,
                tokenizer=tokenizer,
            )
    except KeyboardInterrupt:
        if os.path.exists(path_of(output)):
            say(f"what was read is in {path_of(output)}: the same command goes on there", err=True)
        raise
    if as_json:
        refused = [{"path": p, "reason": r} for p, r in report.refused]
        click.echo(json.dumps({**msgspec.to_builtins(report), "refused": refused, "output": output}))
    else:
        _print(report, output, again)


def _print(report: BuildReport, output: str, again: bool) -> None:
    say(f"{output}: {_count(report.samples, 'sample')}, fingerprint {report.fingerprint}")
    if again:
        say(
            f"{report.added} added, {report.changed} changed, {report.removed} removed; "
            f"{_count(report.reused, 'file')} not opened again"
        )
    for text in report.warnings[:_SHOWN]:
        say(f"warning: {text}")
    if len(report.warnings) > _SHOWN:
        say(f"  and {len(report.warnings) - _SHOWN} more warnings (--json lists all)")
    if not report.refused:
        return
    say(f"{_count(len(report.refused), _noun(report))} left out:")
    for _, reason in report.refused[:_SHOWN]:
        say(f"  {reason}")
    if len(report.refused) > _SHOWN:
        say(f"  and {len(report.refused) - _SHOWN} more (--json lists all)")


def _noun(report: BuildReport) -> str:
    """Of a shard or a list, mostly a member or a line is left out."""
    holders = any(path.lower().endswith(tuple(FORMATS)) for path, _ in report.refused)
    return "part" if holders else "file"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")
