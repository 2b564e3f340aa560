"""Conversations of data sets: turns of text, with the pictures, videos and sounds of the sample in between.

Two shapes of JSON are read, from the sample's text:

{"conversations": [{"from": "human", "value": "<image>\\nWhat is it?"}, {"from": "gpt", "value": "A cat."}]}
{"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}, ...]}

In a "value", and in a "content" that is one text, <image>, <video> and <audio> are place holders. The n-th of
a kind stands for the n-th item of that kind; images that a line lists as a video are one video. Text stays as
it is: nothing is stripped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from libhelix.errors import MediaError
from libhelix.media import text
from libhelix.recipe import Item, Sample

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
_TYPES = {
    "text": "text", "image": "image", "image_url": "image", "video": "video", "video_url": "video",
    "audio": "audio", "audio_url": "audio", "input_audio": "audio",
}  # fmt: skip
_KINDS = ("image", "video", "audio")


class Slot(msgspec.Struct, frozen=True):
    """A place holder, and the item that it stands for: of a video that is a list of `frames`, the first.

    `line` and `element` are the JSON objects that may say more of it, such as "fps": the sample's, and that
    of the content element, which wins.
    """

    item: Item
    line: Mapping[str, Any] = {}
    element: Mapping[str, Any] = {}
    frames: tuple[Item, ...] = ()

    @property
    def kind(self) -> str:
        """ "image", "video" or "audio"."""
        return "video" if self.frames else self.item.kind

    def number(self, name: str, least: float = 0) -> float | None:
        """A setting, or None where it is left out or null. Raises MediaError for what is no number."""
        value = self.element.get(name)
        value = self.line.get(name) if value is None else value
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < 1e15:
            raise MediaError(
                f"{self.item.path}: {name!r} of its conversation is {value!r:.80}, not a number of {least} "
                "or more; correct the line"
            )
        return value


class Turn(msgspec.Struct, frozen=True):
    """What one side says. `role` is "system", "user" or "assistant"."""

    role: str
    content: tuple[str | Slot, ...]


class Conversation(msgspec.Struct, frozen=True):
    """The turns of a sample; `where` names it in errors."""

    where: str
    turns: tuple[Turn, ...]

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All place holders, in the order of the text."""
        return tuple(part for turn in self.turns for part in turn.content if isinstance(part, Slot))


def of_sample(sample: Sample, kinds: Collection[str] = ("image", "video")) -> Conversation:
    """The conversation of a sample, whose media are of these kinds.

    Place holders of other kinds are plain text. Raises MediaError where the text is no conversation, a place
    holder has no item, or an item, other than the sound of a video, no place holder.
    """
    return parse(text.read(_text_item(sample)), sample.items, sample.key, kinds)


def parse(
    raw: str, items: Iterable[Item], where: str, kinds: Collection[str] = ("image", "video")
) -> Conversation:
    """`of_sample` of a text and the items that it speaks of."""
    try:
        line = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as e:
        raise MediaError(f"{where}: its text is no JSON ({e}); write one object per line") from e
    if not isinstance(line, dict):
        raise MediaError(f"{where}: its text is a JSON {type(line).__name__}, not an object")
    drafts = [_draft(turn, where, number) for number, turn in enumerate(_turns(line, where), 1)]
    media = [item for item in items if item.kind in _KINDS]
    filling = _Filling(line, media, where, kinds, Counter(_wanted(drafts, kinds)))
    turns = tuple(Turn(role, tuple(filling.fill(parts))) for role, parts in drafts)
    filling.check()
    return Conversation(where, turns)


class _Place(msgspec.Struct, frozen=True):
    """A place holder that has no item yet; `written` is how the text has it."""

    kind: str
    written: str
    element: Mapping[str, Any] = {}


_Draft = tuple[str, list["str | _Place"]]
_Found = tuple[Item, ...]
"""What a place holder may stand for: an item, or the images of a video in their order."""


