"""helixctl drain and config: what an operator does with a standing daemon."""

from __future__ import annotations

import json
from typing import Any

import click

from libhelix.client import service_socket
from libhelix.ctl.daemons import ask, socket_option
from libhelix.ctl.output import say
from libhelix.errors import DaemonUnreachable
from libhelix.wire import messages as m


@click.command(
    epilog="Example: helixctl drain",
    short_help="Let a standing daemon end with its last job.",
)
@socket_option
@click.option("--cancel", is_flag=True, help="Take jobs again.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def drain(path: str | None, cancel: bool, as_json: bool) -> None:
    """Let the standing daemon take no new job, and end when its last one has.

    Jobs that are there go on, and come back after a crash. For root, and for the user that helixd runs as.
    """
    found = _ask(path, m.Drain(cancel))
    if as_json:
        click.echo(json.dumps(found))
        return
    names = ", ".join(job["job"] for job in found["jobs"]) or "none"
    state = "takes jobs again" if cancel else "takes no new job and ends with its last"
    say(f"helixd {state}; jobs now: {names}")


@click.command(
    epilog="Example: helixctl config --json", short_help="Show a standing daemon's settings and their origin."
)
@socket_option
@click.option("--effective", is_flag=True, help="As they are in force; that is what is shown anyway.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def config(path: str | None, effective: bool, as_json: bool) -> None:
    """Show the settings that are in force in the standing daemon, and where each comes from."""
    del effective
    found = _ask(path, m.StatusAsk())["config"]
    if as_json:
        click.echo(json.dumps(found))
        return
    width = max(map(len, found), default=0)
    for name, setting in found.items():
        say(f"{name:<{width}}  {setting['value']}  ({setting['origin']})")


def _ask(path: str | None, question: m.FromCtl) -> dict[str, Any]:
    address = path or service_socket()
    if address is None:
        raise DaemonUnreachable("no standing helixd runs here; name its socket with --socket")
    return ask(address, "name another --socket", question)
