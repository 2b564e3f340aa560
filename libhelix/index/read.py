"""Reading an index: mapped, O(1) per sample, a few tens of microseconds each.

Columns are taken as typed views of the mapped buffers once, when the file is opened. An Arrow scalar per
cell would cost a hundred times as much. Neither torch nor av is needed here.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from libhelix.errors import IndexProblem
from libhelix.index import schema
from libhelix.recipe import AudioInfo, ImageInfo, Item, Sample, TensorInfo, TextInfo, VideoInfo

_AGAIN = "make one with: helixctl index SRC -o OUT.arrow"
_FIXED = {pa.int8(): "b", pa.int32(): "i", pa.int64(): "q", pa.float64(): "d"}


class _Text:
    """A string column."""

    __slots__ = ("_bytes", "_ends")

    def __init__(self, array: Any) -> None:
        _, ends, content = array.buffers()
        self._ends = _view(ends, "q", len(array) + 1, array.offset)
        self._bytes = memoryview(content or b"")

    def __getitem__(self, i: int) -> str:
        return str(self._bytes[self._ends[i] : self._ends[i + 1]], "utf-8")


class _Lists:
    """A column of integer lists; null reads as empty."""

    __slots__ = ("_ends", "_values")

    def __init__(self, array: Any) -> None:
        _, ends, _, values = array.buffers()
        self._ends = _view(ends, "q", len(array) + 1, array.offset)
        self._values = _view(values, "q", len(array.values), array.values.offset)

    def __getitem__(self, i: int) -> tuple[int, ...]:
        return tuple(self._values[self._ends[i] : self._ends[i + 1]].tolist())


def _numbers(array: Any) -> memoryview[Any]:
    """A column of numbers, null as 0: indexing a memoryview gives Python's own int and float."""
    return _view(array.buffers()[1], _FIXED[array.type], len(array), array.offset)


def _view(buffer: Any, code: str, length: int, offset: int) -> memoryview[Any]:
    if buffer is None:
        # Arrow writes no buffer for a column without values, such as the offsets of nothing.
        return memoryview(bytes(8 * length)).cast("B").cast("q")
    size = struct.calcsize(code)
    whole = memoryview(buffer).cast("B")[offset * size : (offset + length) * size]
    return whole.cast(code)  # type: ignore[call-overload, no-any-return]


class _Paths:
    """A column of texts from a table."""

    __slots__ = ("_codes", "_texts")

    def __init__(self, array: Any) -> None:
        self._codes = _numbers(array.indices)
        self._texts = _Text(array.dictionary)

    def __getitem__(self, i: int) -> str:
        return self._texts[self._codes[i]]


class _Same:
    """A column of one value."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __getitem__(self, i: int) -> str:
        return self._value


def _column(array: Any) -> Any:
    if pa.types.is_dictionary(array.type):
        return _Paths(array)
    if pa.types.is_large_string(array.type):
        return _Text(array)
    return _Lists(array) if pa.types.is_large_list(array.type) else _numbers(array)


class Index:
    """The samples of an index file. `index[i]` is sample i, with paths below `root`."""

    def __init__(
        self,
        path: str,
        root: str,
        fingerprint: str,
        refused: int,
        batch: Any,
        *,
        tokenizer: str = "",
        probing: str = "",
    ) -> None:
        self.path = path
        self.sources: tuple[str, ...] = (path,)
        """What a user asks for it by: itself, or the files and folders that it was made of."""
        self.root = root
        self.fingerprint = fingerprint
        self.refused = refused
        """Files that were left out when the index was built."""
        self.tokenizer = tokenizer
        """Fingerprint of the tokenizer that counted the tokens of its texts; "" where none did."""
        self.probing = probing
        """The rules by which its media were probed."""
        self._size: int = batch.num_rows
        self._prefix = root if root.endswith(os.sep) else root + os.sep
        self._keys = batch.column(0)
        self._key = _Text(self._keys)
        lists = batch.column(1)
        self._ends = _view(lists.buffers()[1], "q", self._size + 1, lists.offset)
        self._items = lists.values
        self._columns = {name: _column(self._items.field(name)) for name, _ in schema.ITEM_COLUMNS}
        self._columns["tokenizer"] = _Same(tokenizer)

    @classmethod
    def open(cls, path: str | Path, root: str | Path | None = None) -> Index:
        """Map an index file. `root` replaces the folder stored in it, where the media have moved.

        Raises IndexProblem for what is missing, no index, truncated, or of another format.
        """
        path = os.fspath(path)
        try:
            reader = pa.ipc.open_file(pa.memory_map(path, "r"))
            metadata = reader.schema.metadata or {}
            _check_format(path, metadata)
            batch = reader.get_batch(0)
            batch.validate()
        except OSError as e:
            cause = os.strerror(e.errno) if e.errno else str(e)
            raise IndexProblem(f"{path}: {cause}; {_AGAIN}") from e
        except pa.ArrowInvalid as e:
            raise IndexProblem(f"{path}: no index, or a truncated one ({e}); {_AGAIN}") from e
        stored = metadata[schema.META_ROOT].decode()
        return cls(
            path,
            os.path.abspath(os.fspath(root)) if root is not None else stored,
            metadata[schema.META_FINGERPRINT].decode(),
            int(json.loads(metadata[schema.META_REFUSED])),
            batch,
            tokenizer=metadata.get(schema.META_TOKENIZER, b"").decode(),
            probing=metadata.get(schema.META_PROBING, b"").decode(),
        )

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, i: int) -> Sample:
        if not 0 <= i < self._size:
            raise IndexError(f"sample {i} of an index with {self._size}")
        key = self._key[i]
        items = tuple([self._item(key, j) for j in range(self._ends[i], self._ends[i + 1])])
        return Sample(i, key, items)

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(self._size))

    def _item(self, key: str, j: int) -> Item:
        c = self._columns
        kind = c["kind"][j]
        info = _INFOS.get(kind)
        return Item(
            kind=kind,
            path=self._prefix + (c["path"][j] or key),
            offset=c["offset"][j],
            size=c["size"][j],
            mtime_ns=c["mtime_ns"][j],
            name=c["name"][j],
            **({kind: info(c, j)} if info is not None else {}),
        )

    def keys(self) -> Any:
        """The samples' keys as an Arrow array."""
        return self._keys

    def items_each(self) -> list[int]:
        """How many items every sample has."""
        ends = self._ends.tolist()
        return [b - a for a, b in pairwise(ends)]

    def column(self, name: str) -> Any:
        """A column of all items as an Arrow array, for statistics."""
        return self._items.field(name)


