"""What recipes of conversations share: tokens and labels as fields, and pictures as rows of a field."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np

from libhelix.errors import MediaError, RecipeError, UsageError
from libhelix.media.jsonfile import read_object
from libhelix.plan.counts import internvl
from libhelix.recipe import Field, Item, Pack, Pad, Part, Rng, Sample, merge_segments
from libhelix.recipes.image import Image

if TYPE_CHECKING:
    from libhelix.media.chat import ChatTemplate, Encoded
    from libhelix.media.conversation import Conversation

Array = np.ndarray[Any, np.dtype[Any]]
TextLayout = Literal["pack", "pad"]

IGNORED = -100
"""The label that losses ignore."""
_ENDS = ("<|im_end|>", "<|end|>")
"""Tokens that end a turn, whatever a checkpoint calls its end of text."""
US_TEXT = 900
"""Reading, rendering and tokenizing a usual conversation."""
_US_PER_MPX_READ, _US_PER_MPX_SCALED = 1500, 9000


class Spoken(NamedTuple):
    """The tokens of a conversation, and what of them is learned; int64 [n] both."""

    ids: Array
    labels: Array

    @property
    def costs(self) -> dict[str, int]:
        """The declared costs "tokens" and "targets"."""
        return {"tokens": len(self.ids), "targets": int((self.labels != IGNORED).sum())}


def spoken(template: ChatTemplate, encoded: Encoded) -> Spoken:
    """Ids and labels. What the assistant says is learned up to the token that ends its turn, and with it,
    wherever the template's spans end: behind a line break after it, or before it.
    """
    ids, targets = encoded.ids, encoded.targets.copy()
    ends = np.isin(ids, _end_ids(template))
    edges = np.flatnonzero(np.diff(targets, prepend=False, append=False))
    for begin, end in edges.reshape(-1, 2).tolist():
        inside = np.flatnonzero(ends[begin:end])
        if len(inside):
            targets[begin + inside[-1] + 1 : end] = False
        elif end < len(ids) and ends[end]:
            targets[end] = True
    return Spoken(ids, np.where(targets, ids, IGNORED))


def _end_ids(template: ChatTemplate) -> list[int]:
    found = []
    for word in (*_ENDS, template.special.get("eos_token", "")):
        try:
            found.append(template.token(word))
        except UsageError:
            continue
    return found


def text_fields(template: ChatTemplate, n: int, layout: TextLayout) -> tuple[Field, ...]:
    """ "input_ids", "labels", and "position_ids" where packed, else "attention_mask"; int64 [n] each."""
    last = ("position_ids", 0) if layout == "pack" else ("attention_mask", 0)
    fields = (("input_ids", template.pad), ("labels", IGNORED), last)
    return tuple(
        Field(name, "int64", (n,), Pack(counts="tokens", value=value) if layout == "pack" else Pad(value))
        for name, value in fields
    )


def write_text(said: Spoken, out: Mapping[str, Array]) -> None:
    """Write the fields of `text_fields`."""
    out["input_ids"][...], out["labels"][...] = said
    if "position_ids" in out:
        out["position_ids"][...] = np.arange(len(said.ids))
    else:
        out["attention_mask"][...] = 1


def without_breaks(talk: Conversation, *, before: bool) -> Conversation:
    """A conversation whose place holders in texts have lost the line break behind them, or, if `before`, that
    before them too: for templates that write their own.
    """
    from libhelix.media.conversation import Slot

    turns = []
    for turn in talk.turns:
        content = list(turn.content)
        for at, part in enumerate(content):
            if not isinstance(part, Slot) or part.element:  # those of lists stand as they are
                continue
            if at + 1 < len(content) and isinstance(behind := content[at + 1], str):
                content[at + 1] = behind.removeprefix("\n")
            if before and at and isinstance(ahead := content[at - 1], str):
                content[at - 1] = ahead.removesuffix("\n")
        turns.append(msgspec.structs.replace(turn, content=tuple(part for part in content if part != "")))
    return msgspec.structs.replace(talk, turns=tuple(turns))


class Piece(NamedTuple):
    """A picture or a video, and the rows that it becomes: tiles of a grid and its thumbnail, or frames."""

    item: Item
    rows: int
    grid: tuple[int, int] = (0, 0)
    """(columns, rows) of a picture."""
    frames: tuple[int, ...] = ()
    """Of a video, one for each row."""

    @property
    def codec(self) -> str:
        """By which predictions of its cost are corrected."""
        info = self.item.video or self.item.image
        return info.codec if info is not None else ""


def segments(pieces: Sequence[Piece], side: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where the rows of some pieces may be cut, and the microseconds between: pieces begin there, and the
    key-frame groups of videos. `side` is that of a row's square."""
    from libhelix.media.video import group_cuts

    cuts: list[int] = []
    us: list[int] = []
    at = 0
    for piece in pieces:
        cuts.extend([at] if at else [])
        if piece.item.video is not None:
            cuts.extend(at + cut for cut in group_cuts(piece.item.video, piece.frames))
        us.extend(_us(piece, side))
        at += piece.rows
    return merge_segments(cuts, us or [0])


