"""helixctl replay: a batch of a run once more, from a state that it saved."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from libhelix.ctl.output import output_option, say, written
from libhelix.ctl.recipes import recipe_of, recipe_options
from libhelix.errors import UsageError

_EXAMPLES = """\b
Examples:
  helixctl replay step-12000.json train.arrow --step 11987 --rank 3
  helixctl replay step-12000.json train.arrow --step 11987 --rank 3 -o batch.pt
"""


@click.command(epilog=_EXAMPLES, short_help="Rebuild a batch of a run from a state.")
@click.argument("path", metavar="STATE", type=click.Path())
@click.argument("sources", metavar="[SOURCE]...", nargs=-1, type=click.Path())
@click.option("--step", type=click.IntRange(min=0), required=True, help="Of the epoch.")
@click.option("--rank", type=click.IntRange(min=0), default=0, help="Data-parallel rank.  [default: 0]")
@click.option("--micro", type=click.IntRange(min=0), default=0, help="Micro-batch.  [default: 0]")
@click.option("--epoch", type=click.IntRange(min=0), help="[default: that of the state]")
@click.option("--on-bad", type=click.Choice(["mask", "replace"]), default="mask", help="Of the loader.")
@recipe_options(required=False, help="Instead of the one that the state names.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@output_option(required=False, help="OUT.pt, for torch.load.")
def replay(
    path: str,
    sources: tuple[str, ...],
    step: int,
    rank: int,
    micro: int,
    epoch: int | None,
    on_bad: Any,
    name: str | None,
    params: tuple[str, ...],
    as_json: bool,
    output: Path | None,
) -> None:
    """Rebuild the batch of a rank at a step, bit by bit, from what state_dict() returned, saved as JSON, and
    the loader's SOURCE: an index, or what it was made of; of a mixture all, in the order of its weights.

    Prints its samples, and a digest of each field. Epochs before that of the state are taken to have had the
    same ranks.
    """
    from libhelix import replaying as library  # torch takes a second; --help does not wait for it

    sys.path.insert(0, os.getcwd())  # recipes are found as `python -m` finds them
    recipe = recipe_of(name, params) if name is not None else None
    source = None if not sources else sources[0] if len(sources) == 1 else list(sources)
    batch = library.replay(
        _state(path), source, step=step, rank=rank, micro=micro, epoch=epoch, recipe=recipe, on_bad=on_bad
    )
    if output is not None:
        with written(output) as file:
            library.saved_to(batch, file)
    told = _told(batch)
    if as_json:
        click.echo(json.dumps(told))
        return
    say(f"epoch {batch.epoch}, step {batch.step}, micro-batch {batch.micro}, rank {rank}")
    for field in told["fields"]:
        shapes = ", ".join(map(str, field["shapes"]))
        say(f"  {field['name']}: {field['dtype']} {shapes}, {field['digest']}")
    for sample in told["samples"]:
        masked = "" if sample["valid"] else "  (masked)"
        say(f"  #{sample['id']}  {sample['key']}  {sample['source']}{masked}")


def _state(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as e:
        raise UsageError(f"{path}: no state saved as JSON ({e}); save json.dumps(loader.state_dict())") from e


def _told(batch: Any) -> dict[str, Any]:
    from libhelix import replaying as library

    fields = []
    for name, value in batch.items():
        tensors = value if isinstance(value, list) else [value]
        digest = hashlib.blake2b(digest_size=8)
        for tensor in tensors:
            digest.update(library.content(tensor))
        fields.append(
            {
                "name": name,
                "dtype": str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
                "shapes": [list(tensor.shape) for tensor in tensors],
                "digest": digest.hexdigest(),
            }
        )
    valid = batch.valid.tolist()
    columns = zip(batch.ids, batch.sample_keys, batch.sample_sources, valid)
    samples = [dict(zip(("id", "key", "source", "valid"), column)) for column in columns]
    at = {"epoch": batch.epoch, "step": batch.step, "micro": batch.micro}
    return {**at, "fields": fields, "samples": samples}
