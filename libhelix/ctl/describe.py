"""helixctl describe: the rows of an index, stored beside it, and what planning will make of them."""

from __future__ import annotations

import json
from typing import Any

import click
import msgspec
import numpy as np

from libhelix.ctl.batching import parsed
from libhelix.ctl.figures import table
from libhelix.ctl.output import counted, say
from libhelix.ctl.recipes import recipe_of, recipe_options, rows_table, spreads
from libhelix.errors import Oversize, UsageError
from libhelix.index.cache import open_or_build, progress_bar
from libhelix.index.read import Index
from libhelix.plan.forecast import Forecast, forecast, too_large
from libhelix.plan.planner import Planner
from libhelix.recipe import Recipe
from libhelix.recipes.describe import describe_all
from libhelix.recipes.rows import Rows, check_bytes, check_writable, path_of, spec_of
from libhelix.session import naming
from libhelix.wire.settings import Batching, Packed, Settings, TokenBudget

_SHOWN = 10
_COUNT = click.IntRange(min=1, max=1 << 20)


@click.command(
    epilog="Example: helixctl describe train.arrow --recipe libhelix.recipes:Clip --param frames=8 "
    "--param size=[224,224] --batching 'TokenBudget(16384)' --ranks 8",
    short_help="Store what samples cost, and plan with it.",
)
@click.argument("paths", metavar="SRC...", type=click.Path(), nargs=-1, required=True)
@recipe_options(required=True, help="What describes the samples.")
@click.option("--seed", type=int, default=0, help="Seed of the order and of random draws.  [default: 0]")
@click.option(
    "--batching",
    "expression",
    metavar="EXPR",
    help="Plan epoch 0 with it, as in Python: \"Buckets(80, same_kind='step')\".",
)
@click.option("--ranks", type=_COUNT, help="Of the plan: data-parallel ranks.  [default: 1]")
@click.option("--micro-batches", type=_COUNT, help="Of the plan: per rank and step.  [default: 1]")
@click.option("--shuffle-block", type=_COUNT, help="Of the plan: neighbours kept together.  [default: 1]")
@click.option(
    "--end", type=click.Choice(["drop", "pad"]), help="Of the plan: the end of an epoch.  [default: drop]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def describe(
    paths: tuple[str, ...],
    name: str,
    params: tuple[str, ...],
    seed: int,
    expression: str | None,
    as_json: bool,
    **plan_options: Any,
) -> None:
    """Describe all samples of SRC with a recipe, on all cores, and store the rows beside the index.

    SRC is what a loader takes: an index, or media files and folders, whose index is cached. Loaders with this
    source and recipe then have an exact len(). With --batching, also show the plan of epoch
    0: steps, fill, balance.
    """
    batching = _batching(expression, plan_options)
    recipe = recipe_of(name, params)
    index = open_or_build(paths)
    planner = (
        Planner(_settings(index, recipe, batching, seed, plan_options)) if batching is not None else None
    )
    output = path_of(index, recipe)
    check_writable(output)
    with progress_bar(doing="describing") as progress:
        rows = describe_all(index, recipe, seed=seed, progress=progress)
    rows.write(output)
    plan, large = None, list[str]()
    if planner is not None:
        check_bytes(rows, planner.settings.batching)
        try:
            plan = forecast(planner, rows)
        except Oversize as e:
            raise naming(e, lambda i: index[i].key) from e
        large = [index[i].key for i in too_large(planner, rows)]
    if as_json:
        click.echo(json.dumps(_result(rows, plan, output, large)))
        return
    _print(rows, output)
    if batching is not None and planner is not None and plan is not None:
        _print_plan(plan, planner.settings, batching, len(rows.errors))
        _print_some("too large  ", large)


# ---- what was asked ------------------------------------------------------------------------------------


def _batching(expression: str | None, options: dict[str, Any]) -> Batching | None:
    if expression is not None:
        return parsed(expression)
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"--{name.replace('_', '-')} is of a plan; add --batching 'FixedBatch(8)'")
    return None


def _planned(batching: Batching) -> Batching:
    """What is planned: rows are those of whole samples, and those that are too large are counted."""
    if isinstance(batching, TokenBudget | Packed):
        return msgspec.structs.replace(batching, oversize="skip")
    return batching


def _settings(
    index: Index, recipe: Recipe, batching: Batching, seed: int, options: dict[str, Any]
) -> Settings:
    return Settings(
        recipe=spec_of(recipe),
        index_fingerprint=index.fingerprint,
        index_samples=len(index),
        batching=_planned(batching),
        seed=seed,
        shuffle=True,
        dp_size=options["ranks"] or 1,
        replicas=1,
        micro_batches=options["micro_batches"] or 1,
        ring=3,
        on_bad="mask",
        end=options["end"] or "drop",
        shuffle_block=options["shuffle_block"] or 1,
    )