def _us(piece: Piece, side: int) -> tuple[int, ...]:
    from libhelix.media.video import decode_cost_us, group_cuts

    info = piece.item.video
    if info is None:
        image = piece.item.image
        assert image is not None
        return (image_us(piece.item) + _scaling(image.width * image.height, piece.rows * side * side),)
    pixels = info.width * info.height
    bounds = (0, *group_cuts(info, piece.frames), len(piece.frames))
    return tuple(
        us + len(set(piece.frames[a:b])) * _scaling(pixels, side * side)
        for a, b, us in zip(bounds, bounds[1:], decode_cost_us(info, piece.frames, 0))
    )


def image_us(item: Item) -> int:
    """Microseconds to decode an image."""
    (us,) = Image().describe(Sample(0, item.path, (item,)), Rng(0, 0, 0)).segment_us
    return us


def _scaling(read: int, written: int) -> int:
    return (read * _US_PER_MPX_READ + written * _US_PER_MPX_SCALED) // 1_000_000


def write_rows(pieces: Iterable[Piece], part: Part, out: Array) -> None:
    """Write the part's rows of all pieces to `out`, uint8 [part's rows, 3, side, side]."""
    from libhelix.media import tiles

    at = 0
    for piece in pieces:
        begin, end = max(part.begin, at), min(part.end, at + piece.rows)
        if begin < end:
            rows = out[begin - part.begin : end - part.begin]
            if piece.frames:
                tiles.frames(piece.item, piece.frames[begin - at : end - at], rows, part.threads)
            else:
                tiles.grid(tiles.picture_of(piece.item), *piece.grid, rows, begin - at)
        at += piece.rows


def random_frames(total: int, count: int, rng: Rng) -> tuple[int, ...]:
    """InternVL's "rand": a frame of each of `count` stretches, the last again for a shorter video.

    Where a stretch leaves no choice, frames of the whole video without repetition, in order.
    """
    ranges = internvl.random_ranges(total, count)
    if all(ranges):
        chosen = [rng.integers(one.start, one.stop) for one in ranges]
    else:
        pool = list(range(total))
        for at in range(len(ranges)):
            other = rng.integers(at, total)
            pool[at], pool[other] = pool[other], pool[at]
        chosen = sorted(pool[: len(ranges)])
    return (*chosen, *[chosen[-1]] * (count - len(chosen)))


def check_checkpoint(recipe: str, folder: str) -> str:
    """The folder as workers find it. Raises UsageError where it holds no tokenizer."""
    absolute = os.path.abspath(folder)  # workers start elsewhere
    if not os.path.isfile(os.path.join(absolute, "tokenizer.json")):
        raise UsageError(
            f"{recipe}(checkpoint={folder!r}): has no tokenizer.json; name the folder of a checkpoint"
        )
    return absolute


def check_choice(recipe: str, name: str, value: object, choices: Sequence[str]) -> None:
    """Raise UsageError unless a setting is one of its choices."""
    if value not in choices:
        raise UsageError(f"{recipe}({name}={value!r}) must be one of {', '.join(choices)}")


@contextmanager
def of_the_recipe(recipe: str) -> Iterator[None]:
    """A checkpoint that cannot be used concerns all samples, not the one that came first."""
    try:
        yield
    except UsageError as e:
        raise RecipeError(f"{recipe}: {e}") from e


def image_of(item: Item) -> tuple[int, int]:
    """(height, width) of an image as it is seen. Raises MediaError where its header was not indexed."""
    if item.image is None:
        raise MediaError(f"{item.path}: indexed without an image header; run helixctl index again")
    return item.image.display_size


Floats = tuple[float, ...]


@lru_cache(maxsize=8)
def mean_and_std(folder: str) -> tuple[Floats, Floats]:
    """Of the channels, as a checkpoint's image processor has them. Raises UsageError without any."""
    for name in ("processor_config.json", "preprocessor_config.json"):
        found = read_object(os.path.join(folder, name))
        found = found.get("image_processor", found)
        if "image_mean" in found and "image_std" in found:
            return tuple(map(float, found["image_mean"])), tuple(map(float, found["image_std"]))
    raise UsageError(f"{folder}: neither processor_config.json nor preprocessor_config.json has image_mean")


def scale_and_shift(folder: str) -> tuple[Array, Array]:
    """float32 [3, 1, 1] both: pixels * scale + shift are the floats of the checkpoint's image processor."""
    mean, std = (np.asarray(one)[:, np.newaxis, np.newaxis] for one in mean_and_std(folder))
    return (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)
