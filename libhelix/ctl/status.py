"""helixctl status: what the daemons of this node are doing."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from libhelix.cores import as_ranges
from libhelix.ctl.daemons import ask_all, socket_option
from libhelix.ctl.output import counted, visible

_SILENT_S = 3.0
_LATE_MS = 5
"""A turn of the daemon's loop should not take longer."""
_COLUMNS = (
    "\nrank",
    "last batch taken\nepoch/step/micro",
    "samples\nper s",
    "ring\nMiB",
    "filling\nMiB",
    "leased\nMiB",
    "wait ms\np50",
    "wait ms\np95",
)


@click.command(epilog="Example: helixctl status --json", short_help="Show jobs, ranks, rings and workers.")
@socket_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def status(path: str | None, as_json: bool) -> None:
    """Show the jobs of this node: ranks, rings, workers, rates and waits.

    Asks the standing daemon, and the private daemons of this user's jobs.
    """
    found = ask_all(path)
    if as_json:
        click.echo(json.dumps(found))
        return
    console = Console()
    for daemon in found:
        _show(console, daemon)


def _show(console: Console, daemon: dict[str, Any]) -> None:
    who = f"helixd {daemon['version']} at {daemon['address']}, pid {daemon['pid']}"
    _say(console, f"{who}, up {daemon['uptime_s']:.0f} s")
    if "loop" in daemon:  # a daemon of another version says less
        _say(console, f"loop     {_loop(daemon['loop'])}")
    if not daemon["jobs"]:
        console.print("no jobs")
    for job in daemon["jobs"]:
        workers = ", ".join(f"core {w['core']}: {w['done']} tasks" for w in job["workers"])
        console.print()
        _say(console, f"job {job['job']} of user {job['uid']}, trainers {job['trainers']}")
        if "cores" in job:  # a daemon of another version says less
            _say(console, f"cores    {_cores(job['cores'])}")
        _say(console, f"workers  {workers or 'none yet'}")
        for loader in job["loaders"]:
            _show_loader(console, loader)


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(Text(visible(line)))


def _loop(loop: dict[str, Any]) -> str:
    """Like "longest turn 7.1 ms, 2.9 ms of CPU time; 3 of 10,412 turns over 5 ms"."""
    late = sum(n for bound, n in zip(loop["bounds_ms"], loop["by_wall"][1:]) if bound >= _LATE_MS)
    return (
        f"longest turn {loop['longest_ms']:.1f} ms, in CPU time {loop['longest_cpu_ms']:.1f} ms; "
        f"{late:,} of {loop['turns']:,} turns over {_LATE_MS} ms"
    )


def _cores(cores: dict[str, Any]) -> str:
    """Like "2-9 decode, 0-1 kept free for the trainers, the cgroup's limit is 10"."""
    said = [f"{as_ranges(cores['owned']) or 'none'} decode"]
    if cores["reserved"]:
        said.append(f"{as_ranges(cores['reserved'])} kept free for the trainers")
    if cores["limit"] is not None:
        said.append(f"the cgroup's limit is {cores['limit']:g}")
    return ", ".join(said)


def _show_loader(console: Console, loader: dict[str, Any]) -> None:
    title = f"loader {loader['loader']}: {loader['recipe']}, {loader['steps_per_epoch']} steps per epoch"
    if loader["consumers"]:
        _show_ranks(console, title, loader["consumers"])
    else:
        _say(console, title)
    tiers = sorted({c["device"] for c in loader["consumers"] if c.get("device")})
    if tiers:
        _say(console, f"batches get to the device {' and '.join(tiers)} (docs/devices.md)")
    if (staging := loader.get("staging")) and staging["bytes"]["total"]:
        _say(console, _staging(staging))
    if loader.get("nodes"):
        _say(console, *_nodes(loader["nodes"]))
    if loader["bad_samples"]:
        _say(console, f"{loader['bad_samples']} bad samples in this epoch and the last")
    if loader["failure"]:
        _say(console, f"ended: {loader['failure']}")


