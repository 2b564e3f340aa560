"""`python -m bench <command>`. A command is imported only when it is called for: some need torch."""

from __future__ import annotations

import importlib
import logging

import click

COMMANDS = {
    "ablate": "bench.ablate.command:ablate",
    "costs": "bench.costs.command:costs",
    "decode": "bench.decode.command:decode",
    "demo": "bench.demo.command:demo",
    "device": "bench.device.command:device",
    "handoff": "bench.handoff.command:handoff",
    "index": "bench.index.command:index",
    "media": "bench.media.command:media",
    "node": "bench.node.command:node",
    "overhead": "bench.overhead.command:overhead",
    "peers": "bench.peers.command:peers",
    "plan": "bench.plan.command:plan",
    "report": "bench.node.command:report",
    "simulate": "bench.simulate.command:simulate",
    "split": "bench.split.command:split",
}
"""Name of the command -> where its click command lives."""


class LazyGroup(click.Group):
    """A click group that imports a command's module when the command is named or its help is shown."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{COMMANDS[cmd_name]} is not a click command"
        return command


@click.command(cls=LazyGroup)
def main() -> None:
    """Measure DataHelix on this machine."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


if __name__ == "__main__":
    main(prog_name="python -m bench")
