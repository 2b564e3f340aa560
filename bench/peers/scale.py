"""`python -m bench peers-scale`: what planning, dealing out and sharing cost the leader of many nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from random import Random

import click
import msgspec
from rich.table import Table

from bench.machine import circumstances
from bench.plan.measure import settings as settings_of
from bench.results import Results, Target, conclude, console_for, failures_shown, load_notes, result_options
from helixd.core.leader import share_of
from helixd.core.windows import Ahead
from libhelix.plan.placement import Placement, place
from libhelix.plan.planner import Planner
from libhelix.wire import messages as m
from libhelix.wire import peer as p
from libhelix.wire.settings import Base, FixedBatch

NODES = (4, 64, 1024)
RANKS_PER_NODE = 8
LEADER_MB_S, NODE_KB_S = 10.0, 200.0
"""Of control, at a step a second."""
TARGETS = (
    Target("nodes_1024_leader_mb_per_step", "<=", LEADER_MB_S),
    Target("nodes_1024_node_kb_per_step", "<=", NODE_KB_S),
)
_SCHEMA: m.Schema = (
    m.FieldSpec("video", "uint8", "stack", 4, rows_per_unit=1),
    m.FieldSpec("labels", "int64", "pad", 1),
)
_FRAMES = 16


class ScaleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One window of `regroup` steps, `samples` a rank and step, each of `parts` parts."""

    nodes: tuple[int, ...]
    samples: int = 8
    regroup: int = 4
    parts: int = 4


@click.command(name="peers-scale")
@click.option(
    "--nodes",
    multiple=True,
    type=click.IntRange(1, 4096),
    help="Only for so many; may be repeated. Targets of others count as missed.  [default: 4 64 1024]",
)
@result_options
def scale(nodes: tuple[int, ...], json_to: Path | None, check: bool) -> None:
    """Plan, deal out and share a window of video for many nodes of 8 ranks: CPU time and bytes of a step."""
    console = console_for(json_to)
    with failures_shown("peers-scale", console):
        settings = ScaleSettings(nodes=nodes or NODES)
        found = circumstances()
        figures: dict[str, float] = {}
        for count in settings.nodes:
            figures |= {f"nodes_{count}_{name}": v for name, v in measured(count, settings).items()}
        results = Results(
            command="peers-scale",
            figures=figures,
            targets=TARGETS,
            circumstances=found,
            settings=msgspec.to_builtins(settings),
            notes=load_notes(found),
        )
        conclude(results, table(figures, settings), console, json_to=json_to, check=check)


def measured(nodes: int, settings: ScaleSettings) -> dict[str, float]:
    """Of a step, at so many nodes."""
    ranks, steps = nodes * RANKS_PER_NODE, settings.regroup
    batching = FixedBatch(settings.samples, regroup=steps)
    planner = Planner(settings_of(2 * steps * ranks * settings.samples, batching, ranks))
    rng, opening = Random(0), planner.open(Base(0, 0, 0))
    while wanted := opening.wants_anew():
        for draw in wanted:
            opening.put(draw, _row(draw, rng, settings.parts))
    began_s = time.process_time()
    window = planner.plan(opening)
    planned_s = time.process_time()
    of_node = tuple(tuple(range(a, a + RANKS_PER_NODE)) for a in range(0, ranks, RANKS_PER_NODE))
    speeds = tuple(1000 if i % 20 else 300 for i in range(nodes))
    place(window.steps, opening.rows, Placement(of_node, speeds))
    placed_s = time.process_time()
    ahead = Ahead(window, {d: opening.rows[d] for d in window.draws()}, None)
    sizes = [len(p.seal(share_of(ahead, of, _SCHEMA, None))) for of in of_node]
    shared_s = time.process_time()
    node_bytes = sum(sizes) / len(sizes) / steps
    return {
        "plan_ms_per_step": (planned_s - began_s) / steps * 1e3,
        "place_ms_per_step": (placed_s - planned_s) / steps * 1e3,
        "share_ms_per_step": (shared_s - placed_s) / steps * 1e3,
        "bytes_per_sample": node_bytes / (RANKS_PER_NODE * settings.samples),
        "node_kb_per_step": node_bytes / 1e3,
        "leader_mb_per_step": node_bytes * (nodes - 1) / 1e6,
    }


def _row(draw: int, rng: Random, parts: int) -> m.Row:
    cuts = tuple(_FRAMES * i // parts for i in range(1, parts))
    us = tuple(int(rng.lognormvariate(9, 1)) for _ in range(parts))
    tokens = rng.randrange(200, 2000)
    return m.Row(
        draw, ((_FRAMES, 224, 224, 3), (tokens,)), {"tokens": tokens}, _FRAMES, cuts, us, kind="h264"
    )


def table(figures: Mapping[str, float], settings: ScaleSettings) -> Table:
    """What people read."""
    shown = Table(
        title=f"{RANKS_PER_NODE} ranks a node, {settings.samples} samples a rank and step",
        title_justify="left",
    )
    names = (
        ("plan_ms_per_step", "plan ms"),
        ("place_ms_per_step", "deal out ms"),
        ("share_ms_per_step", "share ms"),
        ("bytes_per_sample", "bytes a sample"),
        ("node_kb_per_step", "kB to a node"),
        ("leader_mb_per_step", "MB from the leader"),
    )
    for column in ("nodes", *(title for _, title in names)):
        shown.add_column(column, justify="right")
    for count in settings.nodes:
        shown.add_row(str(count), *(f"{figures[f'nodes_{count}_{name}']:.3g}" for name, _ in names))
    return shown
