"""JSONL: a line is a sample. Media are named by path, and the line itself is a text item.

Read are LLaVA's conversations ({"id", "image" or "images" or "video", "conversations"}), messages that name
their media themselves ({"messages": [{"role", "content": [{"type": "image", "image": path}, ...]}]}), and
plain objects ({"path"}, {"image", "text"}). Other fields are the recipe's to read from the line.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from libhelix.index.formats import Draft, Listing, Member, Options
from libhelix.media import text as texts

_BOM = b"\xef\xbb\xbf"
_OTHERS = {
    b"\xff\xfe": "UTF-16; convert it: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16; convert it: iconv -f UTF-16 -t UTF-8",
    b"\x1f\x8b": "compressed; decompress it: gunzip",
}
"""How files begin that are no lines of UTF-8, and what they are."""
Named = str | list[str] | None


class Line(msgspec.Struct, frozen=True):
    """What is read of a line."""

    id: str | int | None = None
    image: Named = None
    images: Named = None
    video: Named = None
    videos: Named = None
    audio: Named = None
    audios: Named = None
    path: Named = None
    conversations: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()

    def media(self) -> Iterator[tuple[str, str]]:
        """(item name, path): those of a list are numbered."""
        for field in MEDIA_FIELDS:
            yield from named(field, getattr(self, field))
        if not any(getattr(self, field) for field in MEDIA_FIELDS):
            yield from _in_messages(self.conversations or self.messages)


def _in_messages(turns: msgspec.Raw) -> Iterator[tuple[str, str]]:
    """(item name, path) of the media that elements of contents name, in the order of the text."""
    found = msgspec.json.decode(turns) if turns else None
    said = [turn for turn in found if isinstance(turn, dict)] if isinstance(found, list) else []
    contents = [turn.get("content", turn.get("value")) for turn in said]
    elements = [one for content in contents if isinstance(content, list) for one in content]
    counts = Counter[str]()
    for element in elements:
        kind = next((k for k in ("image", "video", "audio") if _of_kind(element, k)), None)
        if kind is None:
            continue
        path = element.get(kind) or element.get(f"{kind}_url")
        path = path.get("url") if isinstance(path, dict) else path
        name = f"{kind}/{counts[kind]}"
        if isinstance(path, str) and path:
            yield name, path.removeprefix("file://")
        elif isinstance(path, list):  # the frames of a film
            yield from ((f"{name}/{i}", one.removeprefix("file://")) for i, one in enumerate(path) if one)
        counts[kind] += bool(path)


def _of_kind(element: object, kind: str) -> bool:
    return isinstance(element, dict) and (
        element.get("type") in (kind, f"{kind}_url")
        or ("type" not in element and bool(element.keys() & {kind, f"{kind}_url"}))
    )


MEDIA_FIELDS = ("image", "images", "video", "videos", "audio", "audios", "path")


def named(field: str, value: Named) -> Iterator[tuple[str, str]]:
    """(item name, path) of a field."""
    if isinstance(value, str):
        if value:
            yield field, value
    elif value:
        yield from ((f"{field}/{i}", path) for i, path in enumerate(value))


class Media:
    """Files that lines name, below a folder; each is looked at once."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._seen: dict[str, Member | str] = {}

    def member(self, name: str, path: str, where: str) -> Member | str:
        """It as a member called `name`, or why it is none."""
        found = self._seen.get(path)
        if found is None:
            found = self._seen[path] = self._look(path)
        if isinstance(found, str):
            return found
        return msgspec.structs.replace(found, name=name, label=f"{where}: {found.path}")

    def _look(self, path: str) -> Member | str:
        if path.startswith("data:"):
            return f"{path[:40]}... is embedded; write it to a file and name that"
        if "://" in path:
            return f"{path} is a URL; download it and name the file"
        full = os.path.normpath(os.path.join(self._folder, path))
        try:
            full.encode()
            found = os.stat(full)
        except (OSError, ValueError) as e:
            cause = getattr(e, "strerror", None) or "not a possible name"
            return f"{full}: {cause}; fetch it, or say where media are with --media-root"
        if not stat.S_ISREG(found.st_mode):
            return f"{full}: is no file; name a file"
        return Member("", full, 0, found.st_size, found.st_mtime_ns)


def list_jsonl(path: str, options: Options) -> Listing:
    """The samples of a file, in the order of its lines. Bad lines are reported by number and left out."""
    found = Listing(path)
    media = Media(options.media_root or os.path.dirname(path))
    try:
        with open(path, "rb") as file:
            changed = os.fstat(file.fileno()).st_mtime_ns
            other = _OTHERS.get(file.read(2))
            if other is not None:
                found.refused.append((path, f"{path}: is {other}"))
                return found
            file.seek(0)
            for number, offset, line in _lines(file):
                where = f"{path}: line {number}"
                draft = _draft(
                    Member("", path, offset, len(line), changed, False, True), line, number, media, where
                )
                if isinstance(draft, Draft):
                    found.samples.append(draft)
                else:
                    found.refused.append((path, f"{where}: {draft}"))
    except OSError as e:
        found.refused.append((path, f"{path}: {e.strerror}; make it readable"))
    return found


def _lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """(number from 1, offset, bytes) of lines that hold something, without their ends."""
    offset = number = 0
    while raw := file.readline(_MOST_BYTES):
        number += 1
        begin = len(_BOM) if number == 1 and raw.startswith(_BOM) else 0
        line = raw[begin:].rstrip(b"\r\n")
        if line.strip():
            yield number, offset + begin, line
        offset += len(raw)
        # The rest of a line that nobody could read as a text, such as a file without line ends.
        while len(raw) == _MOST_BYTES and not raw.endswith(b"\n"):
            raw = file.readline(_MOST_BYTES)
            offset += len(raw)


def _draft(text: Member, line: bytes, number: int, media: Media, where: str) -> Draft | str:
    if len(line) > texts.MAX_BYTES:
        return f"more than {texts.MAX_BYTES} bytes; split it, and end lines with \\n"
    try:
        line.decode()  # the decoder skips what it does not need, whatever it is
        read = _DECODER.decode(texts.with_whole_escapes(line))
    except UnicodeDecodeError as e:
        return f"not UTF-8 at byte {e.start}; write the file as UTF-8"
    except (msgspec.DecodeError, RecursionError) as e:
        return f"{e}; mend or remove the line"
    members = []
    for name, path in read.media():
        member = media.member(name, path, where)
        if isinstance(member, str):
            return member
        members.append(member)
    key = str(read.id) if read.id is not None else f"{os.path.basename(text.path)}:{number}"
    name = "conversations" if read.conversations or read.messages else "json"
    return Draft(key, (*members, msgspec.structs.replace(text, name=name)), where)


_DECODER = msgspec.json.Decoder(Line)
_MOST_BYTES = texts.MAX_BYTES + 2
"""Of a line that is read, with its end."""
