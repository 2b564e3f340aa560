"""The columns of an index file, and what its metadata say.

A sample is a row: its key, and a list of items. Items of all samples lie one after the other in columns of
their own, so that a sample is found by two numbers. `path` is that of the file below the root, from a table
of paths (the members of a tar share one); its first entry, the empty one, stands for the sample's key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from libhelix._version import __version__
from libhelix.recipe import AudioInfo, ImageInfo, Item, TensorInfo, TextInfo, VideoInfo

FORMAT = 3
"""Raised whenever a reader of the previous number would misread the file."""

PROBING = f"3 {__version__}"
"""Of the rules by which media become items. Another one's answers are not taken over: raise its number when
a probe says something else of a file than before."""

META_FORMAT = b"helix.format"
META_PROBING = b"helix.probing"
META_FINGERPRINT = b"helix.fingerprint"
META_ROOT = b"helix.root"
META_REFUSED = b"helix.refused"
META_TOKENIZER = b"helix.tokenizer"
"""Fingerprint of the tokenizer that counted the tokens of texts; missing where they were not counted."""
META_ROWS = b"helix.rows"
"""Of the file of rows that lies beside an index: what they were made of."""

_TIMES = pa.large_list(pa.int64())

ITEM_COLUMNS: tuple[tuple[str, pa.DataType], ...] = (
    ("name", pa.large_string()),
    ("kind", pa.large_string()),
    ("path", pa.dictionary(pa.int32(), pa.large_string())),
    ("offset", pa.int64()),
    ("size", pa.int64()),
    ("mtime_ns", pa.int64()),
    ("codec", pa.large_string()),
    ("width", pa.int32()),
    ("height", pa.int32()),
    ("orientation", pa.int32()),
    ("stream", pa.int32()),
    ("rotation", pa.int32()),
    ("mirrored", pa.int8()),
    ("sar_num", pa.int32()),
    ("sar_den", pa.int32()),
    ("frames", pa.int64()),
    ("fps", pa.float64()),
    ("duration_s", pa.float64()),
    ("tb_num", pa.int64()),
    ("tb_den", pa.int64()),
    ("start_pts", pa.int64()),
    ("pts_step", pa.int64()),
    ("pts", _TIMES),
    ("key_pts", _TIMES),
    ("key_frames", _TIMES),
    ("key_bytes", _TIMES),
    ("seekable", pa.int8()),
    ("ordered", pa.int8()),
    ("rate", pa.int32()),
    ("channels", pa.int32()),
    ("samples", pa.int64()),
    ("tokens", pa.int64()),
    ("dtype", pa.large_string()),
    ("shape", _TIMES),
)
"""Columns of items, in file order. Those of other kinds are null."""
COLUMNS: tuple[tuple[str, pa.DataType], ...] = (
    ("key", pa.large_string()),
    ("items", pa.large_list(pa.struct(list(ITEM_COLUMNS)))),
)
INFOS: dict[str, type[VideoInfo | ImageInfo | AudioInfo | TextInfo | TensorInfo]] = {
    "video": VideoInfo,
    "image": ImageInfo,
    "audio": AudioInfo,
    "text": TextInfo,
    "tensor": TensorInfo,
}
"""What is known of an item, by its kind; it is the attribute of that name."""


def row(key: str, items: Sequence[Item]) -> dict[str, Any]:
    """One sample as a row. Paths of its items are relative to the root."""
    return {"key": key, "items": [_item(key, item) for item in items]}


_NULLS: dict[str, Any] = dict.fromkeys(name for name, _ in ITEM_COLUMNS)


def _item(key: str, item: Item) -> dict[str, Any]:
    found = _NULLS.copy()
    found.update(name=item.name, kind=item.kind, offset=item.offset, size=item.size, mtime_ns=item.mtime_ns)
    found["path"] = "" if item.path == key else item.path
    info = getattr(item, item.kind, None)
    if info is not None:
        columns = msgspec.structs.asdict(info)
        columns.pop("tokenizer", None)  # one for all, in the metadata
        for name, short in (("time_base", "tb"), ("sar", "sar")):
            if name in columns:
                columns[f"{short}_num"], columns[f"{short}_den"] = columns.pop(name)
        found.update((name, int(v) if isinstance(v, bool) else v) for name, v in columns.items())
    return found


def batch(rows: Iterable[dict[str, Any]], metadata: dict[bytes, str]) -> Any:
    """Rows as the one record batch of an index file."""
    rows = list(rows)
    items = [item for one in rows for item in one["items"]]
    ends = [0]
    for one in rows:
        ends.append(ends[-1] + len(one["items"]))
    keys = pa.array([one["key"] for one in rows], pa.large_string())
    return _batch(keys, pa.array(ends, pa.int64()), items, metadata)


def batch_without_items(keys: Any, metadata: dict[bytes, str]) -> Any:
    """The record batch of samples that are nothing but their keys."""
    ends = pa.nulls(len(keys) + 1, pa.int64()).fill_null(0)
    return _batch(keys, ends, [], metadata)


def _batch(keys: Any, ends: Any, items: Sequence[dict[str, Any]], metadata: dict[bytes, str]) -> Any:
    fields = [pa.field(name, kind) for name, kind in ITEM_COLUMNS]
    arrays = [_array([item[name] for item in items], kind) for name, kind in ITEM_COLUMNS]
    lists = pa.LargeListArray.from_arrays(ends, pa.StructArray.from_arrays(arrays, fields=fields))
    return pa.record_batch([keys, lists], schema=pa.schema(list(COLUMNS), metadata=metadata))


def _array(values: Sequence[Any], kind: Any) -> Any:
    if not pa.types.is_dictionary(kind):
        return pa.array(values, kind)
    # The empty path comes first, whether it is used or not.
    codes = {"": 0}
    indices = [codes.setdefault(value, len(codes)) for value in values]
    return pa.DictionaryArray.from_arrays(
        pa.array(indices, kind.index_type), pa.array(list(codes), kind.value_type)
    )


def fingerprint(samples: Iterable[tuple[str, Sequence[Item]]]) -> str:
    """What the index says of its samples, as 32 hex digits; neither root nor file times are part of it."""
    digest = hashlib.blake2b(digest_size=16)
    encoder = msgspec.msgpack.Encoder()
    for key, items in samples:
        # msgpack values carry their lengths, so that no two sequences of samples read the same.
        digest.update(encoder.encode((key, [_said(key, item) for item in items])))
    return digest.hexdigest()


def _said(key: str, item: Item) -> tuple[Any, ...]:
    path = "" if item.path == key else item.path
    return (item.name, item.kind, path, item.offset, item.size, getattr(item, item.kind, None))
