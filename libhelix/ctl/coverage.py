"""helixctl coverage: how often a saved state says that each sample was delivered."""

from __future__ import annotations

import json
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

import click
import msgspec

from libhelix.ctl.figures import table
from libhelix.ctl.output import counted, say
from libhelix.errors import ResumeMismatch, UsageError
from libhelix.index.join import Joined
from libhelix.index.read import Index
from libhelix.plan.coverage import Coverage, coverage, undelivered
from libhelix.plan.state import State, decoded

_SHOWN = 20
_WORDS = {
    "format": "format",
    "version": "version of datahelix",
    "first_epoch": "the epoch that they began with",
    "base": "where their window begins",
    "rest": "what is still to come",
    "left_out": "what was left out",
    "left_out_before": "how much earlier epochs left out",
    "index": "the data",
    "samples": "the number of samples",
    "sources": "the sources",
    "schedule": "the weights of the mixture",
    "epoch_draws": "the draws of an epoch",
    "shuffle_block": "shuffle_block",
    "quarantine": "the samples in quarantine",
    "recipe": "the recipe",
    "batching": "the batching",
    "end": "the end of an epoch",
    "seed": "the seed",
    "shuffle": "shuffle",
    "dp_size": "the number of ranks",
    "micro_batches": "the micro-batches of a step",
    "max_bytes": "the largest batch",
    "journal": "the weights that were set while training",
}
"""Fields of a state but its step, as users know them."""


@click.command(
    epilog="Example: helixctl coverage step-12000.json --index train.arrow",
    short_help="Show how often samples were delivered.",
)
@click.argument("paths", metavar="STATE...", type=click.Path(), nargs=-1, required=True)
@click.option(
    "--index",
    "indexes",
    type=click.Path(),
    multiple=True,
    help="Name the samples that were not delivered; of a mixture, give all its indexes, in its order.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, with all names.")
def show(paths: tuple[str, ...], indexes: tuple[str, ...], as_json: bool) -> None:
    """Show how often each sample was delivered, from what state_dict() returned, saved as JSON.

    States of several ranks must agree, or this fails and says which do not.
    """
    state = _agreed(paths)
    found = coverage(state)
    names = _names(state, indexes) if indexes else {}
    if as_json:
        click.echo(json.dumps({**msgspec.to_builtins(found), **names}))
        return
    _print(found, state, indexes)
    for title, keys in names.items():
        _print_names(title.replace("_", " "), keys)


def _agreed(paths: tuple[str, ...]) -> State:
    states = [(path, _read(path)) for path in paths]
    first_path, first = states[0]
    for path, state in states[1:]:
        if _step(state) != _step(first):
            raise ResumeMismatch(
                f"{first_path} is of {_step(first)}, {path} of {_step(state)}: save all ranks at the "
                "same step"
            )
        if state != first:
            ours, theirs = msgspec.to_builtins(first), msgspec.to_builtins(state)
            fields = ", ".join(_WORDS[name] for name in ours if ours[name] != theirs[name])
            raise ResumeMismatch(
                f"{first_path} and {path} are of one step and differ in {fields}: they are not of one job; "
                "save all ranks of one"
            )
    return first


def _step(state: State) -> str:
    micro = f", micro-batch {state.micro}" if state.micro else ""
    return f"step {state.step} of epoch {state.epoch}{micro}"


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


def _names(state: State, paths: tuple[str, ...]) -> dict[str, list[str]]:
    count = max(1, len(state.sources))
    if len(paths) != count:
        of = f"a mixture of {count} sources; give --index for all of them, in its order"
        raise UsageError(
            f"--index is given {len(paths)} times, the state is of {of if state.sources else 'one index'}"
        )
    index = Joined([Index.open(path) for path in paths])
    if index.fingerprint != state.index:
        of = "these, in this order," if state.sources else paths[0]
        raise ResumeMismatch(f"the state belongs to index {state.index}, {of} is {index.fingerprint}")
    starts = [0, *accumulate(index.sizes)]

    def name(sample: int) -> str:
        source = bisect_right(starts, sample) - 1
        return f"{paths[source]}: {index[sample].key}" if state.sources else index[sample].key

    out, coming = undelivered(state)
    return {
        "left_out": [name(int(i)) for i in out],
        "still_to_come": [name(int(i)) for i in coming],
    }


def _print_names(title: str, names: list[str]) -> None:
    if not names:
        return
    say(f"{title}:", *(f"  {name}" for name in names[:_SHOWN]))
    if len(names) > _SHOWN:
        say(f"  ... and {len(names) - _SHOWN:,} more (--json lists all)")


def _print(found: Coverage, state: State, indexes: tuple[str, ...]) -> None:
    """Of a mixture, draws are counted: a sample may have several in an epoch."""
    mixed = bool(state.sources)
    draws = f", {state.epoch_draws:,} draws in an epoch" if mixed else ""
    out = f", {len(state.quarantine):,} in quarantine" if state.quarantine else ""
    say(f"{counted(found.samples, 'sample')}{out}{draws}")
    if found.earlier:
        epochs = f"epochs 0 to {found.earlier - 1}" if found.earlier > 1 else "epoch 0"
        but = f", but for {found.left_out_earlier:,} left out" if found.left_out_earlier else ""
        say(f"{epochs}: each {'draw' if mixed else 'sample'} delivered once{but}")
    draws = "draws delivered" if mixed else "delivered once"
    say(f"{'epoch':>8}{draws:>18}{'left out':>14}{'still to come':>16}")
    for e in found.epochs:
        say(f"{e.epoch:>8,}{e.delivered:>18,}{e.left_out:>14,}{e.to_come:>16,}")
    if found.sources:
        rows = [("source", "samples", "delivered", "share", "asked for")]
        rows += [
            (name, f"{s.samples:,}", f"{s.delivered:,}", f"{s.share:.2%}", f"{s.asked:.2%}")
            for name, s in zip(indexes or map(str, range(len(found.sources))), found.sources)
        ]
        say(*table(rows))
