"""Conversations as a checkpoint's chat template writes them, as tokens, and which of those are targets.

    talk = conversation.of_sample(sample)
    template = chat_template("checkpoints/Qwen2.5-VL-7B-Instruct")
    written = template.write(talk, {"image": "<|image_pad|>", "video": "<|video_pad|>"})
    encoded = template.encode(written, [[("<|image_pad|>", 256)], ...])     # one expansion for each slot

`write` renders the text, in which a mark stands for every slot; `encode` puts an expansion in the place of
each mark and tokenizes. Targets are what the assistant says: all that a turn of it adds to the text with
`add_generation_prompt`, its end-of-turn token included; or what stands in the template's
{% generation %} blocks, if it has any.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from libhelix.errors import MediaError, UsageError
from libhelix.media.conversation import Conversation, Slot, Turn
from libhelix.media.jsonfile import read_object
from libhelix.media.tokenizer import tokenizer

Expansion = Sequence[tuple[str, int]]
"""Pieces of text and how often each stands there. One that stands there more than once is a single token."""

_BEGIN, _END = "\ufdd0", "\ufdd1"
"""Around what the template generates. Unicode has no such characters in any text."""
_PROBE = "vqzkj"
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Written(NamedTuple):
    """A rendered conversation. `marks` are (begin, end) of the marks, `slots` what they stand for, both in
    the order of the text; `spans` are (begin, end) of what the assistant says."""

    text: str
    marks: tuple[tuple[int, int], ...]
    slots: tuple[Slot, ...]
    spans: tuple[tuple[int, int], ...]


class Run(msgspec.Struct, frozen=True):
    """Tokens [begin, begin + count) that are one repeated piece of the expansion of slot number `slot`."""

    slot: int
    begin: int
    count: int


class Encoded(NamedTuple):
    """`ids` int64 [n], `targets` bool [n]; `runs` in the order of the tokens: for every piece of an
    expansion that was given a count other than 1, or that `write` had as the slot's mark."""

    ids: np.ndarray
    targets: np.ndarray
    runs: tuple[Run, ...]


