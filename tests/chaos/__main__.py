"""The command."""

from __future__ import annotations

import json
import random
import sys

import click

from tests.chaos.run import run


@click.command(epilog="Example:  python -m tests.chaos --minutes 20 --seed 1")
@click.option("--minutes", default=2.0, show_default=True, type=click.FloatRange(0.05))
@click.option("--seed", type=int, help="Draws the faults.  [default: another each time]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def main(minutes: float, seed: int | None, as_json: bool) -> None:
    """Do all kinds of faults to a node with three jobs, and check what its ranks are given.

    Exits with 1 where a sample was lost, doubled or changed, a rank hung, or something is left.
    """
    seed = random.randrange(1 << 30) if seed is None else seed
    faults, verdicts, wrong, users = run(minutes, seed)
    found = {
        "seed": seed,
        "minutes": minutes,
        "users": users,
        "faults": dict(faults),
        "all_faults": sum(faults.values()),
        "batches": sum(v.batches for v in verdicts),
        "masked": sum(v.masked for v in verdicts),
        "trainers_started": sum(v.incarnations for v in verdicts),
        "longest_pause_s": round(max(v.longest_s for v in verdicts), 2),
        "wrong": wrong,
    }
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo("\n".join(f"{name:<18} {value}" for name, value in found.items()))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
