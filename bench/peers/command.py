"""`python -m bench peers`: four nodes, one of them slow, with samples dealt out by load and without."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
from rich.progress import Progress
from rich.table import Table

import libhelix as hx
from bench.machine import circumstances
from bench.peers.job import PORT, Job, write_data
from bench.peers.net import Net, net, why_not
from bench.peers.recipe import SLOWNESS, Paced, checksum_of, ids_of_one_node
from bench.results import (
    BenchFailed,
    Results,
    Target,
    conclude,
    console_for,
    failures_shown,
    load_notes,
    progress_on,
    result_options,
)
from bench.stats import median
from libhelix.index.build import build
from libhelix.recipe import Rng, Sample

TARGETS = (
    Target("dynamic_of_bound", ">=", 0.9),
    Target("alone_of_bound", "<=", 0.5),
    Target("dynamic_wire_bytes_per_sample", "<=", 1024),
    Target("remote_speedup", ">=", 1.2),
    Target("slow_link_to_alone", ">=", 0.98),
    Target("helpers_speedup", ">=", 1.5),
    Target("gate_error", "<=", 0.3),
)


class Way(NamedTuple):
    """How nodes work together: not at all ("off"), or with a placement. `mbit_s`: of the slow node's link.
    `nodes`: with ranks, where not all have some; `helpers`: without, that decode for them."""

    name: str
    title: str
    peers: str = "static"
    nbytes: int = 4096
    mbit_s: float | None = None
    nodes: int | None = None
    helpers: int = 0


_LARGE = 1 << 20
WAYS = (
    Way("alone", "every node for itself", "off"),
    Way("static", "samples decoded elsewhere"),
    Way("dynamic", "dealt out by load", "dynamic"),
    Way("alone_large", "1 MiB samples, every node for itself", "off", _LARGE),
    Way("remote_large", "1 MiB samples, decoded elsewhere", "static", _LARGE),
    Way("slow_link", "1 MiB samples, 50 Mbit/s", "static", _LARGE, 50.0),
    Way("two", "1 MiB samples, two of the nodes", "static", _LARGE, nodes=2),
    Way("two_helped", "the same, helped by the two others", "static", _LARGE, nodes=2, helpers=2),
)
_LIMIT_S = 300.0
_SAMPLES = 4096


class PeersSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Decoding takes `slow` times as long on the second node. The first `skip` steps do not count."""

    rounds: int
    steps: int
    nodes: int = 4
    ranks_per_node: int = 2
    cores_per_node: int = 2
    slow: float = 3.0
    batch: int = 8
    regroup: int = 4
    ring: int = 3
    mean_us: int = 20_000
    sigma: float = 1.0
    window_ms: float = 10.0
    skip: int = 24

    @property
    def asked_at(self) -> int:
        """The step after which daemons are asked what they did."""
        return self.steps // 2


class Round(msgspec.Struct, frozen=True):
    """What one job did: seconds of a step, what decoding allows at best, bytes that daemons sent."""

    way: str
    step_s: float
    bound_s: float
    wire_bytes: float
    slow_share: float
    """Of the decode work, what was dealt to the slow node."""
    moved: int
    """Samples of the slow node that others decoded."""
    gate_error: float | None
    """Of the time that they took to come, how far off the prediction was."""


@click.command()
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Of each way, in turn.")
@click.option("--steps", default=100, show_default=True, type=click.IntRange(40), help="Of a job.")
@result_options
def peers(rounds: int, steps: int, json_to: Path | None, check: bool) -> None:
    """Measure what nodes gain by working together where one of four decodes a third as fast: dealing samples
    out by load, and decoding samples of the late node elsewhere, over fast and slow links.

    Nodes are network namespaces, which needs root; daemons, trainers and links are real. Decoding sleeps: two
    cores cannot decode for eight.
    """
    console = console_for(json_to)
    with failures_shown("peers", console):
        if (reason := why_not()) is not None:
            raise BenchFailed(reason)
        settings = PeersSettings(rounds=rounds, steps=steps)
        found = circumstances()
        with tempfile.TemporaryDirectory(prefix="helix-bench-") as scratch, progress_on(console) as progress:
            done = _rounds(settings, Path(scratch), progress)
        results = Results(
            command="peers",
            figures=figures(done),
            targets=TARGETS,
            circumstances=found,
            settings=msgspec.to_builtins(settings),
            notes=load_notes(found),
        )
        conclude(results, table(results.figures), console, json_to=json_to, check=check)


