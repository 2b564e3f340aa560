"""helixctl: what users type. A command is a module with one click command, named in `_COMMANDS`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import click

from libhelix._version import __version__
from libhelix.ctl.output import say
from libhelix.errors import DaemonUnreachable, HelixError, UsageError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3

_COMMANDS = {
    "index": "libhelix.ctl.index:index",
    "inspect": "libhelix.ctl.inspect:inspect",
    "preview": "libhelix.ctl.preview:preview",
    "lint": "libhelix.ctl.lint:lint",
    "errors": "libhelix.ctl.errors:errors",
    "quarantine": "libhelix.ctl.quarantine:quarantine",
    "describe": "libhelix.ctl.describe:describe",
    "coverage": "libhelix.ctl.coverage:show",
    "replay": "libhelix.ctl.replay:replay",
    "diff": "libhelix.ctl.diff:diff",
    "status": "libhelix.ctl.status:status",
    "why": "libhelix.ctl.why:why",
    "trace": "libhelix.ctl.trace:trace",
    "config": "libhelix.ctl.operating:config",
    "drain": "libhelix.ctl.operating:drain",
    "top": "libhelix.ctl.top:top",
    "doctor": "libhelix.ctl.doctor:doctor",
}
"""Subcommand -> module:command, imported when used, so that one command does not pay for the others."""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        home = _COMMANDS.get(cmd_name)
        if home is None:
            return None
        module, name = home.split(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="helixctl")
def cli() -> None:
    """Index media, and look at what DataHelix does with them.

    Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 daemon unreachable.
    """


def main(args: Sequence[str] | None = None) -> None:
    """Run helixctl and exit. Errors are one line on stderr, never a traceback."""
    try:
        code = cli.main(args=list(args) if args is not None else None, standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as e:
        e.show()
        sys.exit(e.exit_code)
    except (click.Abort, KeyboardInterrupt):
        say("stopped", err=True)
        sys.exit(130)
    except HelixError as e:
        say(f"error: {e}", err=True)
        sys.exit(_exit_code(e))


def _exit_code(error: HelixError) -> int:
    if isinstance(error, UsageError):
        return EXIT_USAGE
    return EXIT_UNREACHABLE if isinstance(error, DaemonUnreachable) else EXIT_FAILED


if __name__ == "__main__":
    main()
