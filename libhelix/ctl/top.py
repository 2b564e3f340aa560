"""helixctl top: what the jobs of this node do now, again and again."""

from __future__ import annotations

import json
import time
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from libhelix.ctl.daemons import ask_all, socket_option
from libhelix.ctl.figures import duration
from libhelix.ctl.output import visible
from libhelix.ctl.why import CAUSES, name_slowest
from libhelix.errors import DaemonUnreachable
from libhelix.wire import messages as m

_COLUMNS = ("loader", "rank", "at", "samples/s", "ring", "window", "wait p50", "wait p95", "late", "bad")
_SLOWEST = 3


@click.command(
    epilog="Example: helixctl top --interval 5", short_help="Watch jobs: rings, waits, workers, slow samples."
)
@socket_option
@click.option("--once", is_flag=True, help="Show it once and end.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.5),
    default=2.0,
    show_default=True,
    help="Seconds between looks.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each look.")
def top(path: str | None, once: bool, interval: float, as_json: bool) -> None:
    """Watch the jobs of this node until Ctrl-C, or until their daemon ends: how full rings are, windows,
    waits, samples a second, busy workers, and the slowest samples, by name where they are yours.
    """
    state = look(path)  # a daemon that is not there is an error; one that goes is the end
    if once:
        _print(state, as_json)
        return
    try:
        if as_json:
            while True:
                _print(state, as_json)
                time.sleep(interval)
                state = look(path)
        with Live(shown(state), auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                live.update(shown(look(path)), refresh=True)
    except (KeyboardInterrupt, DaemonUnreachable):
        return


def _print(state: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(state))
    else:
        Console().print(shown(state))


def look(path: str | None) -> dict[str, Any]:
    """The state of all jobs of this user, root: of all."""
    judged = {
        (daemon["address"], job["uid"], job["job"], loader["loader"]): (job, loader)
        for daemon in ask_all(path, m.StatusAsk("why"))
        for job in daemon["jobs"]
        for loader in job["loaders"]
    }
    jobs = []
    for daemon in ask_all(path):
        for job in daemon["jobs"]:
            loaders = [
                _loader(loader, judged.get((daemon["address"], job["uid"], job["job"], loader["loader"])))
                for loader in job["loaders"]
            ]
            busy = sum(w["tasks"] > 0 for w in job["workers"])
            workers = {"busy": busy, "all": len(job["workers"])}
            jobs.append({"job": job["job"], "uid": job["uid"], "workers": workers, "loaders": loaders})
    return {"time": round(time.time(), 3), "jobs": jobs}


def _loader(loader: dict[str, Any], judged: tuple[dict[str, Any], dict[str, Any]] | None) -> dict[str, Any]:
    verdict = None
    if judged is not None:
        name_slowest(*judged)
        verdict = judged[1]["verdict"]
    ranks = [
        {
            "rank": c["rank"],
            "state": c["state"],
            "at": c["at"],
            "samples_per_s": c["samples_per_s"],
            "ring_bytes": c["ring_bytes"],
            "wait_p50_ms": c["wait_p50_ms"],
            "wait_p95_ms": c["wait_p95_ms"],
        }
        for c in loader["consumers"]
    ]
    return {
        "loader": loader["loader"],
        "ranks": ranks,
        "window_s": verdict["window_s"] if verdict else None,
        "late": verdict["misses"] if verdict else None,
        "of": verdict["batches"] if verdict else None,
        "limited_by": verdict["cause"] if verdict else None,
        "slowest": list(verdict["slowest"])[:_SLOWEST] if verdict else [],
        "bad_samples": loader["bad_samples"],
        "failure": loader["failure"],
    }


def shown(state: dict[str, Any]) -> RenderableType:
    """For people."""
    parts: list[RenderableType] = [] if state["jobs"] else [Text("no jobs")]
    for job in state["jobs"]:
        workers = job["workers"]
        parts.append(
            _text(
                f"job {job['job']} of user {job['uid']}: {workers['busy']} of {workers['all']} workers busy"
            )
        )
        table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        for column in _COLUMNS:
            table.add_column(column, justify="left" if column == "loader" else "right")
        for loader in job["loaders"]:
            for rank in loader["ranks"]:
                table.add_row(*map(_text, _row(loader, rank)))
        parts.append(table)
        parts += [_text(line) for loader in job["loaders"] for line in _notes(loader)]
    return Group(*parts)


def _text(line: str) -> Text:
    return Text(visible(line))


def _row(loader: dict[str, Any], rank: dict[str, Any]) -> list[str]:
    ring, rate = rank["ring_bytes"], rank["samples_per_s"]
    used = (ring["filling"] + ring["leased"]) / ring["total"] if ring["total"] else None
    return [
        loader["loader"],
        str(rank["rank"]),
        "/".join(map(str, rank["at"])) if rank["at"] else rank["state"],
        "" if rate is None else f"{rate:,.1f}",
        "" if used is None else f"{used:.0%}",
        "" if loader["window_s"] is None else duration(loader["window_s"]),
        *("" if rank[w] is None else f"{rank[w]:,.1f} ms" for w in ("wait_p50_ms", "wait_p95_ms")),
        "" if loader["late"] is None else f"{loader['late']}/{loader['of']}",
        str(loader["bad_samples"]),
    ]


def _notes(loader: dict[str, Any]) -> list[str]:
    notes = []
    if loader["limited_by"]:
        notes.append(f"{loader['loader']}: limited by {CAUSES[loader['limited_by']]} (helixctl why)")
    slow = [f"{s['key'] or s['sample']} {duration(s['seconds'])}" for s in loader["slowest"]]
    if slow:
        notes.append(f"{loader['loader']}: slowest samples {', '.join(slow)}")
    if loader["failure"]:
        notes.append(f"{loader['loader']} ended: {loader['failure']}")
    return notes
