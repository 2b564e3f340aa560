"""helixctl doctor: what of this machine, its software and its settings stands in a job's way."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from libhelix.ctl.checks import accelerator, cores, daemons, launch, memory, settings, software
from libhelix.ctl.checks.finding import Finding, Grade, problem
from libhelix.ctl.output import counted
from libhelix.errors import HelixError

_COLOURS: dict[Grade, str] = {"ok": "green", "warning": "yellow", "problem": "bold red"}
_EXAMPLES = """\b
Examples:
  helixctl doctor
  helixctl doctor --json
  srun helixctl doctor                             as the ranks of a job see it
  torchrun --nnodes 2 ... --no-python helixctl doctor
"""


@click.command(epilog=_EXAMPLES, short_help="Say what keeps jobs from running well here, and the cure.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def doctor(as_json: bool) -> int:
    """Look at memory, cores, limits, launcher, other nodes, versions, daemons, accelerator and settings, and
    say what is wrong with the cure.

    Looks as a trainer would that is started here, now, by this user. Exits with 1 if there is a problem,
    which keeps some job from running; warnings alone are 0.
    """
    found = list(examine())
    if as_json:
        click.echo(json.dumps({"findings": [asdict(f) for f in found], **_numbers(found)}))
    else:
        _print(found)
    return int(any(f.grade == "problem" for f in found))


def examine() -> Iterator[Finding]:
    """All checks; one that cannot be made is a finding itself."""
    told = daemons.Daemons(None)

    def of_daemons() -> list[Finding]:
        nonlocal told
        told = daemons.read()
        return daemons.judge(told)

    checks: tuple[tuple[str, Callable[[], list[Finding]]], ...] = (
        ("versions", lambda: software.judge(software.read())),
        ("daemons", of_daemons),
        ("settings", lambda: settings.judge(settings.read())),
        ("cores", lambda: cores.judge(cores.read())),
        ("memory", lambda: memory.judge(memory.read(told.rings_bytes()))),
        ("launcher", lambda: launch.judge(os.environ, launch.read())),
        ("accelerator", lambda: accelerator.judge(accelerator.read())),
    )
    for name, check in checks:
        try:
            yield from check()
        except (OSError, HelixError) as e:
            yield problem(name, f"cannot be looked at: {e}", "see whether /proc, /sys and /dev are there")


def _numbers(found: Sequence[Finding]) -> dict[str, int]:
    return {f"{grade}s": sum(f.grade == grade for f in found) for grade in ("problem", "warning")}


def _print(found: Sequence[Finding]) -> None:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for one in found:
        table.add_row(Text(one.grade, _COLOURS[one.grade]), Text(one.name), Text(one.found))
        if one.cure:
            table.add_row("", "", Text(f"-> {one.cure}", "bold"))
    console = Console()
    console.print(table)
    n = _numbers(found)
    numbers = ", ".join(
        [counted(n["problems"], "problem"), counted(n["warnings"], "warning"), f"{len(found)} looked at"]
    )
    console.print(f"\n{numbers}", highlight=False)
