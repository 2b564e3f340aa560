"""Parquet: a row is a sample. Paths are used where they lie; bytes inside are encoded, hence extracted once.

A value in Parquet is no range of bytes: it is compressed and encoded with thousands of others, and every
random access would decode them all. So content goes to an uncompressed tar, a row a sample.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from libhelix.errors import IndexProblem
from libhelix.index.formats import Draft, Listing, Options, last_suffix
from libhelix.index.formats.jsonl import MEDIA_FIELDS, Media, named

_ROWS_AT_ONCE = 256


class Unusable(IndexProblem):
    """Of this file nothing more can be read; it says nothing of others."""


def list_parquet(path: str, options: Options) -> Listing:
    """The samples of a file whose media columns hold paths. Raises IndexProblem where they hold content."""
    found = Listing(path)
    try:
        file, columns, other = _opened(path)
    except Unusable as e:
        found.refused.append((path, str(e)))
        return found
    if not columns:
        found.refused.append((path, f"{path}: no column of media ({', '.join(MEDIA_FIELDS)}); rename one"))
        return found
    lost = [name for name in other if name != "id"]
    if lost:
        found.warnings.append(
            f"{path}: columns {', '.join(lost)} cannot be read in place and are left out; "
            "--extract DIR keeps them, with the media"
        )
    media = Media(options.media_root or os.path.dirname(path))
    wanted = [*columns, *(["id"] if "id" in other else [])]
    try:
        for number, row in enumerate(_rows(file, path, wanted)):
            _add(row, columns, number, media, found)
    except Unusable as e:
        found.refused.append((path, str(e)))
    return found


def _rows(file: Any, path: str, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    number = 0
    try:
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=columns):
            rows = batch.to_pylist()
            number += len(rows)
            yield from rows
    except (pa.ArrowException, OSError, ValueError) as e:
        cause = " ".join(str(e).split())[:200]
        raise Unusable(f"{path}: from row {number} on it cannot be read ({cause}); fetch it again") from e


def _add(row: dict[str, Any], columns: list[str], number: int, media: Media, found: Listing) -> None:
    path = found.origin
    where = f"{path}: row {number}"
    members = []
    for column in columns:
        value = _paths(row[column])
        if isinstance(value, bytes):
            size = os.path.getsize(path)
            raise IndexProblem(
                f"{path}: column {column} holds media and not paths; give --extract DIR to copy them once "
                f"into a tar there (about {size / 2**20:,.0f} MiB of this file, read and written once)"
            )
        for name, one in named(column, value):
            member = media.member(name, one, where)
            if isinstance(member, str):
                found.refused.append((path, f"{where}: {member}"))
                return
            members.append(member)
    if not members:
        found.refused.append((path, f"{where}: names no media; leave it out, or fill {', '.join(columns)}"))
        return
    key = row.get("id")
    key = str(key) if key is not None else f"{os.path.basename(path)}:{number}"
    found.samples.append(Draft(key, tuple(members), where))


def extract(path: str, target: str, options: Options) -> list[tuple[str, str]]:
    """Write the rows of a Parquet file to a tar, atomically, unless that has been done; (row, reason) of
    those whose media cannot be read.

    Its time is set to that of the Parquet file, which says whether it is still the one. Raises Unusable, and
    IndexProblem where the tar cannot be written.
    """
    changed = os.stat(path).st_mtime_ns
    if os.path.exists(target) and os.stat(target).st_mtime_ns == changed:
        return []
    refused: list[tuple[str, str]] = []
    file, columns, other = _opened(path)
    temporary = f"{target}.{os.getpid()}.tmp"
    folder = options.media_root or os.path.dirname(path)
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as archive:
            for name, content in _contents(file, columns, other, folder, path, refused):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        os.utime(temporary, ns=(changed, changed))
        os.replace(temporary, target)
    except OSError as e:
        raise IndexProblem(f"{e.filename or target}: {e.strerror}; check it, or extract elsewhere") from e
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    if refused:  # with them it is not done: the next time says them again
        os.utime(target, ns=(changed, changed + 1))
    return refused


def _contents(
    file: Any,
    columns: list[str],
    other: list[str],
    folder: str,
    path: str,
    refused: list[tuple[str, str]],
) -> Iterator[tuple[str, bytes]]:
    number = -1
    for number, row in enumerate(_rows(file, path)):
        key = f"{number:08}"
        try:
            media = list(_media(row, columns, key, folder))
        except OSError as e:
            where = f"{path}: row {number}"
            reason = (
                f"{where}: {e.filename}: {e.strerror}; fetch it, or say where media are with --media-root"
            )
            refused.append((where, reason))
            continue
        yield from media
        if other:
            rest = {name: row[name] for name in other}
            yield f"{key}.json", json.dumps(rest, ensure_ascii=False, default=str).encode()
    if number < 0:
        raise Unusable(f"{path}: has no rows; leave it out")


def _media(row: Mapping[str, Any], columns: list[str], key: str, folder: str) -> Iterator[tuple[str, bytes]]:
    for column in columns:
        values = row[column] if isinstance(row[column], list) else [row[column]]
        for i, value in enumerate(v for v in values if v):
            place = f"{key}.{column}" + (f".{i}" if len(values) > 1 else "")
            suffix, content = _content(value, folder)
            yield f"{place}.{suffix}", content


def _content(value: Any, folder: str) -> tuple[str, bytes]:
    name, content = "", value
    if isinstance(value, dict):
        name, content = value.get("path") or "", value.get("bytes")
    elif isinstance(value, str):
        name, content = value, None
    if content is None:
        with open(os.path.join(folder, name), "rb") as file:
            content = file.read()
    suffix = last_suffix(os.path.basename(name)) if "." in name else _magic(content)
    return suffix, content


def _magic(content: bytes) -> str:
    """A suffix for people and other readers; DataHelix looks at the content itself."""
    for begin, suffix in ((b"\xff\xd8", "jpg"), (b"\x89PNG", "png"), (b"fLaC", "flac"), (b"GIF8", "gif")):
        if content.startswith(begin):
            return suffix
    if content[:4] == b"RIFF":
        return {b"WEBP": "webp", b"WAVE": "wav"}.get(content[8:12], "avi")
    return "mp4" if content[4:8] == b"ftyp" else "bin"


def _paths(value: Any) -> Any:
    """A path, a list of paths, or content where there is some."""
    if isinstance(value, list):
        values = [_paths(one) for one in value]
        return next((v for v in values if isinstance(v, bytes)), values)
    if isinstance(value, dict):
        return value["path"] if value.get("bytes") is None else value["bytes"]
    return value


def _opened(path: str) -> tuple[Any, list[str], list[str]]:
    """The file, its columns of media, and the others. Raises Unusable."""
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as e:
        raise Unusable(f"{path}: no Parquet, or a truncated one ({e}); fetch it again") from e
    columns: list[str] = []
    other: list[str] = []
    for field in file.schema_arrow:
        (columns if _is_media(field.name, field.type) else other).append(field.name)
    return file, columns, other


def _is_media(name: str, kind: Any) -> bool:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_media(name, kind.value_type)
    if pa.types.is_struct(kind):
        return {kind.field(i).name for i in range(kind.num_fields)} == {"bytes", "path"}
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return True
    return name in MEDIA_FIELDS and (pa.types.is_string(kind) or pa.types.is_large_string(kind))