def _rounds(settings: PeersSettings, scratch: Path, progress: Progress) -> list[Round]:
    index = scratch / "data.arrow"
    build([write_data(scratch, _SAMPLES)], index)
    task = progress.add_task("jobs", total=len(WAYS) * settings.rounds)
    done = []
    with net(settings.nodes) as nodes:
        for number in range(settings.rounds):
            for way in WAYS if number % 2 == 0 else WAYS[::-1]:
                done.append(_run(settings, nodes, index, scratch / f"{way.name}-{number}", way))
                progress.advance(task)
    return done


def _run(settings: PeersSettings, nodes: Net, index: Path, out: Path, way: Way) -> Round:
    nodes.limit(1, way.mbit_s)
    options = {
        "steps": settings.steps,
        "batch": settings.batch,
        "regroup": settings.regroup,
        "ring": settings.ring,
        "mean-us": settings.mean_us,
        "sigma": settings.sigma,
        "window-ms": settings.window_ms,
        "placement": "dynamic" if way.peers == "dynamic" else "static",
        "nbytes": way.nbytes,
    }
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: settings.cores_per_node]))
    limits = {"HELIX_CORES": cores, "HELIX_RESERVE": "0"}
    job = Job(
        nodes,
        settings.ranks_per_node,
        index,
        out,
        [text for name, value in options.items() for text in (f"--{name}", str(value))],
        env=limits
        | ({"HELIX_PEERS": "off"} if way.peers == "off" else {})
        | ({"HELIX_HELPERS": str(way.helpers)} if way.helpers else {}),
        env_of={1: {SLOWNESS: str(settings.slow)}},
        nodes=way.nodes,
    )
    helper = [sys.executable, "-m", "helixd", "run", "--helper", "--store", f"{nodes.address(0)}:{PORT}"]
    for i in range(job.count, job.count + way.helpers):
        nodes.start(i, helper, limits, stderr=subprocess.DEVNULL)  # ends with the job
    try:
        job.reached(settings.asked_at, _LIMIT_S)
        told = _status(nodes, job.count + way.helpers)
        if any(job.wait(_LIMIT_S)):
            raise BenchFailed(f"the job failed:\n{job.log()}")
    finally:
        job.end()
    took = job.steps()
    _check(settings, index, took, way)
    return _measured(settings, took, way, told)


def _check(settings: PeersSettings, index: Path, took: list[list[dict[str, Any]]], way: Way) -> None:
    """Every step has the samples that one node would give it, each once and whole. Raises BenchFailed."""
    batching = hx.FixedBatch(settings.batch, regroup=settings.regroup)
    expected = ids_of_one_node(index, len(took), settings.steps, batching)
    for step in range(settings.steps):
        given: list[list[int]] = [rank[step]["ids"] for rank in took]
        planned = [rank[step] for rank in expected]
        if way.peers == "dynamic":  # which rank has which, load decides
            given, planned = ([sorted(itertools.chain(*of))] for of in (given, planned))
        if given != planned:
            raise BenchFailed(f"{way.name}: step {step} has samples {given}, one node would give {planned}")
        for rank in took:
            if rank[step]["crc"] != checksum_of(rank[step]["ids"], way.nbytes):
                raise BenchFailed(f"{way.name}: samples {rank[step]['ids']} of step {step} arrived damaged")


