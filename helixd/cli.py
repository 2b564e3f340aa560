"""The command `helixd`."""

from __future__ import annotations

import json as json_module
import os
import sys
from functools import partial
from typing import NoReturn

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


@cli.command(
    epilog="Examples:  helixd run --socket /tmp/helixd.sock --cores 2-15;  "
    "helixd run --helper --store node0:29500"
)
@click.option("--socket", help="Path to listen at.  [default: /run/helixd/helixd.sock for root]")
@click.option("--cores", help="Cores that decode, like 0-3,8.  [default: all that the ranks may use]")
@click.option(
    "--reserve",
    help="Cores per rank that stay free to launch kernels.  [default: 1; 0 with fewer than 4 a rank]",
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
@click.option(
    "--helper", is_flag=True, help="Decode for a job of other nodes, whose trainers have HELIX_HELPERS."
)
@click.option(
    "--store",
    help="HOST:PORT of that job's rendezvous.  [default: MASTER_ADDR:MASTER_PORT]",
    metavar="HOST:PORT",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=1800.0,
    show_default=True,
    help="Seconds to wait for that job.",
)
def run(
    socket: str | None,
    cores: str | None,
    reserve: str | None,
    log_level: str | None,
    metrics: str | None,
    file: str | None,
    helper: bool,
    store: str | None,
    wait: float,
) -> None:
    """Serve jobs until SIGTERM or SIGINT.

    SIGHUP reads the settings again. With --helper, decode for one job until that is over, with a private
    daemon, or by the standing one of HELIX_SOCKET.

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
    if helper:
        chosen = load(file=file)  # what cannot be is an error here
        said = {
            "SOCKET": socket,
            "RESERVE": str(chosen.reserve) if chosen.reserve is not None else None,
            "LOG": chosen.log_level,
            "METRICS": chosen.metrics,
        }
        if chosen.cores is not None:
            # Any daemon, private or standing, decodes where its client may run.
            os.sched_setaffinity(0, chosen.cores)
        _help(store, wait, {f"HELIX_{name}": value for name, value in said.items() if value is not None})
    elif store is not None:
        raise UsageError("--store is for --helper")
    sys.exit(daemon.run(load(), load))


def _help(store: str | None, wait_s: float, environ: dict[str, str]) -> NoReturn:
    """Become a client that has a daemon help: this process is none."""
    if store is None:
        if not (os.environ.get("MASTER_ADDR") and os.environ.get("MASTER_PORT")):
            raise UsageError("whom to help? Give --store HOST:PORT, or set MASTER_ADDR and MASTER_PORT")
        store = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    # No rank of this node needs a core, and a store that is gone is told in one line.
    quiet = {"HELIX_RESERVE": "0", "TORCH_CPP_LOG_LEVEL": "FATAL", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    words = [sys.executable, "-m", "libhelix.helping", store, str(wait_s)]
    os.execve(sys.executable, words, {**quiet, **os.environ, **environ})


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