# ---- what came of it -----------------------------------------------------------------------------------


def _result(rows: Rows, plan: Forecast | None, output: str, large: list[str]) -> dict[str, Any]:
    """All of it as plain JSON values."""
    origin = rows.origin
    return {
        "output": output,
        "samples": len(rows),
        "recipe": str(origin.recipe),
        "params": msgspec.json.decode(origin.recipe.params),
        "seed": origin.seed,
        "drawn": origin.drawn,
        "spread": spreads(rows),
        "groups": _groups(rows),
        "failed": list(rows.errors.values()),
        "plan": msgspec.to_builtins(plan),
        "too_large": large,
    }


def _groups(rows: Rows) -> dict[str, int]:
    good = np.ones(len(rows), dtype=bool)
    good[list(rows.errors)] = False
    counts = np.bincount(rows.group_of[good], minlength=len(rows.groups)).tolist()
    found = {name: n for name, n in zip(rows.groups, counts) if n}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _print(rows: Rows, output: str) -> None:
    failed = list(rows.errors.values())
    say(f"{output}: {counted(len(rows), 'sample')} by {rows.origin.recipe}, {len(failed):,} failed")
    say(*table(rows_table(rows)))
    groups = _groups(rows)
    if set(groups) != {""}:
        some = [f"{name or '(none)'} {n:,}" for name, n in list(groups.items())[:_SHOWN]]
        more = f" and {len(groups) - _SHOWN:,} more" if len(groups) > _SHOWN else ""
        say(f"groups   {', '.join(some)}{more}")
    _print_some("failed   ", failed)
    if rows.origin.drawn:
        say(
            f"Costs depend on random draws: the rows hold for seed {rows.origin.seed} and epoch "
            f"{rows.origin.epoch} only; len(loader) is not known for other epochs."
        )


def _print_some(title: str, texts: list[str]) -> None:
    for text in texts[:_SHOWN]:
        say(f"{title}{text}")
    if len(texts) > _SHOWN:
        say(f"{' ' * len(title)}and {len(texts) - _SHOWN:,} more (--json lists all)")


_TOO_LARGE = {
    "error": 'these raise Oversize, unless oversize="skip", or "shrink" where the recipe can',
    "skip": "these are skipped",
    "shrink": "these are shrunk and come, or raise Oversize where the recipe cannot",
}


def _print_plan(plan: Forecast, settings: Settings, batching: Batching, failed: int) -> None:
    """`batching` is what was asked for, `settings` what was planned; `failed` samples are planned without
    costs."""
    places = f"{settings.dp_size:,} ranks x {settings.micro_batches:,} micro-batches"
    say(f'epoch 0 with {_shown(batching)}, {places}, end="{settings.end}":')
    left_out = counted(plan.left_out, "sample")
    if plan.too_large and isinstance(batching, TokenBudget | Packed):
        what = _TOO_LARGE[batching.oversize]
        left_out += f", {plan.too_large:,} of them larger than a micro-batch: {what}"
    lines = [("steps", f"{plan.steps:,}"), ("left out", left_out)]
    if failed:
        what = 'they hold places without costs: masked, unless on_bad="replace" or "raise"'
        lines.append(("failed", f"{counted(failed, 'sample')}, {what}"))
    lines += [
        (f"max/mean {name}", f"{found.mean:.3f} over the ranks of a step, p95 {found.p95:.3f}")
        for name, found in plan.balance.items()
    ]
    shares = {
        "fill": (plan.fill, "of the budget, mean of the micro-batches"),
        "padding": (plan.padding, "of the packs"),
        "deferred": (plan.deferred, "of the samples, to the next window"),
        "fillers": (plan.fillers, "of the places"),
    }
    lines += [(name, f"{share:.1%} {of}") for name, (share, of) in shares.items() if share is not None]
    lines.append(("steps", f"with a rank without a sample: {plan.steps_with_idle_rank:,} of {plan.steps:,}"))
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        say(f"  {name:<{width}}  {text}")


def _shown(batching: Batching) -> str:
    """As it is written: the first argument, and what is not by default."""
    first, *others = msgspec.structs.fields(batching)
    changed = [(f.name, value) for f in others if (value := getattr(batching, f.name)) != f.default]
    words = [f"{getattr(batching, first.name)}", *(f"{name}={value!r}" for name, value in changed)]
    return f"{type(batching).__name__}({', '.join(words)})"
