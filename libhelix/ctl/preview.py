"""helixctl preview: what a recipe makes of one sample, to look at and to hear."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import click
import numpy as np
import pyarrow.compute as pc

from libhelix.ctl.keys import NEAR, near_keys
from libhelix.ctl.output import counted, output_option, say, written
from libhelix.ctl.parts import Shown, Sound, Words, parts_of, texts_of, title_of
from libhelix.ctl.recipes import recipe_of, recipe_options
from libhelix.ctl.sheet import draw, printable
from libhelix.errors import UsageError
from libhelix.index.read import Index
from libhelix.recipe import Recipe
from libhelix.recipes.trial import AsStored, has_more_than_text, trial

_LINES, _COLUMNS = 5, 200
"""Of a text, in the terminal; the sheet has more."""
_FLOAT, _PCM = 3, 1
"""Formats of a WAV."""
_EXAMPLES = """\b
Examples:
  helixctl preview train.arrow cats/0001.mp4 -o a.png
  helixctl preview train.arrow '#17' -o a.png          by number, where keys repeat
  helixctl preview train.arrow talk.mp4 --recipe libhelix.recipes:Audio -o a.wav
  helixctl preview train.arrow a.jpg --recipe mine:Augmented --epoch 3 -o a.png
  helixctl preview train.arrow a.mp4 --recipe train:recipe -o a.png   made there
"""


@click.command(epilog=_EXAMPLES, short_help="Show what a recipe makes of a sample.")
@click.argument("path", metavar="INDEX", type=click.Path())
@click.argument("key", metavar="KEY")
@recipe_options(required=False, help="A class, or a recipe in a module.  [default: items as they are]")
@click.option("--seed", type=int, default=0, help="Of the loader: of random draws.  [default: 0]")
@click.option(
    "--epoch", type=click.IntRange(min=0), default=0, help="Of the loader: of random draws.  [default: 0]"
)
@output_option(help="OUT.png, or OUT.wav for the first sound.")
def preview(
    path: str, key: str, name: str | None, params: tuple[str, ...], seed: int, epoch: int, output: Path
) -> None:
    """Write what a recipe makes of the sample KEY of INDEX: frames with their numbers and times, waveforms,
    texts, and shape, dtype and spread of what is neither.

    A loader over this index alone, with this seed, delivers the same in this epoch. PNGs take matplotlib, the
    extra datahelix[plot].
    """
    suffix = output.suffix.lower()
    if suffix not in (".png", ".wav"):
        raise UsageError(f"-o {output}: name a .png, or a .wav for sound")
    recipe = recipe_of(name, params) if name is not None else AsStored()
    index = Index.open(path)
    number = _number(index, key, path)
    title, parts = _shown(index, number, recipe, seed, epoch)
    if suffix == ".wav":
        sound = _first_sound(parts, output)
        with written(output) as file:
            write_wav(file, sound.stored, sound.rate or 0)
    else:
        with written(output) as file:
            draw(title, parts, file)
    say(*title.split("\n"))
    for part in parts:
        say(f"  {part.caption}")
        if isinstance(part, Words) and part.text:
            lines = printable(part.text).split("\n")
            say(*(f"    {line[:_COLUMNS]}" for line in lines[:_LINES]))


def _shown(index: Index, number: int, recipe: Recipe, seed: int, epoch: int) -> tuple[str, Sequence[Shown]]:
    sample = index[number]
    if not isinstance(recipe, AsStored):
        made = trial(index, number, recipe, seed=seed, epoch=epoch)
        predicted = sum(made.desc.segment_us) / 1e3
        costs = "".join(f", {n:,} {what}" for what, n in made.desc.costs.items())
        title = (
            f"{title_of(sample)}\n{type(recipe).__qualname__}, seed {seed}, epoch {epoch}{costs}; filled in "
            f"{made.cpu_s * 1e3:.1f} ms of a core, {predicted:.1f} predicted"
        )
        return title, list(parts_of(made, recipe))
    found: list[Shown] = []
    if has_more_than_text(sample):
        found += parts_of(trial(index, number, recipe, seed=seed, epoch=epoch), recipe)
    return title_of(sample), [*found, *texts_of(sample)]


# ---- which sample --------------------------------------------------------------------------------------


def _number(index: Index, key: str, path: str) -> int:
    keys = index.keys()
    found = np.flatnonzero(pc.equal(keys, key).to_numpy(zero_copy_only=False)).tolist()
    if len(found) == 1:
        return int(found[0])
    if found:
        some = ", ".join(f"'#{i}' in {index[i].items[0].path}" for i in found[:NEAR])
        more = f" and {len(found) - NEAR:,} more" if len(found) > NEAR else ""
        raise UsageError(f"{key}: {len(found):,} samples have this key; name one by its number: {some}{more}")
    if key[:1] == "#" and key[1:].isdigit():
        if int(key[1:]) < len(index):
            return int(key[1:])
        raise UsageError(f"{key}: {path} has {counted(len(index), 'sample')}, #0 to #{len(index) - 1}")
    raise UsageError(f"{key}: no sample of {path} has this key{near_keys(index, key)}")


# ---- a sound -------------------------------------------------------------------------------------------


def _first_sound(parts: Sequence[Shown], output: Path) -> Sound:
    sound = next((part for part in parts if isinstance(part, Sound)), None)
    if sound is None:
        raise UsageError(f"-o {output}: nothing of this sample becomes sound; write a .png")
    if not sound.rate:
        raise UsageError(f"-o {output}: the recipe has no `rate` to write the sound with; write a .png")
    return sound


def write_wav(file: IO[bytes], rows: np.ndarray[Any, np.dtype[Any]], rate: int) -> None:
    """Samples [channels, n] as they are, float32 or int16."""
    kind = _FLOAT if rows.dtype == np.float32 else _PCM
    width = rows.dtype.itemsize * len(rows)
    body = np.ascontiguousarray(rows.T).astype(rows.dtype.newbyteorder("<")).tobytes()
    form = struct.pack("<HHIIHH", kind, len(rows), rate, rate * width, width, 8 * rows.dtype.itemsize)
    head = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(body))
    file.write(b"RIFF" + struct.pack("<I", len(head) + len(body)) + head + body)
