"""helixctl status: what the daemons of this node are doing."""

from __future__ import annotations

import json
import os
import select
import time
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from libhelix._version import __version__
from libhelix.client import service_socket, shown, without_standing
from libhelix.errors import DaemonUnreachable, from_code
from libhelix.wire import channel, codec
from libhelix.wire import messages as m

ANSWER_LIMIT_S = 5.0
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
@click.option(
    "--socket", "path", help="Socket of a standing daemon.  [default: HELIX_SOCKET, or the system's]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def status(path: str | None, as_json: bool) -> None:
    """Show the jobs of this node: ranks, rings, workers, rates and waits.

    Asks the standing daemon, and the private daemons of this user's jobs.
    """
    standing = path or service_socket()
    addresses = [standing] if standing else []
    if path is None:
        addresses += private_addresses()
    if not addresses:
        raise DaemonUnreachable(
            "no helixd runs here: no private one of this user, no standing one; start a training job, or "
            "helixd run"
        )
    otherwise = "leave out --socket" if path else without_standing()
    found, missing = [], []
    for address in addresses:
        try:
            found.append({"address": shown(address), **ask(address, otherwise)})
        except DaemonUnreachable as e:
            missing.append(e)  # a private one may have ended since it was listed
    if not found:
        raise missing[0]
    if as_json:
        click.echo(json.dumps(found))
        return
    console = Console()
    for daemon in found:
        _show(console, daemon)


def private_addresses() -> list[str]:
    """The abstract addresses of this user's private daemons (root: of everybody's)."""
    prefix = "@helix/" if os.geteuid() == 0 else f"@helix/{os.geteuid()}/"
    found = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        name = line.split(maxsplit=7)[7:]
        if name and name[0].startswith(prefix):
            found.add("\0" + name[0][1:])
    return sorted(found)


def ask(address: str, otherwise: str = "ask another") -> dict[str, Any]:
    """A daemon's own account. Raises DaemonUnreachable, and the daemon's error where it refuses.

    `otherwise` is what the user can do where a standing daemon is not there, beside starting it.
    """
    deadline = time.monotonic() + ANSWER_LIMIT_S
    with channel.new_socket() as sock:
        try:
            sock.connect(address)
            cores = tuple(sorted(os.sched_getaffinity(0)))
            hello = m.Hello(m.PROTOCOL, __version__, "ctl", "", os.getpid(), cores)
            channel.send(sock, codec.encode(hello))
            channel.send(sock, codec.encode(m.StatusAsk()))
            text = _read_answer(sock, address, deadline)
        except OSError as e:
            cure = f"start it with helixd run --socket {address}, or {otherwise}"
            if address.startswith("\0"):
                cure = "it has just ended"
            raise DaemonUnreachable(f"no helixd at {shown(address)} ({e.strerror or e}); {cure}") from e
    answer: dict[str, Any] = json.loads(text)
    return answer


def _read_answer(sock: Any, address: str, deadline: float) -> str:
    text = ""
    readable = select.poll()
    readable.register(sock, select.POLLIN)
    while readable.poll(max(0.0, deadline - time.monotonic()) * 1000):
        received = channel.receive(sock)
        if received is None:
            raise DaemonUnreachable(f"helixd at {shown(address)} has just ended")
        match codec.to_ctl(received[0]):
            case m.Status(part, last):
                text += part
                if last:
                    return text
            case m.Refused(code, why):
                raise from_code(code, why)
            case m.Welcome():
                pass
    raise DaemonUnreachable(f"helixd at {shown(address)} did not answer within {ANSWER_LIMIT_S:.0f} s")


def _show(console: Console, daemon: dict[str, Any]) -> None:
    who = f"helixd {daemon['version']} at {daemon['address']}, pid {daemon['pid']}"
    console.print(f"{who}, up {daemon['uptime_s']:.0f} s", highlight=False)
    if "loop" in daemon:  # a daemon of another version says less
        console.print(f"loop     {_loop(daemon['loop'])}", highlight=False)
    if not daemon["jobs"]:
        console.print("no jobs")
    for job in daemon["jobs"]:
        workers = ", ".join(f"core {w['core']}: {w['done']} tasks" for w in job["workers"])
        console.print(f"\njob {job['job']} of user {job['uid']}, trainers {job['trainers']}", highlight=False)
        if "cores" in job:  # a daemon of another version says less
            console.print(f"cores    {_cores(job['cores'])}", highlight=False)
        console.print(f"workers  {workers or 'none yet'}", highlight=False)
        for loader in job["loaders"]:
            _show_loader(console, loader)


def _loop(loop: dict[str, Any]) -> str:
    """Like "longest turn 7.1 ms, 2.9 ms of CPU time; 3 of 10,412 turns over 5 ms"."""
    late = sum(n for bound, n in zip(loop["bounds_ms"], loop["by_wall"][1:]) if bound >= _LATE_MS)
    return (
        f"longest turn {loop['longest_ms']:.1f} ms, in CPU time {loop['longest_cpu_ms']:.1f} ms; "
        f"{late:,} of {loop['turns']:,} turns over {_LATE_MS} ms"
    )


def _cores(cores: dict[str, Any]) -> str:
    """Like "2-9 decode, 0-1 kept free for the trainers, the cgroup's limit is 10"."""
    said = [f"{_ranges(cores['owned']) or 'none'} decode"]
    if cores["reserved"]:
        said.append(f"{_ranges(cores['reserved'])} kept free for the trainers")
    if cores["limit"] is not None:
        said.append(f"the cgroup's limit is {cores['limit']:g}")
    return ", ".join(said)


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers as in "0-3,8"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(f"{a}-{b}" if a != b else str(a) for a, b in found)


def _show_loader(console: Console, loader: dict[str, Any]) -> None:
    title = f"loader {loader['loader']}: {loader['recipe']}, {loader['steps_per_epoch']} steps per epoch"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for c in loader["consumers"]:
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
    if loader["bad_samples"]:
        console.print(f"{loader['bad_samples']} bad samples in this epoch and the last", highlight=False)
    if loader["failure"]:
        console.print(f"ended: {loader['failure']}", highlight=False)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"
