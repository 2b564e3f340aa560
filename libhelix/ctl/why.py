"""helixctl why: what limits the loaders of this node, and by what it is known."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

import click

from libhelix.ctl.daemons import ask_all, socket_option
from libhelix.ctl.figures import duration, table
from libhelix.ctl.output import say
from libhelix.ctl.status import remote_lines
from libhelix.errors import HelixError, UsageError
from libhelix.index.join import Joined
from libhelix.index.read import Index
from libhelix.wire import messages as m

CAUSES = {
    "accelerator": "the accelerator",
    "decode": "CPU decode",
    "storage": "storage",
    "ring": "ring memory",
    "sample": "one long sample",
    "streams": "streams of a dataset",
    "describe": "describe",
}
OTHERS_SHARE = 0.3
"""Of the time of decoding, from which on it is worth saying that others use the cores."""
_TERMS = {
    "batch": "s",
    "million_tokens": "s per million tokens",
    "million_million_squared_tokens": "s per million million squared tokens",
    "million_latents": "s per million latents",
}


@click.command(
    epilog="Example: helixctl why --steps 100:200 --costs", short_help="Show what limits the loaders."
)
@socket_option
@click.option("--steps", metavar="A:B", help="Only these, of the newest epoch.  [default: the last ones]")
@click.option("--costs", is_flag=True, help="Also show what was learned of costs, and how well it predicts.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def why(path: str | None, steps: str | None, costs: bool, as_json: bool) -> None:
    """Say what the loaders of this node wait for: accelerator, CPU decode, storage, ring memory, one long
    sample, or describe; the figures that tell, and the cure.

    The first step of a rank is left out: nothing could be decoded ahead of it.
    """
    first, last = _range(steps)
    found = ask_all(path, m.StatusAsk("why", first, last))
    for daemon in found:
        for job in daemon["jobs"]:
            for loader in job["loaders"]:
                name_slowest(job, loader)
    if as_json:
        click.echo(json.dumps(found))
        return
    for daemon in found:
        say(*_lines(daemon, steps, costs))


def _range(steps: str | None) -> tuple[int | None, int | None]:
    if steps is None:
        return None, None
    read = re.fullmatch(r"(\d{0,18}):(\d{0,18})", steps)
    if read is None or steps == ":":
        raise UsageError(f"--steps {steps}: write A:B, such as 100:200, 100: or :200")
    first, last = (int(text) if text else None for text in read.groups())
    if first is not None and last is not None and last <= first:
        raise UsageError(f"--steps {steps}: the last step must come after the first")
    return first, last


def name_slowest(job: dict[str, Any], loader: dict[str, Any]) -> None:
    """Give the slowest samples their names, where this user's own index tells them."""
    verdict = loader["verdict"]
    if verdict is None or not verdict["slowest"]:
        return
    # Another user's path is not opened, not even by root: it may be anything.
    index = _opened(loader) if job["uid"] == os.geteuid() else None
    verdict["slowest"] = [
        {"sample": number, "seconds": s, "key": index[number].key if index is not None else None}
        for number, s in verdict["slowest"]
    ]


def _opened(loader: dict[str, Any]) -> Joined | None:
    try:
        index = Joined([Index.open(ref["path"], root=ref["root"]) for ref in loader["indexes"]])
    except HelixError:
        return None
    return index if index.fingerprint == loader["fingerprint"] else None


# ---- for people ----------------------------------------------------------------------------------------


def _lines(daemon: dict[str, Any], steps: str | None, costs: bool) -> list[str]:
    lines = [] if daemon["jobs"] else [f"helixd at {daemon['address']}: no jobs"]
    for job in daemon["jobs"]:
        for loader in job["loaders"]:
            lines += _of_loader(job, loader, steps)
            if costs:
                lines += [f"  {text}" for text in _window_costs(loader["window_model"])]
        if costs:
            lines += _decode_costs(job)
    return lines


