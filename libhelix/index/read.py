"""Reading an index: mapped, O(1) per sample, a few tens of microseconds each.

Columns are taken as typed views of the mapped buffers once, when the file is opened. An Arrow scalar per
cell would cost a hundred times as much. Neither torch nor av is needed here.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from libhelix.errors import IndexProblem
from libhelix.index import schema
from libhelix.recipe import ImageInfo, Item, Sample, VideoInfo

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


class Index:
    """The samples of an index file. `index[i]` is sample i, with paths below `root`."""

    def __init__(self, path: str, root: str, fingerprint: str, refused: int, batch: Any) -> None:
        self.path = path
        self.root = root
        self.fingerprint = fingerprint
        self.refused = refused
        """Files that were left out when the index was built."""
        self._size: int = batch.num_rows
        self._batch = batch
        self._prefix = root if root.endswith(os.sep) else root + os.sep
        self._columns: dict[str, Any] = {}
        for name, kind in schema.COLUMNS:
            array = batch.column(batch.schema.get_field_index(name))
            if pa.types.is_large_string(kind):
                self._columns[name] = _Text(array)
            elif pa.types.is_large_list(kind):
                self._columns[name] = _Lists(array)
            else:
                self._columns[name] = _numbers(array)

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
        )

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, i: int) -> Sample:
        if not 0 <= i < self._size:
            raise IndexError(f"sample {i} of an index with {self._size}")
        c = self._columns
        kind = c["kind"][i]
        item = Item(
            kind=kind,
            path=self._prefix + c["path"][i],
            offset=c["offset"][i],
            size=c["size"][i],
            mtime_ns=c["mtime_ns"][i],
            video=self._video(i) if kind == "video" else None,
            image=self._image(i) if kind == "image" else None,
        )
        return Sample(i, c["key"][i], (item,))

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(self._size))

    def _video(self, i: int) -> VideoInfo:
        c = self._columns
        return VideoInfo(
            codec=c["codec"][i],
            stream=c["stream"][i],
            width=c["width"][i],
            height=c["height"][i],
            rotation=c["rotation"][i],
            frames=c["frames"][i],
            fps=c["fps"][i],
            duration_s=c["duration_s"][i],
            time_base=(c["tb_num"][i], c["tb_den"][i]),
            start_pts=c["start_pts"][i],
            pts_step=c["pts_step"][i],
            pts=c["pts"][i] or None,
            key_pts=c["key_pts"][i],
            key_frames=c["key_frames"][i],
            key_bytes=c["key_bytes"][i],
            seekable=bool(c["seekable"][i]),
            ordered=bool(c["ordered"][i]),
        )

    def _image(self, i: int) -> ImageInfo:
        c = self._columns
        return ImageInfo(
            codec=c["codec"][i],
            width=c["width"][i],
            height=c["height"][i],
            orientation=c["orientation"][i],
        )

    def column(self, name: str) -> Any:
        """A whole column as an Arrow array, for statistics over all samples."""
        return self._batch.column(self._batch.schema.get_field_index(name))


def _check_format(path: str, metadata: dict[bytes, bytes]) -> None:
    found = metadata.get(schema.META_FORMAT)
    if found is None:
        raise IndexProblem(f"{path}: an Arrow file, but no DataHelix index; {_AGAIN}")
    if found != str(schema.FORMAT).encode():
        raise IndexProblem(
            f"{path}: index format {found.decode(errors='replace')}, this version reads {schema.FORMAT}; "
            f"{_AGAIN}"
        )
