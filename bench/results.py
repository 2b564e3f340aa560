"""What every command of `python -m bench` has in common.

--json FILE   figures by name, with what they were measured on
--check       every target of the command beside its figure; exit code 1 if one falls short
exit codes    0 measured, 1 failed or a target missed, 2 usage, 130 stopped by Ctrl-C or SIGTERM
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple, TypeVar

import click
import msgspec
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.machine import Circumstances
from libhelix.errors import HelixError

SCHEMA = 2
"""Raise it when a name in the JSON changes its meaning."""

Command = TypeVar("Command", bound=Callable[..., None])


class BenchFailed(Exception):
    """The command cannot go on; the text is for the user."""


class Target(msgspec.Struct, frozen=True):
    """A promise about one figure."""

    figure: str
    bound: Literal["<=", "<", ">="]
    limit: float

    def met_by(self, value: float) -> bool:
        """Whether a value keeps the promise; NaN never does."""
        if self.bound == "<":
            return value < self.limit
        return value <= self.limit if self.bound == "<=" else value >= self.limit


class Verdict(NamedTuple):
    """A target and the figure that was measured; None where it was not."""

    target: Target
    value: float | None

    @property
    def met(self) -> bool:
        """What was not measured is not met."""
        return self.value is not None and self.target.met_by(self.value)


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of a command. `figures` are by name, with the unit at the end of the name.

    notes: what makes the figures doubtful.
    """

    schema: int = SCHEMA
    command: str
    figures: dict[str, float]
    targets: tuple[Target, ...]
    circumstances: Circumstances
    settings: Any
    notes: tuple[str, ...] = ()


def verdicts(figures: Mapping[str, float], targets: Sequence[Target]) -> list[Verdict]:
    """Every target beside its figure."""
    return [Verdict(t, figures.get(t.figure)) for t in targets]


def check_table(found: Sequence[Verdict]) -> Table:
    """What `--check` prints."""
    shown = Table(title="targets", title_justify="left", min_width=60)
    shown.add_column("figure", style="bold", no_wrap=True)
    shown.add_column("measured", justify="right", no_wrap=True)
    shown.add_column("target", justify="right", no_wrap=True)
    shown.add_column("")
    for verdict in found:
        value = "not measured" if verdict.value is None else f"{verdict.value:.4g}"
        limit = f"{verdict.target.bound} {verdict.target.limit:g}"
        shown.add_row(verdict.target.figure, value, limit, "met" if verdict.met else "[bold red]missed")
    return shown


def to_json(value: Any) -> bytes:
    """Indented JSON with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def result_options(command: Command) -> Command:
    """Adds `--json` and `--check`, as parameters `json_to` and `check`."""
    json_option = click.option(
        "--json", "json_to", type=click.Path(path_type=Path, allow_dash=True), help="Results; - is stdout."
    )
    check_option = click.option(
        "--check", is_flag=True, help="Print every target beside its figure; exit code 1 if one is missed."
    )
    return json_option(check_option(command))


def console_for(json_to: Path | None) -> Console:
    """Where people read: stderr if stdout is for JSON."""
    return Console(stderr=str(json_to) == "-")


def progress_on(console: Console) -> Progress:
    """The progress bars of all commands."""
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


@contextmanager
def failures_shown(name: str, console: Console) -> Iterator[None]:
    """Errors of the command in a line, and its exit codes. SIGTERM acts like Ctrl-C, so that children end."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        yield
    except (BenchFailed, HelixError, OSError) as e:
        console.print(f"{name} failed: {e}", style="bold red", markup=False, highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("stopped", style="bold red")
        sys.exit(130)


def show_notes(notes: Sequence[str], console: Console) -> None:
    """What makes figures doubtful, before the figures."""
    for note in notes:
        console.print(f"note: {note}", style="yellow", markup=False, highlight=False)


def conclude(
    results: Results, shown: RenderableType, console: Console, *, json_to: Path | None, check: bool
) -> None:
    """Notes, the figures as they are `shown`, JSON and targets; exit code 1 if `check` finds one missed."""
    show_notes(results.notes, console)
    console.print(shown)
    if json_to is not None and str(json_to) == "-":
        sys.stdout.buffer.write(to_json(results))
        sys.stdout.buffer.flush()
    elif json_to is not None:
        json_to.parent.mkdir(parents=True, exist_ok=True)
        json_to.write_bytes(to_json(results))
    if not check:
        return
    found = verdicts(results.figures, results.targets)
    console.print(check_table(found))
    if missed := [v.target.figure for v in found if not v.met]:
        console.print(f"{len(missed)} of {len(found)} targets missed", style="bold red")
        sys.exit(1)


def load_notes(found: Circumstances) -> tuple[str, ...]:
    """A note where others kept the machine busy; timings are to be trusted on an idle one only."""
    if found.cores_busy < 0.1 * found.machine.cores:
        return ()
    return (f"others kept {found.cores_busy:.1f} cores busy when this began: repeat it on an idle machine",)


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