class ChatTemplate:
    """A checkpoint's tokenizer and chat template.

    Of the folder's files are read tokenizer.json, tokenizer_config.json, and the template from
    chat_template.jinja, else chat_template.json, else tokenizer_config.json. `fingerprint` is of what counts
    of them; `pad` is the id of the padding token, 0 where the checkpoint names none. Raises UsageError where
    they are missing or cannot be used.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._tokenizer = tokenizer(os.path.join(folder, "tokenizer.json"))
        config = read_object(os.path.join(folder, "tokenizer_config.json"))
        self.special = {name: word for name in _NAMES if (word := _word(config.get(name))) is not None}
        self.source = _template(folder, config)
        self._compiled = _compiled(folder, self.source)
        self.pad = self.token(self.special["pad_token"]) if "pad_token" in self.special else 0
        told = json.dumps([self._tokenizer.fingerprint, self.source, self.special])
        self.fingerprint = hashlib.blake2b(told.encode(), digest_size=8).hexdigest()

    def write(self, talk: Conversation, marks: Mapping[str, str]) -> Written:
        """The conversation as text. `marks`: by kind of slot, what the template writes for one.

        Templates that take a turn's content as one text have the mark written into it. Raises MediaError
        where the template refuses the conversation, or its own text has a mark; UsageError where the template
        does not say which part is the assistant's.
        """
        if any(char in part for turn in talk.turns for part in turn.content if isinstance(part, str)
               for char in (_BEGIN, _END)):  # fmt: skip
            raise MediaError(f"{talk.where}: its text has U+FDD0 or U+FDD1, which are no characters")
        text, spans = _unwrapped(self._render(talk, talk.turns, marks, prompt=False))
        if not self._generates:
            spans = self._spans(talk, text, marks)
        found = list(re.finditer("|".join(map(re.escape, marks.values())) or "(?!)", text))
        return Written(
            text, tuple(match.span() for match in found), self._slots(talk, found, marks), tuple(spans)
        )

    def encode(self, written: Written, expansions: Sequence[Expansion]) -> Encoded:
        """The tokens of a text with an expansion in the place of each mark. What a slot expands to is no
        target. Special tokens are put around it as the tokenizer does, unless the template wrote them."""
        text, pieces, spans, media = _expanded(written, expansions)
        ids, begins, ends = self._tokenizer.encode_with_offsets(text, special=self._adds_special(text))
        targets = np.zeros(len(ids), bool)
        for begin, end in spans:
            targets[bisect_left(begins, begin) : bisect_left(begins, end)] = True
        for begin, end in media:
            targets[bisect_left(begins, begin) : bisect_left(begins, end)] = False
        counts = np.ones(len(ids), np.int64)
        at = []
        for piece in pieces:
            token = bisect_left(begins, piece.begin)
            while token < len(ids) and ends[token] <= piece.begin:  # what was put before the text
                token += 1
            if token == len(ids) or (begins[token], ends[token]) != (piece.begin, piece.end):
                raise UsageError(
                    f"{self.folder}: {text[piece.begin : piece.end]!r} is no token of its own; is this the "
                    "checkpoint of the recipe's model?"
                )
            counts[token] = piece.times
            at.append(token)
        starts = np.concatenate([[0], np.cumsum(counts)])
        runs = tuple(Run(piece.slot, int(starts[token]), piece.times) for piece, token in zip(pieces, at))
        return Encoded(np.repeat(np.asarray(ids, np.int64), counts), np.repeat(targets, counts), runs)

    def token(self, text: str) -> int:
        """The id of a token. Raises UsageError where there is none of that text."""
        found = self._tokenizer.id(text)
        if found is None:
            raise UsageError(f"{self.folder}: the tokenizer has no token {text!r}")
        return found

    def _adds_special(self, text: str) -> bool:
        bos = self.special.get("bos_token")
        return not (bos and text.startswith(bos))

    def _slots(
        self, talk: Conversation, found: Iterable[re.Match[str]], marks: Mapping[str, str]
    ) -> tuple[Slot, ...]:
        left = {kind: [slot for slot in talk.slots if slot.kind == kind] for kind in marks}
        slots = []
        for match in found:
            kind = next(kind for kind, mark in marks.items() if mark == match[0])
            if not left[kind]:
                raise MediaError(
                    f"{talk.where}: its text has {match[0]!r} more often than it has a {kind}; that is the "
                    "model's own mark: take it out of the text"
                )
            slots.append(left[kind].pop(0))
        missing = [slot.kind for slot in talk.slots if slot.kind not in marks]
        missing += [kind for kind, slots_left in left.items() if slots_left]
        if missing:
            raise UsageError(f"{self.folder}: the chat template writes nothing for a {missing[0]}")
        return tuple(slots)

    def _spans(self, talk: Conversation, text: str, marks: Mapping[str, str]) -> list[tuple[int, int]]:
        """Where the assistant speaks: from the prompt for it to the end of its turn."""
        spans = []
        for number, turn in enumerate(talk.turns):
            if turn.role != "assistant":
                continue
            if number == 0:
                raise MediaError(f"{talk.where}: begins with the assistant; nothing asks it. Leave it out")
            before = self._render(talk, talk.turns[:number], marks, prompt=True)
            after = text
            if number + 1 < len(talk.turns):
                after = self._render(talk, talk.turns[: number + 1], marks, prompt=False)
            if not (after.startswith(before) and text.startswith(after)):
                raise UsageError(
                    f"{self.folder}: with the chat template, turn {number + 1} of {talk.where} does not "
                    "begin where the conversation before it ends, so nothing says which tokens are the "
                    "assistant's; mark them in the template: {% generation %}...{% endgeneration %}"
                )
            begin = len(before)
            if not self._prompts:  # the role's name follows, which is not what the assistant says
                begin += _said_from(turn, after[begin:])
            spans.append((begin, len(after)))
        return spans

    def _render(
        self, talk: Conversation, turns: Sequence[Turn], marks: Mapping[str, str], *, prompt: bool
    ) -> str:
        messages = [
            {"role": turn.role, "content": _content(turn, marks, self._takes_lists[turn.role])}
            for turn in turns
        ]
        try:
            return self._written(messages, prompt)
        except _refusals() as e:
            raise MediaError(f"{talk.where}: the chat template refuses it: {type(e).__name__}: {e}") from e

    def _written(self, messages: Sequence[Mapping[str, Any]], prompt: bool) -> str:
        found: str = self._compiled.render(
            messages=messages, tools=None, documents=None, add_generation_prompt=prompt, **self.special
        )
        return found

    @cached_property
    def _prompts(self) -> bool:
        """Whether `add_generation_prompt` makes a difference."""
        asked = {
            "role": "user",
            "content": [{"type": "text", "text": "."}] if self._takes_lists["user"] else ".",
        }
        return self._written([asked], True) != self._written([asked], False)

    @cached_property
    def _generates(self) -> bool:
        return re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", self.source) is not None

    @cached_property
    def _takes_lists(self) -> Mapping[str, bool]:
        """By role, whether a turn's content may be a list of texts and pictures; else it is one text."""
        user = self._takes_list([{"role": "user", "content": [{"type": "text", "text": _PROBE}]}])
        asked = {"role": "user", "content": [{"type": "text", "text": "."}] if user else "."}
        listed = [{"type": "text", "text": _PROBE}]
        return {
            "user": user,
            "system": self._takes_list([{"role": "system", "content": listed}, asked]),
            "assistant": self._takes_list([asked, {"role": "assistant", "content": listed}]),
        }

    def _takes_list(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        try:
            written = self._written(messages, False)
        except _refusals():
            return False
        return _PROBE in written and f"'{_PROBE}'" not in written and f'"{_PROBE}"' not in written


@lru_cache(maxsize=8)
def chat_template(folder: str) -> ChatTemplate:
    """The template of a checkpoint's folder, read once in a process."""
    return ChatTemplate(folder)


class _Piece(NamedTuple):
    """Characters [begin, end) of the expanded text, one token that stands there `times` times."""

    slot: int
    begin: int
    end: int
    times: int


def _expanded(
    written: Written, expansions: Sequence[Expansion]
) -> tuple[str, list[_Piece], list[tuple[int, int]], list[tuple[int, int]]]:
    """The text with the expansions, the pieces of them that are repeated, the spans in it, and where the
    expansions are."""
    parts: list[str] = []
    pieces: list[_Piece] = []
    media: list[tuple[int, int]] = []
    size = before = 0
    ends, moved = [0], [0]
    for slot, ((begin, end), expansion) in enumerate(zip(written.marks, expansions, strict=True)):
        mark = written.text[begin:end]
        parts.append(written.text[before:begin])
        size += begin - before
        first = size
        for piece, count in expansion:
            if count == 0:
                continue
            if count != 1 or piece == mark:
                pieces.append(_Piece(slot, size, size + len(piece), count))
            parts.append(piece)
            size += len(piece)
        before = end
        media.append((first, size))
        ends.append(end)
        moved.append(size - end)
    parts.append(written.text[before:])

    def place(at: int) -> int:
        return at + moved[bisect_left(ends, at + 1) - 1]

    return "".join(parts), pieces, [(place(begin), place(end)) for begin, end in written.spans], media


def _said_from(turn: Turn, written: str) -> int:
    """Where in what a template writes of a turn its own text begins; 0 where it is not to be seen."""
    first = next((part for part in turn.content if isinstance(part, str) and part.strip()), "")
    whole = written.find(first)
    return max(0, whole if whole >= 0 else written.find(first.strip()))


def _unwrapped(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without the marks around what is generated, and where these were."""
    parts = re.split(f"[{_BEGIN}{_END}]", text)
    at = [0]
    for part in parts:
        at.append(at[-1] + len(part))
    # Every second part was between two marks.
    return "".join(parts), [(at[i], at[i + 1]) for i in range(1, len(parts), 2)]


def _content(turn: Turn, marks: Mapping[str, str], as_list: bool) -> Any:
    if as_list:
        return [
            {"type": part.kind} if isinstance(part, Slot) else {"type": "text", "text": part}
            for part in turn.content
        ]
    return "".join(marks.get(part.kind, "") if isinstance(part, Slot) else part for part in turn.content)


def _compiled(folder: str, source: str) -> Any:
    # Imported here: only workers render.
    try:
        import jinja2
        from jinja2 import nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as e:
        raise UsageError(
            f"{folder}: chat templates are rendered by jinja2 ({e}); "
            "install it: pip install 'datahelix[chat]'"
        ) from e

    class Generation(Extension):
        """{% generation %}: what the assistant says."""

        tags = {"generation"}  # noqa: RUF012  # jinja2's own way

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_wrap"), [], [], body).set_lineno(line)

        def _wrap(self, caller: Any) -> str:
            return f"{_BEGIN}{caller()}{_END}"

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = refuse
    # There is no strftime_now: what a sample is must not depend on the day. Templates that ask whether
    # it is defined have a date of their own.
    try:
        return made.from_string(source)
    except jinja2.TemplateError as e:
        raise UsageError(f"{folder}: its chat template cannot be read: {e}") from e


def _refusals() -> tuple[type[Exception], ...]:
    """What a template may raise over a conversation: its own errors, and those of wrong types."""
    import jinja2

    return (jinja2.TemplateError, TypeError, KeyError, ValueError, AttributeError)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own escapes HTML.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _template(folder: str, config: Mapping[str, Any]) -> str:
    try:
        with open(os.path.join(folder, "chat_template.jinja"), encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"{folder}/chat_template.jinja cannot be read: {e}") from e
    stored = read_object(os.path.join(folder, "chat_template.json"))
    found = stored.get("chat_template") or config.get("chat_template")
    if isinstance(found, list):  # several by name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    if not isinstance(found, str):
        raise UsageError(
            f"{folder}: has no chat template, neither as chat_template.jinja nor in chat_template.json or "
            "tokenizer_config.json; name the folder of an instruction-tuned checkpoint"
        )
    return found


def _word(token: Any) -> str | None:
    """A special token, as text or as {"content": text}."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None
