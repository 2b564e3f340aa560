"""The command `helixd`."""

from __future__ import annotations

import json as json_module
import os
import sys
from functools import partial

import click

from helixd import config as configuration
from helixd import daemon
from helixd.config import SYSTEM_CONFIG
from libhelix._version import __version__
from libhelix.errors import HelixError, UsageError
from libhelix.wire.messages import PROTOCOL


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="helixd")
def cli() -> None:
    """The data plane's daemon, one per node.

    Trainers start a private one by themselves; run this one to serve several jobs.
    """


@cli.command(epilog="Example:  helixd run --socket /tmp/helixd.sock --cores 2-15")
@click.option("--socket", help="Path to listen at.  [default: /run/helixd/helixd.sock for root]")
@click.option("--cores", help="Cores that decode, like 0-3,8.  [default: all that the ranks may use]")
@click.option(
    "--reserve",
    help="Cores per rank that stay free to launch kernels.  [default: 1; 0 where a rank has fewer than 4]",
)
@click.option("--log-level", help="info, warning or error.  [default: warning]")
@click.option(
    "--metrics", help="HOST:PORT or path for Prometheus: /metrics, /healthz, /readyz.  [default: none]"
)
@click.option(
    "--config",
    "file",
    envvar="HELIX_CONFIG",
    help="Settings as TOML.  [default: /etc/helix/helixd.toml where it is]",
)
def run(
    socket: str | None,
    cores: str | None,
    reserve: str | None,
    log_level: str | None,
    metrics: str | None,
    file: str | None,
) -> None:
    """Serve jobs until SIGTERM or SIGINT.

    SIGHUP reads the settings again.

    A job decodes on the cores that its ranks may use and its cpuset and CPU limit leave it, and follows them.
    """
    where = file or (SYSTEM_CONFIG if os.path.exists(SYSTEM_CONFIG) else None)
    load = partial(
        configuration.load,
        socket=socket,
        cores=cores,
        reserve=reserve,
        log_level=log_level,
        metrics=metrics,
        file=where,
    )
    sys.exit(daemon.run(load(), load))


@cli.command(epilog="Example:  helixd check /etc/helix/helixd.toml")
@click.argument("file", required=False, metavar="[CONFIG]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(file: str | None, as_json: bool) -> None:
    """Read a configuration, /etc/helix/helixd.toml by default, and show what would be in force.

    Exits with 2, and says where, if a setting cannot be.
    """
    shown = configuration.load(file=file or SYSTEM_CONFIG).shown()
    if as_json:
        click.echo(json_module.dumps(shown))
        return
    width = max(map(len, shown))
    for name, setting in shown.items():
        click.echo(f"{name:<{width}}  {setting['value']}  ({setting['origin']})")


@cli.command(epilog="Example:  helixd version --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def version(as_json: bool) -> None:
    """Print the version and the protocol of the local link."""
    if as_json:
        click.echo(json_module.dumps({"version": __version__, "protocol": PROTOCOL}))
    else:
        click.echo(f"helixd {__version__}, protocol {PROTOCOL}")


def main() -> None:
    """Run the command; errors are one line. Exit code 2 for a setting that cannot be, 1 for the rest."""
    try:
        cli()
    except HelixError as e:
        click.echo(f"error: {e}", err=True)
        sys.exit(2 if isinstance(e, UsageError) else 1)
