"""helixctl trace: what workers and ranks did lately, for Perfetto or chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import click

from libhelix.ctl.daemons import ask_all, socket_option
from libhelix.ctl.output import output_option, say, written
from libhelix.wire import messages as m

Events = list[dict[str, Any]]


@click.command(
    epilog="Example: helixctl trace -o t.json, then open t.json in https://ui.perfetto.dev",
    short_help="Write a timeline of workers and ranks.",
)
@socket_option
@output_option(help="Where to write it.")
def trace(path: str | None, output: Path) -> None:
    """Write what workers and ranks did lately as trace events.

    There is a process row for each core, with its tasks, one for samples that other nodes decode, and one for
    each rank, with its waits, its windows and the moments when batches were ready.
    """
    found = ask_all(path, m.StatusAsk("trace"))
    events, left_out = events_of(found)
    value = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"left_out": left_out}}
    with written(output) as file:
        file.write(json.dumps(value, separators=(",", ":")).encode())
    spans = sum(event["ph"] == "X" for event in events)
    say(f"{output}: {spans:,} spans of {sum(len(d['jobs']) for d in found):,} jobs")
    if left_out:
        say(f"{left_out:,} older records were left out of what helixd kept")


# ---- trace events --------------------------------------------------------------------------------------


def events_of(daemons: list[dict[str, Any]]) -> tuple[Events, int]:
    """The trace events of daemons' answers, microseconds from the first of all, and how many records were
    left out. Daemons of a node share its clock."""
    events: Events = []
    rows = count(1)
    left_out = 0
    for job in (job for daemon in daemons for job in daemon["jobs"]):
        loaders = [_Recorded(loader, job["fields"]) for loader in job["loaders"]]
        left_out += sum(sum(loader["left_out"].values()) for loader in job["loaders"])
        for core in job["cores"]:
            row = next(rows)
            events += _row(row, f"{job['job']}: core {core}", core)
            for loader in loaders:
                events += _tasks(row, core, loader)
        if any(loader.errands for loader in loaders):
            row = next(rows)
            events += _row(row, f"{job['job']}: other nodes", 9_999)
            events += _errands(row, loaders)
        for loader in loaders:
            for rank in sorted({batch["rank"] for batch in loader.batches}):
                row = next(rows)
                events += _row(row, f"{job['job']}: {loader.name}, rank {rank}", 10_000 + rank)
                events += _rank(row, [b for b in loader.batches if b["rank"] == rank])
    _start_at_zero(events)
    return events, left_out


class _Recorded:
    """What a loader's answer holds, by names."""

    def __init__(self, loader: dict[str, Any], fields: dict[str, list[str]]) -> None:
        self.name: str = loader["loader"]
        self.batches = [dict(zip(fields["batches"], record)) for record in loader["batches"]]
        errands = fields.get("errands", [])  # a daemon of an earlier version has none
        self.errands = [dict(zip(errands, record)) for record in loader.get("errands", [])]
        self.tasks = [dict(zip(fields["tasks"], record)) for record in loader["tasks"]]


def _row(row: int, name: str, place: int) -> Events:
    meta = {"ph": "M", "pid": row, "tid": 0, "ts": 0}
    return [
        {**meta, "name": "process_name", "args": {"name": name}},
        {**meta, "name": "process_sort_index", "args": {"sort_index": place}},
    ]


def _tasks(row: int, core: int, loader: _Recorded) -> Iterator[dict[str, Any]]:
    for task in loader.tasks:
        if task["core"] != core:
            continue
        at, args = task["at"], {"loader": loader.name, "samples": task["samples"]}
        if at is not None:
            args |= {"rank": task["rank"], "epoch": at[0], "step": at[1], "micro": at[2]}
            args |= {
                "deadline_us": _us(task["due"]),
                "late_ms": round((task["ended"] - task["due"]) * 1e3, 3),
            }
            args |= {"cpu_ms": task["cpu_us"] / 1e3, "stall_ms": task["stall_us"] / 1e3}
        guest = task["rank"] is not None and task["rank"] < 0
        name = (
            "describe" if at is None else "another node's" if guest else f"rank {task['rank']} step {at[1]}"
        )
        yield _span(row, name, _us(task["began"]), _us(task["ended"]), args)


def _errands(row: int, loaders: list[_Recorded]) -> Iterator[dict[str, Any]]:
    """Samples that other nodes decoded, in as many lines as were on their way at a time."""
    free_from: list[float] = []
    found = [(errand, loader.name) for loader in loaders for errand in loader.errands]
    for errand, name in sorted(found, key=lambda pair: float(pair[0]["began"])):
        line = next((i for i, end in enumerate(free_from) if end <= errand["began"]), len(free_from))
        free_from[line:] = [errand["ended"], *free_from[line + 1 :]]
        epoch, step, micro = errand["at"]
        args = {"loader": name, "node": errand["node"], "sample": errand["sample"], "rank": errand["rank"]}
        args |= {"epoch": epoch, "step": step, "micro": micro, "bytes": errand["nbytes"]}
        args |= {"predicted_ms": _ms(errand["takes_s"]), "decode_ms": errand["decode_us"] / 1e3}
        args |= {"deadline_us": _us(errand["due"]), "late_ms": _ms(errand["ended"] - errand["due"])}
        span = _span(
            row, f"rank {errand['rank']} step {step}", _us(errand["began"]), _us(errand["ended"]), args
        )
        yield {**span, "tid": line}


def _rank(row: int, batches: list[dict[str, Any]]) -> Events:
    """Waits and windows one after the other, as the trainer's loop has them; when batches were ready."""
    spans: Events = []
    events: Events = []
    for batch in batches:
        name = f"step {batch['at'][1]}" + (f".{batch['at'][2]}" if batch["at"][2] else "")
        args = {"epoch": batch["at"][0], "step": batch["at"][1], "micro": batch["at"][2]}
        ready = {**args, "bytes": batch["nbytes"], "decode_ms": batch["decode_us"] / 1e3}
        events.append(
            {"ph": "i", "s": "p", "name": f"ready {name}", "pid": row, "tid": 0, "ts": _us(batch["ready"])}
            | {"args": ready}
        )
        if batch["asked"] is None:
            continue
        asked, taken = _us(batch["asked"]), _us(batch["asked"] + batch["wait_s"])
        late_ms = _ms(batch["ready"] - batch["asked"])
        spans.append(_span(row, f"wait {name}", asked, taken, {**args, "ready_after_asked_ms": late_ms}))
        if batch["window_s"] is not None:
            spans.append(_span(row, f"window {name}", taken, taken + _us(batch["window_s"]), args))
    spans.sort(key=lambda span: span["ts"])
    for span, following in pairwise(spans):  # rounding must not make them overlap
        span["dur"] = max(0, min(span["dur"], following["ts"] - span["ts"]))
    return spans + events


def _span(row: int, name: str, begin: int, end: int, args: dict[str, Any]) -> dict[str, Any]:
    duration = max(0, end - begin)
    return {"ph": "X", "name": name, "pid": row, "tid": 0, "ts": begin, "dur": duration, "args": args}


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _start_at_zero(events: Events) -> None:
    timed = [event for event in events if event["ph"] != "M"]
    zero = min((event["ts"] for event in timed), default=0)
    for event in timed:
        event["ts"] -= zero
        if "deadline_us" in event["args"]:
            event["args"]["deadline_us"] -= zero