def _of_loader(job: dict[str, Any], loader: dict[str, Any], steps: str | None) -> list[str]:
    name, v = f"job {job['job']}, loader {loader['loader']}", loader["verdict"]
    if loader.get("helps"):
        return [
            f"{name}: has no ranks here: decodes for nodes that are late; helixctl why on those says more"
        ]
    if v is None:
        among = f" of steps {steps}" if steps else ""
        return [f"{name}: not known: no two steps{among} were taken after the first"]
    others = 1 - v["ran_share"] - v["stall_share"]
    if v["cause"] == "decode" and others > OTHERS_SHARE:
        v["cure"] += f"; others had its cores for {others:.0%} of the time of decoding"
    return [
        f"{name}: limited by {CAUSES.get(v['cause'], v['cause'])}",
        *table_of(_figures(v, len(job["cores"]))),
        f"  cure              {v['cure']}",
        *(f"  remote            {text}" for text in remote_lines(loader["remote"])),
    ]


def _figures(v: dict[str, Any], cores: int) -> list[tuple[str, str]]:
    shares = sorted(v["shares"].items(), key=lambda pair: -pair[1])
    late = ", ".join(f"{CAUSES.get(cause, cause)} {share:.0%}" for cause, share in shares)
    figures = [
        ("steps", f"{_at(v['first'])} to {_at(v['last'])}, {v['batches']:,} batches"),
        ("step", f"{_ms(v['step_s'])}, of which ranks are busy {_ms(v['window_s'])}"),
        ("waited for input", f"{v['wait_share']:.1%} of the time, p95 {_ms(v['wait_p95_s'])}"),
        ("late batches", f"{v['misses']:,}" + (f", by what delayed them: {late}" if late else "")),
        ("cores", f"{v['cores_busy']:.0%} of {cores} busy, decode {_ms(v['decode_s_per_step'])} per step"),
        ("decoding", f"ran {v['ran_share']:.0%} of its time, waited for storage {v['stall_share']:.0%}"),
        ("asked", f"{_ms(v['ask_error_s'])} from when predicted (median)"),
    ]
    if v["slowest"]:
        figures.append(("slowest samples", ", ".join(map(_slow, v["slowest"]))))
    return figures


def table_of(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Lines of names and what is said of them."""
    return [f"  {name:<17} {text}" for name, text in rows]


def _slow(sample: dict[str, Any]) -> str:
    return f"{sample['key'] or 'number ' + str(sample['sample'])} {_ms(sample['seconds'])}"


def _at(step: Sequence[int]) -> str:
    return f"{step[1]} of epoch {step[0]}"


def _ms(s: float | None) -> str:
    if s is None:
        return "unknown"
    return f"{s * 1e3:.1f} ms" if s < 1 else duration(s)


def _window_costs(model: dict[str, Any]) -> list[str]:
    if model["seconds_per"] is None:
        return ["window            not known yet"]
    terms = [f"{value:.4g} {_TERMS[name]}" for name, value in model["seconds_per"].items() if value]
    return [
        f"window            {' + '.join(terms) or '0 s'}",
        f"                  {_quality(model['windows'], 'windows', model)}",
    ]


def _decode_costs(job: dict[str, Any]) -> list[str]:
    costs = job["decode_costs"]
    if not costs:
        return [f"job {job['job']}, decoding: nothing was decoded yet"]
    rows = [("kind", "of predicted", "parts", "error", "rank correlation")]
    rows += [
        (c["kind"], f"{c['scale']:.3g}", f"{c['tasks']:,}", f"{c['mape']:.0%}", _two(c["rank_correlation"]))
        for c in costs
    ]
    return [f"job {job['job']}, decoding: CPU time by kind", *(f"  {line}" for line in table(rows))]


def _quality(count: int, what: str, found: dict[str, Any]) -> str:
    if found["mape"] is None:
        return f"no {what} were predicted yet"
    order = _two(found["rank_correlation"])
    return f"error {found['mape']:.0%}, rank correlation {order}, over the last {count:,} {what}"


def _two(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"
