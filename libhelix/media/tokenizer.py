"""Tokenizers as the `tokenizers` library stores them: the file tokenizer.json of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from libhelix.errors import UsageError


class Tokenizer:
    """A tokenizer file. Its own settings for truncation and padding are ignored.

    `fingerprint` is of the file's bytes: token counts are known to be of this tokenizer by it. Raises
    UsageError where the file or the library is missing.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self._stored = file.read()
        except OSError as e:
            raise UsageError(f"{path}: {e.strerror}; give the path of a model's tokenizer.json") from e
        self.fingerprint = hashlib.blake2b(self._stored, digest_size=8).hexdigest()

    @cached_property
    def _loaded(self) -> Any:
        # Imported here and loaded late: a fingerprint takes neither.
        try:
            import tokenizers
        except ImportError as e:
            raise UsageError(
                f"{self.path}: text is tokenized by the tokenizers library ({e}); "
                "install it: pip install 'datahelix[text]'"
            ) from e
        try:
            loaded = tokenizers.Tokenizer.from_buffer(self._stored)
        except Exception as e:  # the library raises plain Exceptions
            raise UsageError(f"{self.path}: no tokenizer.json that this version reads: {e}") from e
        loaded.no_truncation()
        loaded.no_padding()
        return loaded

    @cached_property
    def specials(self) -> int:
        """Special tokens that are put around one text."""
        return int(self._loaded.num_special_tokens_to_add(False))

    def decode(self, ids: Sequence[int]) -> str:
        """The text that tokens stand for, special ones as they are written."""
        return str(self._loaded.decode(list(ids), skip_special_tokens=False))

    def encode(self, text: str, *, special: bool, most: int | None) -> list[int]:
        """The tokens of a text, with special tokens around it if asked, cut at the end to `most` in all."""
        found = self._loaded.encode(text, add_special_tokens=False)
        around = self.specials if special else 0
        if most is not None and len(found) > most - around:
            found.truncate(most - around)
        if around:
            found = self._loaded.post_process(found, None, True)
        return list(found.ids)

    def encode_with_offsets(self, text: str, *, special: bool) -> tuple[list[int], list[int], list[int]]:
        """The tokens of a text, and the characters [begin, end) that each is of. Begins ascend; special
        tokens that are put around the text are of none, at its ends."""
        found = self._loaded.encode(text, add_special_tokens=special)
        offsets = found.offsets  # made anew whenever it is asked for
        begins = [begin for begin, _ in offsets]
        ends = [end for _, end in offsets]
        for at in range(len(begins) - 1, -1, -1):  # those behind the text are said to be at 0, too
            if ends[at]:
                break
            begins[at] = ends[at] = len(text)
        return list(found.ids), begins, ends

    def id(self, token: str) -> int | None:
        """The id of a token, None where there is none."""
        found: int | None = self._loaded.token_to_id(token)
        return found

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, without special ones. Takes all cores."""
        return [len(found) for found in self._loaded.encode_batch(texts, add_special_tokens=False)]


@lru_cache(maxsize=8)
def tokenizer(path: str) -> Tokenizer:
    """The tokenizer of a file, read once in a process."""
    return Tokenizer(path)
