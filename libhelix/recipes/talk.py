"""What recipes of conversations share: tokens and labels as fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np

from libhelix.errors import MediaError, RecipeError, UsageError
from libhelix.recipe import Field, Item, Pack, Pad, Sample

if TYPE_CHECKING:
    from libhelix.media.chat import ChatTemplate, Encoded, Expansion, Written
    from libhelix.media.conversation import Conversation, Slot

Array = np.ndarray[Any, np.dtype[Any]]
TextLayout = Literal["pack", "pad"]

IGNORED = -100
"""The label that losses ignore."""
_ENDS = ("<|im_end|>", "<|end|>")
"""Tokens that end a turn, whatever a checkpoint calls its end of text."""
_US_OPENING = 400
_BYTES_PER_US = 2
"""Of a conversation, rendered and tokenized."""


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


@lru_cache(maxsize=8)
def _end_ids(template: ChatTemplate) -> list[int]:
    found = []
    for word in (*_ENDS, template.special.get("eos_token", "")):
        try:
            found.append(template.token(word))
        except UsageError:
            continue
    return found


class Script(NamedTuple):
    """A conversation in the words of a checkpoint's template, with marks for its media, which are `slots`."""

    template: ChatTemplate
    written: Written

    @property
    def slots(self) -> tuple[Slot, ...]:
        """In the order of the text."""
        return self.written.slots

    def read(self, expansions: Sequence[Expansion], layout: TextLayout) -> tuple[Spoken, tuple[Field, ...]]:
        """The tokens, with these in the places of the media, and the fields that hold them."""
        said = spoken(self.template, self.template.encode(self.written, expansions))
        return said, text_fields(self.template, len(said.ids), layout)


def script(checkpoint: str, sample: Sample, marks: Mapping[str, str]) -> Script:
    """The conversation of a sample. `marks`: by kind of media that the model takes, what the template writes
    for one. Raises MediaError where the sample is at fault, UsageError where the checkpoint is."""
    from libhelix.media.chat import chat_template
    from libhelix.media.conversation import of_sample

    talk = of_sample(sample, tuple(marks))
    if any(slot.frames for slot in talk.slots):
        raise MediaError(
            f"{sample.key}: its video is a list of pictures, which of these recipes only QwenVL takes; make "
            "a film of them (ffmpeg -framerate 2 -i %03d.jpg film.mp4) and name that"
        )
    template = chat_template(checkpoint)
    return Script(template, template.write(without_breaks(talk, template, marks), marks))


def text_us(sample: Sample) -> int:
    """Microseconds to make the tokens of a sample."""
    return _US_OPENING + sum(item.size for item in sample.all("text")) // _BYTES_PER_US


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


def without_breaks(talk: Conversation, template: ChatTemplate, marks: Mapping[str, str]) -> Conversation:
    """A conversation without the line breaks beside place holders in its texts that the template writes
    itself, so that none is there twice. Place holders that are elements of a list stand as they are.
    """
    from libhelix.media.conversation import Slot

    turns = []
    for turn in talk.turns:
        content = list(turn.content)
        for at, part in enumerate(content):
            if not isinstance(part, Slot) or part.element:
                continue
            before, behind = _own_breaks(template, part.kind, marks[part.kind])
            if behind and at + 1 < len(content) and isinstance(after := content[at + 1], str):
                content[at + 1] = after.removeprefix("\n")
            if before and at and isinstance(ahead := content[at - 1], str):
                content[at - 1] = ahead.removesuffix("\n")
        turns.append(msgspec.structs.replace(turn, content=tuple(part for part in content if part != "")))
    return msgspec.structs.replace(talk, turns=tuple(turns))


@lru_cache(maxsize=32)
def _own_breaks(template: ChatTemplate, kind: str, mark: str) -> tuple[bool, bool]:
    """Whether a template breaks the line before a mark, or writes it ahead of the text, and behind it."""
    from libhelix.media.conversation import Conversation, Slot, Turn

    ahead, after = "vqzkja", "vqzkjb"
    slot = Slot(Item(kind=kind, path="", offset=0, size=0, mtime_ns=0))
    turns = (Turn("user", (ahead, slot, after)), Turn("assistant", (".",)))
    written = template.write(Conversation("", turns), {kind: mark})
    ((begin, end),) = written.marks
    text = written.text
    between = text[text.index(ahead) + len(ahead) : begin]
    return text.index(ahead) > begin or "\n" in between, "\n" in text[end : text.index(after)]


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
