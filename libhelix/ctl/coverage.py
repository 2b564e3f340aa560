"""helixctl coverage: how often a saved state says that each sample was delivered."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from libhelix.errors import ResumeMismatch, UsageError
from libhelix.index.read import Index
from libhelix.plan.coverage import Coverage, coverage, undelivered
from libhelix.plan.state import State, decoded


@click.command(
    epilog="Example: helixctl coverage step-12000.json --index train.arrow",
    short_help="Show how often samples were delivered.",
)
@click.argument("paths", metavar="STATE...", type=click.Path(), nargs=-1, required=True)
@click.option("--index", "index_path", type=click.Path(), help="Name the samples that were not delivered.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def show(paths: tuple[str, ...], index_path: str | None, as_json: bool) -> None:
    """Show how often each sample was delivered, from what state_dict() returned, saved as JSON.

    States of several ranks must agree, or this fails and says which do not.
    """
    state = _agreed(paths)
    found = coverage(state)
    names = _names(state, index_path) if index_path is not None else None
    if as_json:
        click.echo(json.dumps({**msgspec.to_builtins(found), **(names or {})}))
        return
    _print(found)
    for title, keys in (names or {}).items():
        click.echo(f"{title.replace('_', ' ')}:" + "".join(f"\n  {key}" for key in keys))


def _agreed(paths: tuple[str, ...]) -> State:
    states = [(path, _read(path)) for path in paths]
    first_path, first = states[0]
    for path, state in states[1:]:
        if state != first:
            ours, theirs = msgspec.to_builtins(first), msgspec.to_builtins(state)
            fields = ", ".join(name for name in ours if ours[name] != theirs[name])
            raise ResumeMismatch(
                f"{path} and {first_path} differ in {fields}: they are not of one step; save all ranks at "
                "the same one"
            )
    return first


def _read(path: str) -> State:
    try:
        saved = json.loads(Path(path).read_text())
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}") from e
    except ValueError as e:
        raise UsageError(f"{path} is no JSON ({e}); save json.dumps(loader.state_dict())") from e
    try:
        return decoded(saved)
    except UsageError as e:
        raise UsageError(f"{path}: {e}") from e


def _names(state: State, path: str) -> dict[str, list[str]]:
    index = Index.open(path)
    if state.sources:
        raise UsageError("--index names samples of one index; the state is of a mixture of several")
    if index.fingerprint != state.index:
        raise ResumeMismatch(f"the state belongs to index {state.index}, {path} is {index.fingerprint}")
    out, coming = undelivered(state)
    return {
        "left_out": [index[int(i)].key for i in out],
        "still_to_come": [index[int(i)].key for i in coming],
    }


def _print(found: Coverage) -> None:
    click.echo(f"{found.samples:,} samples")
    if found.earlier:
        click.echo(
            f"epochs 0 to {found.earlier - 1}: each sample once, but for {found.left_out_earlier:,} left out"
        )
    click.echo(f"{'epoch':>8}{'delivered once':>18}{'left out':>14}{'still to come':>16}")
    for e in found.epochs:
        click.echo(f"{e.epoch:>8,}{e.delivered:>18,}{e.left_out:>14,}{e.to_come:>16,}")
    if found.sources:
        click.echo(f"{'source':>8}{'samples':>18}{'delivered':>14}{'share':>16}{'asked for':>12}")
    for i, s in enumerate(found.sources):
        click.echo(f"{i:>8}{s.samples:>18,}{s.delivered:>14,}{s.share:>16.2%}{s.asked:>12.2%}")