def _video(c: dict[str, Any], j: int) -> VideoInfo:
    return VideoInfo(
        codec=c["codec"][j],
        stream=c["stream"][j],
        width=c["width"][j],
        height=c["height"][j],
        rotation=c["rotation"][j],
        mirrored=bool(c["mirrored"][j]),
        sar=(c["sar_num"][j], c["sar_den"][j]),
        frames=c["frames"][j],
        fps=c["fps"][j],
        duration_s=c["duration_s"][j],
        time_base=(c["tb_num"][j], c["tb_den"][j]),
        start_pts=c["start_pts"][j],
        pts_step=c["pts_step"][j],
        pts=c["pts"][j] or None,
        key_pts=c["key_pts"][j],
        key_frames=c["key_frames"][j],
        key_bytes=c["key_bytes"][j],
        seekable=bool(c["seekable"][j]),
        ordered=bool(c["ordered"][j]),
    )


def _image(c: dict[str, Any], j: int) -> ImageInfo:
    return ImageInfo(
        codec=c["codec"][j], width=c["width"][j], height=c["height"][j], orientation=c["orientation"][j]
    )


def _audio(c: dict[str, Any], j: int) -> AudioInfo:
    return AudioInfo(
        codec=c["codec"][j],
        stream=c["stream"][j],
        rate=c["rate"][j],
        channels=c["channels"][j],
        samples=c["samples"][j],
        start_pts=c["start_pts"][j],
        time_base=(c["tb_num"][j], c["tb_den"][j]),
    )


def _text(c: dict[str, Any], j: int) -> TextInfo:
    tokens = c["tokens"][j]
    return TextInfo(tokens=tokens, tokenizer=c["tokenizer"][j] if tokens >= 0 else "")


def _tensor(c: dict[str, Any], j: int) -> TensorInfo:
    return TensorInfo(dtype=c["dtype"][j], shape=c["shape"][j])


_INFOS: dict[str, Callable[[dict[str, Any], int], Any]] = {
    "video": _video,
    "image": _image,
    "audio": _audio,
    "text": _text,
    "tensor": _tensor,
}


def _check_format(path: str, metadata: dict[bytes, bytes]) -> None:
    found = metadata.get(schema.META_FORMAT)
    if schema.META_ROWS in metadata:
        raise IndexProblem(
            f"{path}: no index, but what {_recipe_of(metadata[schema.META_ROWS])} declares of the samples of "
            "one; helixctl describe stored it beside the index: name that"
        )
    if found is None:
        raise IndexProblem(f"{path}: an Arrow file, but no DataHelix index; {_AGAIN}")
    if found != str(schema.FORMAT).encode():
        raise IndexProblem(
            f"{path}: index format {found.decode(errors='replace')}, this version reads {schema.FORMAT}; "
            f"{_AGAIN}"
        )


def _recipe_of(origin: bytes) -> str:
    try:
        recipe = json.loads(origin)["recipe"]
        return f"recipe {recipe['module']}:{recipe['qualname']}"
    except (ValueError, KeyError, TypeError):
        return "a recipe"