def _status(nodes: Net, count: int) -> list[dict[str, Any]]:
    """Of the first nodes' daemons, asked at the same time."""
    ask = [sys.executable, "-m", "libhelix.ctl", "status", "--json"]
    asked = [nodes.start(i, ask, stdout=subprocess.PIPE) for i in range(count)]
    return [json.loads(ctl.communicate(timeout=_LIMIT_S)[0])[0] for ctl in asked]


def _measured(
    settings: PeersSettings, took: list[list[dict[str, Any]]], way: Way, told: list[dict[str, Any]]
) -> Round:
    recipe, rng = Paced(mean_us=settings.mean_us, sigma=settings.sigma), Rng(0, 0, 0)
    counted = range(settings.skip, settings.steps - 1)
    work_us = [
        sum(
            sum(recipe.describe(Sample(i, "", ()), rng).segment_us)
            for rank in took[n * settings.ranks_per_node : (n + 1) * settings.ranks_per_node]
            for k in counted
            for i in rank[k]["ids"]
        )
        for n in range(way.nodes or settings.nodes)
    ]
    fast = (way.nodes or settings.nodes) - 1 + way.helpers
    capacity = settings.cores_per_node * (fast + 1 / settings.slow)
    ends = [max(rank[k]["at"] for rank in took) for k in (settings.skip - 1, settings.steps - 2)]
    samples = sum(len(step["ids"]) for rank in took for step in rank[: settings.asked_at])
    between = told[1]["jobs"][0]["loaders"][0]["nodes"]
    remote = between["remote"] if between is not None else {"landed": 0}
    return Round(
        way.name,
        (ends[1] - ends[0]) / len(counted),
        max(sum(work_us) * 1e-6 / capacity / len(counted), settings.window_ms * 1e-3),
        sum(daemon["peer_bytes"] for daemon in told) / samples,
        work_us[1] / sum(work_us),
        remote["landed"],
        abs(remote["predicted_s"] / remote["took_s"] - 1) if remote["landed"] else None,
    )


def figures(rounds: list[Round]) -> dict[str, float]:
    """By name."""
    found: dict[str, float] = {}
    for way in WAYS:
        of = [r for r in rounds if r.way == way.name]
        found[f"{way.name}_of_bound"] = median([r.bound_s / r.step_s for r in of])
        found[f"{way.name}_step_ms"] = median([r.step_s * 1e3 for r in of])
        found[f"{way.name}_slow_node_share"] = median([r.slow_share for r in of])
        found[f"{way.name}_wire_bytes_per_sample"] = max(r.wire_bytes for r in of)
        found[f"{way.name}_moved"] = median([r.moved for r in of])
    found["dynamic_speedup"] = found["alone_step_ms"] / found["dynamic_step_ms"]
    found["remote_speedup"] = found["alone_large_step_ms"] / found["remote_large_step_ms"]
    found["helpers_speedup"] = found["two_step_ms"] / found["two_helped_step_ms"]
    found["slow_link_to_alone"] = found["alone_large_step_ms"] / found["slow_link_step_ms"]
    errors = [r.gate_error for r in rounds if r.gate_error is not None]
    if errors:
        found["gate_error"] = median(errors)
    return found


def table(found: Mapping[str, float]) -> Table:
    """What people read."""
    shown = Table(title="4 nodes x 2 ranks, one node decodes a third as fast", title_justify="left")
    for column in ("", "step ms", "of bound", "dealt to the slow node", "moved", "bytes a sample"):
        shown.add_column(column, justify="right" if column else "left")
    for way in WAYS:
        shown.add_row(
            way.title,
            f"{found[f'{way.name}_step_ms']:.0f}",
            f"{found[f'{way.name}_of_bound']:.2f}",
            f"{found[f'{way.name}_slow_node_share']:.0%}",
            f"{found[f'{way.name}_moved']:.0f}",
            f"{found[f'{way.name}_wire_bytes_per_sample']:,.0f}",
        )
    return shown
