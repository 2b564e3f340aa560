"""Text as tokens."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from libhelix.errors import MediaError, RecipeError, UsageError
from libhelix.recipe import Descriptor, Field, Item, Layout, Pack, Pad, Part, Ragged, Recipe, Rng, Sample

if TYPE_CHECKING:
    from libhelix.media.tokenizer import Tokenizer

IGNORED = -100
"""The label that losses ignore."""
_US_OPENING = 80
_BYTES_PER_US = 2
"""Tokenized, as measured with a byte-level BPE."""
_PREFIX = 1
"""Tokens that a tokenizer may put before a text by itself, such as the space that sentencepiece adds."""


class Text(Recipe, frozen=True):
    """Fields "input_ids" and "labels", both int64 [tokens] and equal, of a sample's text.

    Exactly one of `tokenizer` (the path of a tokenizer.json) and `function` ("module:callable", which takes
    a str and returns integers) is given. `name` chooses among several texts of a sample. Texts are cut to
    `max_tokens`, special tokens included. `pad` stands in input_ids, -100 in labels, where there is padding.

    The number of tokens is known before tokenizing where the index was built with this tokenizer:
    helixctl index --tokenizer. Layout "pack" needs it; the others make room for a token per byte without it.
    Where it is known, the declared costs "tokens" and "targets" are exact; else "tokens" is an upper bound,
    and "targets" is not declared.
    """

    tokenizer: str | None = None
    function: str | None = None
    name: str = ""
    max_tokens: int | None = None
    add_special: bool = True
    layout: Literal["pad", "pack", "ragged"] = "pad"
    pad: int = 0

    def __post_init__(self) -> None:
        if (self.tokenizer is None) == (self.function is None):
            raise UsageError(
                'Text needs exactly one of tokenizer="tokenizer.json" and function="module:name"'
            )
        if self.layout not in ("pad", "pack", "ragged"):
            raise UsageError(f'Text(layout={self.layout!r}) must be "pad", "pack" or "ragged"')
        if self.max_tokens is not None and (type(self.max_tokens) is not int or self.max_tokens < 1):
            raise UsageError(f"Text(max_tokens={self.max_tokens!r}) must be an integer of 1 or more")
        if self.tokenizer is not None:
            # Workers start elsewhere.
            msgspec.structs.force_setattr(self, "tokenizer", os.path.abspath(self.tokenizer))
            if not os.path.isfile(self.tokenizer):
                raise UsageError(f"Text(tokenizer={self.tokenizer!r}): no such file")
            return
        module, _, name = (self.function or "").partition(":")
        if not module or not name:
            raise UsageError(f"Text(function={self.function!r}): write module:callable")
        if self.layout == "pack":
            raise UsageError(
                'Text(function=) cannot be packed: its tokens cannot be counted before; use "pad" or "ragged"'
            )

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """The number of tokens, exact or as a bound; the limit on it is in `draws`."""
        del rng
        return self._described(sample, self.max_tokens)

    def shrink(self, sample: Sample, rng: Rng, caps: Mapping[str, int]) -> Descriptor | None:
        """The text cut to the cap on "tokens"; None where that leaves nothing of it."""
        del rng
        limit = caps.get("tokens")
        if limit is None or limit <= self._specials():
            return None
        return self._described(sample, limit if self.max_tokens is None else min(limit, self.max_tokens))

    def _described(self, sample: Sample, limit: int | None) -> Descriptor:
        item, counted = self._text(sample)
        around = self._specials()
        if limit is not None and limit <= around:
            raise RecipeError(
                f"Text(max_tokens={limit}): the tokenizer adds {around} special tokens; allow more"
            )
        n = around + (counted if counted is not None else item.size + _PREFIX)
        n = n if limit is None else min(n, limit)
        return Descriptor(
            fields=tuple(
                Field(name, "int64", (n,), self._layout(value), bounded=self.layout != "pack")
                for name, value in (("input_ids", self.pad), ("labels", IGNORED))
            ),
            segment_us=(_US_OPENING + item.size // _BYTES_PER_US,),
            costs={"tokens": n} if counted is None else {"tokens": n, "targets": n},
            draws=limit,
            kind="text",
        )

    def fill(
        self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]
    ) -> Mapping[str, tuple[int, ...]] | None:
        """Tokenize into both fields."""
        from libhelix.media import text

        if not part.first:
            return None
        item, counted = self._text(sample)
        ids = self._encode(text.read(item), desc.draws)
        (room,) = desc.fields[0].shape
        if counted is not None and len(ids) != room:
            raise MediaError(
                f"{sample.key}: {len(ids)} tokens, {room} by the index; run helixctl index again"
            )
        if len(ids) > room:
            raise MediaError(
                f"{sample.key}: {len(ids)} tokens of {item.size} bytes, more than one each; set max_tokens, "
                "or count them: helixctl index --tokenizer"
            )
        for name in ("input_ids", "labels"):
            out[name][: len(ids)] = ids
        return {name: (len(ids),) for name in ("input_ids", "labels")}

    def _layout(self, value: int) -> Layout:
        if self.layout == "pack":
            return Pack(counts="tokens", value=value)
        return Pad(value) if self.layout == "pad" else Ragged()

    def _text(self, sample: Sample) -> tuple[Item, int | None]:
        """The text, and its tokens without special ones where this tokenizer counted them."""
        item = sample.item("text", self.name)
        info, mine = item.text, self._tokenizer()
        if info is not None and mine is not None and info.tokens >= 0 and info.tokenizer == mine.fingerprint:
            return item, info.tokens
        if self.layout == "pack":
            by = "by another tokenizer" if info is not None and info.tokens >= 0 else "not counted"
            raise RecipeError(
                f'{sample.key}: Text(layout="pack") needs texts whose tokens {self.tokenizer} counted; '
                f"these were {by}: helixctl index SRC -o OUT.arrow --tokenizer {self.tokenizer}"
            )
        return item, None

    def _tokenizer(self) -> Tokenizer | None:
        if self.tokenizer is None:
            return None
        from libhelix.media.tokenizer import tokenizer

        with _of_the_recipe():
            return tokenizer(self.tokenizer)

    def _specials(self) -> int:
        tokenizer = self._tokenizer()
        if tokenizer is None or not self.add_special:
            return 0
        with _of_the_recipe():
            return tokenizer.specials

    def _encode(self, text: str, limit: int | None) -> Sequence[int]:
        tokenizer = self._tokenizer()
        if tokenizer is not None:
            with _of_the_recipe():
                return tokenizer.encode(text, special=self.add_special, most=limit)
        assert self.function is not None
        ids = np.asarray(_callable(self.function)(text))
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
            raise RecipeError(f"{self.function} returned {ids.dtype} {ids.shape}, not a list of integers")
        cut: list[int] = ids[:limit].tolist()
        return cut


@contextmanager
def _of_the_recipe() -> Iterator[None]:
    """A tokenizer that cannot be used concerns all samples, not the one that came first."""
    try:
        yield
    except UsageError as e:
        raise RecipeError(f"Text: {e}") from e


@lru_cache(maxsize=8)
def _callable(name: str) -> Callable[[str], Any]:
    module, _, qualname = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except Exception as e:  # a user's module may do anything when imported
        raise RecipeError(f"Text(function={name!r}) cannot be imported: {type(e).__name__}: {e}") from e
    if not callable(found):
        raise RecipeError(f"Text(function={name!r}) is {found!r}, which cannot be called")
    made: Callable[[str], Any] = found
    return made
