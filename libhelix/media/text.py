"""Text: UTF-8, or what a byte order mark says. Whitespace, line ends and empty texts stay as they are.

bytes                        become
UTF-8, with a mark or not    the text; the mark is dropped
a mark of UTF-16 or UTF-32   the text; the mark is dropped
half a surrogate pair        U+FFFD; both halves, one after the other, the character they mean
anything else                an error that names the first bad byte
"""

from __future__ import annotations

import codecs
import json
import os
import re
from typing import Any

from libhelix.errors import MediaError
from libhelix.recipe import Item, TextInfo

MAX_BYTES = 16 << 20
"""Of one text. More is a file of many samples."""
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def probe(path: str) -> Item:
    """A text file. Raises MediaError where it is no text."""
    with open(path, "rb") as file:
        found = os.fstat(file.fileno())
    item = Item(
        kind="text", path=path, offset=0, size=found.st_size, mtime_ns=found.st_mtime_ns, text=TextInfo()
    )
    read(item)
    return item


def read(item: Item) -> str:
    """The text of an item. Raises MediaError where it is none, or the file is not what was indexed."""
    if item.size > MAX_BYTES:
        raise MediaError(f"{item.path}: a text of {item.size} bytes, at most {MAX_BYTES} are read; split it")
    with item.open() as file:
        raw = file.read(item.size)
    if len(raw) < item.size:
        raise MediaError(f"{item.path}: ends inside its text; run helixctl index again")
    return decode(raw, item.path)


def decode(raw: bytes, where: str) -> str:
    """Bytes as text, by the rules above; `where` begins the text of an error."""
    for mark, encoding in _MARKS:
        if raw.startswith(mark):
            return _decoded(raw[len(mark) :], encoding, where, len(mark))
    return _decoded(raw, "utf-8", where, 0)


def _decoded(raw: bytes, encoding: str, where: str, skipped: int) -> str:
    try:
        return mended(raw.decode(encoding, "surrogatepass"))
    except UnicodeDecodeError as e:
        raise MediaError(
            f"{where}: not {encoding.upper()} at byte {skipped + e.start}; convert it, such as with "
            "iconv -f LATIN1 -t UTF-8"
        ) from e


def read_json(item: Item) -> Any:
    """The value of an item that is JSON, by the rules above. Raises MediaError where it is none."""
    return decode_json(read(item), item.path)


def decode_json(text: str, where: str) -> Any:
    """The value of JSON; `where` begins the text of an error."""
    try:
        return json.loads(with_whole_escapes(text.encode()), parse_constant=_refuse)
    except (ValueError, RecursionError) as e:
        raise MediaError(f"{where}: no JSON ({e}); mend it") from e


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is none of its numbers")


def with_whole_escapes(raw: bytes) -> bytes:
    """JSON in which half a surrogate pair, as an escape, has become the escape of U+FFFD."""
    if _MAYBE_HALF.search(raw) is None:
        return raw
    return _ESCAPE.sub(lambda found: b"\\ufffd" if found["half"] else found[0], raw)


_MAYBE_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(
    rb"\\\\"  # a backslash, which begins no escape
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def mended(text: str) -> str:
    """A text without lone surrogates, which no UTF can hold: these become U+FFFD, pairs the character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
