"""helixctl index: build an index file."""

from __future__ import annotations

import json

import click

from libhelix.index.build import BuildReport, build
from libhelix.index.cache import progress_bar

_SHOWN = 10


@click.command(
    epilog="Example: helixctl index /data/videos -o train.arrow",
    short_help="Build an index of media files.",
)
@click.argument("sources", metavar="SRC...", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(), help="The index file to write.")
@click.option("--jobs", type=click.IntRange(min=1), help="Scanning processes.  [default: all cores]")
@click.option(
    "--tokenizer",
    type=click.Path(),
    help="A tokenizer.json: count the tokens of texts, to plan packs of them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def index(
    sources: tuple[str, ...], output: str, jobs: int | None, tokenizer: str | None, as_json: bool
) -> None:
    """Index the videos, images, sounds, texts (.txt) and stored arrays (.npy, .safetensors) in SRC: files,
    or directories with all that is below them.

    What a file is follows from its content. Files that cannot be used are left out and listed with their
    reason. The media are not copied; the index names them below their common directory.
    """
    with progress_bar() as progress:
        report = build(sources, output, jobs=jobs, progress=progress, tokenizer=tokenizer)
    if as_json:
        refused = [{"path": p, "reason": r} for p, r in report.refused]
        result = {"samples": report.samples, "refused": refused, "fingerprint": report.fingerprint}
        click.echo(json.dumps(result | {"output": output}))
    else:
        _print(report, output)


def _print(report: BuildReport, output: str) -> None:
    click.echo(f"{output}: {_count(report.samples, 'sample')}, fingerprint {report.fingerprint}")
    if not report.refused:
        return
    click.echo(f"{_count(len(report.refused), 'file')} left out:")
    for _, reason in report.refused[:_SHOWN]:
        click.echo(f"  {reason}")
    if len(report.refused) > _SHOWN:
        click.echo(f"  and {len(report.refused) - _SHOWN} more (--json lists all)")


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")
