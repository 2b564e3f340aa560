"""`python -m bench node`: workloads, look-aheads and systems, several times."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from rich.console import Console

from bench.clips import default_cache
from bench.machine import circumstances
from bench.node.campaign import Campaign, Plan, point_list
from bench.node.prepare import Shape
from bench.node.records import Folder, Head
from bench.node.report import write
from bench.node.system import MODULES, system
from bench.node.workloads import BY_NAME, WORKLOADS
from bench.results import check_table, console_for, failures_shown, load_notes, progress_on, verdicts

TABLES = ("skew", "rho", "micro", "storage")


class Names(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions alone
    """A comma-separated list of names, or "all"."""

    name = "names"

    def __init__(self, known: tuple[str, ...]) -> None:
        self._known = known

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The names; a usage error for one that is none."""
        if isinstance(value, tuple):
            return value
        if value == "all":
            return self._known
        found = tuple(str(value).split(","))
        for one in found:
            if one not in self._known:
                self.fail(f"{one!r} is none of {', '.join(self._known)}", param, ctx)
        return found


def _numbers(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in value.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 2:
        raise click.BadParameter("numbers of 2 or more, such as 3,8")
    return found


@click.command(epilog="Example:  python -m bench node --workloads heavy-tail --runs 1 --out results")
@click.option(
    "--tier",
    type=click.Choice(["real", "emulated"]),
    default="emulated",
    show_default=True,
    help="Decode, or sleep for as long as that takes.",
)
@click.option("--workloads", type=Names(tuple(w.name for w in WORKLOADS)), default="all", show_default=True)
@click.option(
    "--systems",
    type=Names(tuple(MODULES)),
    default="datahelix,dataloader,dataloader-samples,dataloader-windows",
    show_default=True,
)
@click.option("--ranks", default=8, show_default=True, type=click.IntRange(1))
@click.option(
    "--batch", default=4, show_default=True, type=click.IntRange(1), help="Samples of a rank in a step."
)
@click.option("--cores", type=click.IntRange(1), help="That decode. [default: 32 emulated, all real ones]")
@click.option(
    "--rho",
    default=0.9,
    show_default=True,
    type=click.FloatRange(0.05, 4.0),
    help="Decode work, as a share of the cores, were all ranks level.",
)
@click.option(
    "--lookahead",
    default="3",
    show_default=True,
    callback=_numbers,
    help="Batches a rank may have, such as 2,3,4,8,16.",
)
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1), help="Of every system.")
@click.option("--steps", default=32, show_default=True, type=click.IntRange(8), help="Of a run, that count.")
@click.option("--samples", default=256, show_default=True, type=click.IntRange(1), help="Of a workload.")
@click.option(
    "--window-ms",
    default=300.0,
    show_default=True,
    type=click.FloatRange(1.0),
    help="An emulated step takes so long, if ranks are level: it sets the dilation.",
)
@click.option("--tables", type=Names(TABLES), default=(), help="Separate tables: skew, rho, micro, storage.")
@click.option("--seed", default=0, show_default=True)
@click.option("--data", type=click.Path(exists=True, path_type=Path), help="An index of your own.")
@click.option("--recipe", help="For --data, such as libhelix.recipes:Clip.")
@click.option("--param", multiple=True, help="Of the recipe, such as frames=8; may be repeated.")
@click.option(
    "--cache", type=click.Path(path_type=Path), help="Clips. [default: $HELIX_CACHE, ~/.cache/helix]"
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="A folder for the results.")
@click.option("--check", is_flag=True, help="Print every target; exit code 1 if one is missed.")
def node(
    tier: str,
    workloads: tuple[str, ...],
    systems: tuple[str, ...],
    ranks: int,
    batch: int,
    cores: int | None,
    rho: float,
    lookahead: tuple[int, ...],
    runs: int,
    steps: int,
    samples: int,
    window_ms: float,
    tables: tuple[str, ...],
    seed: int,
    data: Path | None,
    recipe: str | None,
    param: tuple[str, ...],
    cache: Path | None,
    out: Path,
    check: bool,
) -> None:
    """Compare ways to feed the ranks of a node: same samples, cores and look-ahead; simulated accelerators.

    Results: OUT/report.md, OUT/results.json, and every wait in OUT/raw. `bench report OUT` makes them again.
    """
    console = console_for(None)
    if (data is None) != (recipe is None):
        raise click.UsageError("--data and --recipe belong together")
    if tier == "real" and (
        emulated := {"skew", "storage"} & set(tables) | {"datahelix-oracle"} & set(systems)
    ):
        raise click.UsageError(f"{', '.join(sorted(emulated))}: only with --tier emulated")
    own = tuple(sorted(os.sched_getaffinity(0)))
    shape = Shape(
        ranks=ranks,
        batch=batch,
        micro_batches=1,
        cores=own if tier == "emulated" else own[: cores or len(own)],
        emulated_cores=(cores or 32) if tier == "emulated" else None,
        window_s=window_ms / 1e3,
        rho=rho,
        steps=steps,
        warm_up=16,
        seed=seed,
    )
    own_data = (data, recipe, param) if data is not None and recipe is not None else None
    plan = Plan(
        points=point_list(("own",) if own_data else workloads, lookahead, tables),
        systems=systems,
        shape=shape,
        runs=runs,
        samples=samples,
        own_data=own_data,
    )
    with failures_shown("node", console):
        folder = Folder(out)
        skipped = {name: why for name in systems if (why := system(name).missing()) is not None}
        found = circumstances()
        for note in (*load_notes(found), *(f"{name} is skipped: {why}" for name, why in skipped.items())):
            console.print(f"note: {note}", style="yellow", markup=False, highlight=False)
        head = Head(
            tier=tier,
            circumstances=found,
            settings={name: str(value) for name, value in click.get_current_context().params.items()},
            systems={name: system(name).title for name in systems},
            workloads={name: BY_NAME[name].title if name in BY_NAME else name for name in plan.workloads},
            skipped=skipped,
        )
        folder.begin(head)
        with progress_on(console) as progress:
            Campaign(plan, folder, head, cache or default_cache(), progress, console).run()
    show(folder, console, check=check)


def show(folder: Folder, console: Console, *, check: bool) -> None:
    """Write the report, say where it is; exit code 1 if `check` finds a target missed."""
    results = write(folder)
    console.print(f"{folder.path / 'report.md'}", markup=False, highlight=False)
    for failure in results.failures:
        first = failure.error.splitlines()[0]
        console.print(
            f"failed: {failure.point.workload}, {failure.system}: {first}", style="red", markup=False
        )
    if check:
        found = verdicts(results.summary, results.targets)
        console.print(check_table(found))
        if not all(v.met for v in found):
            sys.exit(1)
    if not results.cells:
        console.print("nothing was measured", style="bold red")
        sys.exit(1)
    if results.head.stopped:
        console.print("stopped; what was measured is in the report", style="bold red")
        sys.exit(130)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--check", is_flag=True, help="Print every target; exit code 1 if one is missed.")
def report(folder: Path, check: bool) -> None:
    """Make the report of a node benchmark again, from the raw waits in FOLDER."""
    console = console_for(None)
    with failures_shown("report", console):
        show(Folder(folder), console, check=check)