class _Filling:
    """Gives each place holder its item."""

    def __init__(
        self,
        line: Mapping[str, Any],
        media: list[Item],
        where: str,
        kinds: Collection[str],
        wanted: Mapping[str, int],
    ) -> None:
        self._line, self._media, self._where, self._kinds = line, media, where, kinds
        self._of = {kind: self._candidates(kind, wanted.get(kind, 0)) for kind in _KINDS}
        self._used: Counter[str] = Counter()

    def fill(self, parts: Iterable[str | _Place]) -> Iterator[str | Slot]:
        for part in parts:
            if isinstance(part, str):
                yield part
            elif part.kind not in self._kinds:
                if not part.element:
                    yield part.written
                    continue
                raise MediaError(
                    f"{self._where}: has a content of type {part.written!r}; the recipe takes text, "
                    f"{', '.join(self._kinds)}"
                )
            else:
                found = self._next(part)
                frames = found if found[0].kind != part.kind else ()
                yield Slot(found[0], self._line, part.element, frames)

    def check(self) -> None:
        """Raise MediaError where an item is left over, unless it is the other half of a video with sound."""
        used = [item for kind in _KINDS for found in self._of[kind][: self._used[kind]] for item in found]
        files = {_place(item): item.kind for item in used}
        for kind in _KINDS:
            for item, *_ in self._of[kind][self._used[kind] :]:
                if files.get(_place(item), item.kind) != item.kind:
                    continue
                lacks = f"no <{kind}> in its text" if kind in self._kinds else "nothing that the recipe takes"
                raise MediaError(
                    f"{self._where}: {lacks} stands for {_said(item)}; write the place holder where it "
                    "belongs, or take the file out of the sample"
                )

    def _candidates(self, kind: str, wanted: int) -> list[_Found]:
        films = {_place(item) for item in self._media if item.kind == "video"}
        if kind == "audio":
            sounds = [item for item in self._media if item.kind == kind]
            if len(sounds) != wanted:
                # A video brings its sound along, which only counts where it is asked for.
                sounds = [item for item in sounds if _place(item) not in films]
            return [(item,) for item in sounds]
        found: dict[object, list[Item]] = {}
        for item in self._media:
            film = _film(item) if "video" in self._kinds and _place(item) not in films else ""
            if ("video" if film else item.kind) == kind:
                found.setdefault(film or id(item), []).append(item)
        return [tuple(sorted(items, key=_number)) for items in found.values()]

    def _next(self, part: _Place) -> _Found:
        found, n = self._of[part.kind], self._used[part.kind]
        self._used[part.kind] += 1
        if n >= len(found):
            has = ", ".join(map(_said, self._media)) or "no media"
            raise MediaError(
                f"{self._where}: {part.written} number {n + 1} in its text has no {part.kind}; the sample "
                f"has {has}; name the file in the line itself, as its {part.kind}, and index again"
            )
        return found[n]


def _place(item: Item) -> tuple[str, int]:
    return item.path, item.offset


def _film(item: Item) -> str:
    """The list that an image is a frame of: "video" of video/3, "video/0" of video/0/3; "" where it is of
    none."""
    listed, _, number = item.name.rpartition("/")
    frame = item.kind == "image" and listed.split("/")[0] in ("video", "videos") and number.isdigit()
    return listed if frame else ""


def _number(item: Item) -> int:
    number = item.name.rpartition("/")[2]
    return int(number) if number.isdigit() else 0


def _wanted(drafts: Iterable[_Draft], kinds: Collection[str]) -> Iterator[str]:
    for _, parts in drafts:
        yield from (part.kind for part in parts if isinstance(part, _Place) and part.kind in kinds)


def _said(item: Item) -> str:
    return f"{item.kind} {item.name} ({item.path})" if item.name else f"{item.kind} {item.path}"


def _text_item(sample: Sample) -> Item:
    texts = sample.all("text")
    for name in ("conversations", "json"):
        for item in texts:
            if item.name == name:
                return item
    return texts[0] if texts else sample.item("text")


def _turns(line: Mapping[str, Any], where: str) -> list[Any]:
    for name in ("conversations", "messages"):
        found = line.get(name)
        if found is None:
            continue
        if not isinstance(found, list) or not found:
            raise MediaError(f"{where}: {name!r} is {found!r:.80}, not a list of turns; correct the line")
        return found
    raise MediaError(
        f'{where}: its JSON has neither "conversations" nor "messages", but {", ".join(line) or "nothing"}'
    )


def _draft(turn: Any, where: str, number: int) -> _Draft:
    if not isinstance(turn, dict):
        raise MediaError(f"{where}: turn {number} is {turn!r:.80}, not an object; correct the line")
    said = turn.get("from", turn.get("role"))
    role = _ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        raise MediaError(
            f"{where}: turn {number} is from {said!r:.80}; write one of {', '.join(_ROLES)} or leave it out"
        )
    content = turn.get("value", turn.get("content"))
    if isinstance(content, str):
        return role, list(_split(content))
    if not isinstance(content, list):
        raise MediaError(f"{where}: turn {number} has the content {content!r:.80}; write a text or a list")
    return role, [_element(one, where, number) for one in content]


def _split(content: str) -> Iterator[str | _Place]:
    for at, part in enumerate(_PLACE.split(content)):
        if at % 2:
            yield _Place(part, f"<{part}>")
        elif part:
            yield part


def _element(element: Any, where: str, number: int) -> str | _Place:
    if isinstance(element, str):
        return element
    if isinstance(element, dict):
        # Qwen's own lists leave the type out: {"image": ...} is one.
        written = element.get("type") or next((name for name in _TYPES if name in element), None)
        kind = _TYPES.get(written) if isinstance(written, str) else None
        if kind == "text" and isinstance(element.get("text"), str):
            return str(element["text"])
        if kind in _KINDS:
            return _Place(kind, str(written), {"type": written, **element})
    raise MediaError(
        f"{where}: turn {number} has the content {element!r:.80}; a list holds "
        '{"type": "text", "text": ...} and {"type": "image"}, "video" or "audio"'
    )


_PLACE = re.compile("<(image|video|audio)>")
