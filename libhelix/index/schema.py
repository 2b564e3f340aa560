"""The columns of an index file, and what its metadata say."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa

from libhelix.recipe import ImageInfo, Item, VideoInfo

FORMAT = 1
"""Raised whenever a reader of the previous number would misread the file."""

META_FORMAT = b"helix.format"
META_FINGERPRINT = b"helix.fingerprint"
META_ROOT = b"helix.root"
META_REFUSED = b"helix.refused"

_TIMES = pa.large_list(pa.int64())

COLUMNS: tuple[tuple[str, pa.DataType], ...] = (
    ("key", pa.large_string()),
    ("kind", pa.large_string()),
    ("path", pa.large_string()),
    ("offset", pa.int64()),
    ("size", pa.int64()),
    ("mtime_ns", pa.int64()),
    ("codec", pa.large_string()),
    ("width", pa.int32()),
    ("height", pa.int32()),
    ("orientation", pa.int32()),
    ("stream", pa.int32()),
    ("rotation", pa.int32()),
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
)
"""Columns in file order. Those of the other kind are null; `path` is relative to the root."""


def row(key: str, item: Item) -> dict[str, Any]:
    """One sample as a row. Its path below the root is its key."""
    found: dict[str, Any] = dict.fromkeys(name for name, _ in COLUMNS)
    found.update(key=key, kind=item.kind, path=key, offset=item.offset, size=item.size)
    found["mtime_ns"] = item.mtime_ns
    info: VideoInfo | ImageInfo | None = item.video or item.image
    if info is not None:
        columns = msgspec.structs.asdict(info)
        if item.video is not None:
            columns["tb_num"], columns["tb_den"] = columns.pop("time_base")
            columns["seekable"], columns["ordered"] = int(item.video.seekable), int(item.video.ordered)
        found.update(columns)
    return found


def fingerprint(samples: Iterable[tuple[str, Item]]) -> str:
    """What the index says of its samples, as 32 hex digits; neither root nor file times are part of it."""
    digest = hashlib.blake2b(digest_size=16)
    encoder = msgspec.msgpack.Encoder()
    for key, item in samples:
        # msgpack values carry their lengths, so that no two sequences of samples read the same.
        digest.update(encoder.encode((key, item.kind, item.offset, item.size, item.video, item.image)))
    return digest.hexdigest()