def _staging(staging: dict[str, Any]) -> str:
    """Like "120 long samples were begun before their batch had its place, 3 are; 12.0 of 96.0 MB"."""
    held, total = (staging["bytes"][name] / 1e6 for name in ("held", "total"))
    began = f"{staging['begun']:,} long samples were begun before their batch had its place"
    return f"{began}, {staging['at_work']} are; {held:.1f} of {total:.1f} MB"


def _show_ranks(console: Console, title: str, consumers: list[dict[str, Any]]) -> None:
    table = Table(
        title=Text(visible(title)),
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for c in consumers:
        ring = c["ring_bytes"]
        table.add_row(
            str(c["rank"]) + ("" if c["replicas"] == 1 else f" x{c['replicas']}"),
            f"{c['at'][0]}/{c['at'][1]}/{c['at'][2]}" if c["at"] else c["state"],
            _number(c["samples_per_s"]),
            _number(ring["total"] / 2**20),
            _number(ring["filling"] / 2**20),
            _number(ring["leased"] / 2**20),
            _number(c["wait_p50_ms"]),
            _number(c["wait_p95_ms"]),
        )
    console.print(table)


def _nodes(nodes: dict[str, Any]) -> list[str]:
    """Like "leads 4 nodes:", "  10.0.0.1:4242 (ranks 0-7), ..., silent for 12.0 s", or who leads."""
    if nodes["leads"]:
        each = [
            f"  {node['address']}  ranks {as_ranges(node['ranks']) or 'unknown'}"
            + (f", decodes for {node['capacity']:.1f} cores" if node["capacity"] else "")
            + _silence(node["silent_s"])
            for node in nodes["nodes"]
        ]
        each += [
            f"  {helper['address']}  helper, {helper['spare']:.1f} cores idle{_silence(helper['silent_s'])}"
            for helper in nodes["helpers"]
        ]
        said = [f"leads {counted(len(nodes['nodes']), 'node')}:", *each]
    else:
        unknown = "" if nodes["joined"] else ", which does not know this node yet"
        said = [f"led by {nodes['leader']}{unknown}{_silence(nodes['silent_s'])}"]
        if "helps" in nodes:
            late = counted(nodes["helps"], "late node")
            said.append(f"has no ranks: decodes for {late}, {nodes['decoded']:,} samples so far")
    if nodes["placed_since"]:
        epoch, step = nodes["placed_since"]
        said.append(f"placed by load, anew since step {step} of epoch {epoch}")
    said += remote_lines(nodes["remote"])
    return said + ([f"waits: {nodes['waits_for']}"] if nodes["waits_for"] else [])


def remote_lines(remote: dict[str, Any] | None) -> list[str]:
    """Like "2 nodes decoded 120 samples for this one (...); 3 were declined", where any was sent for."""
    if remote is None or not (remote["sent"] or remote["refused"]):
        return []
    if not remote["sent"]:
        return [f"late batches of which no sample would come sooner from elsewhere: {remote['refused']:,}"]
    said = f"{counted(len(remote['helpers']), 'node')} decoded {remote['landed']:,} samples for this one"
    if landed := remote["landed"]:
        predicted_ms, took_ms = (remote[name] / landed * 1e3 for name in ("predicted_s", "took_s"))
        said += f" ({remote['nbytes'] / 1e6:,.0f} MB; {took_ms:.0f} ms each, predicted {predicted_ms:.0f})"
    if remote["declined"] or remote["taken_back"]:
        said += f"; {remote['declined']:,} were declined, {remote['taken_back']:,} taken back"
    if remote["refused"]:
        said += f"; of {remote['refused']:,} late batches none would have come sooner"
    return [said]


def _silence(silent_s: float | None) -> str:
    if silent_s is None:
        return ", never heard"
    return f", silent for {silent_s:.0f} s" if silent_s > _SILENT_S else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"
