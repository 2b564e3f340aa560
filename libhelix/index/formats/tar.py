"""WebDataset shards: members of a tar with one name up to the first dot are the items of one sample.

Only headers are read; an item is the range of bytes its member takes in the shard.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from typing import BinaryIO

from libhelix.index.formats import MEDIA_SUFFIXES, TEXT_SUFFIXES, Draft, Listing, Member, Options, last_suffix

_BLOCK = tarfile.BLOCKSIZE
_SEARCHED_AT_ONCE = 1 << 20


def split(name: str) -> tuple[str, str] | None:
    """(sample key, item name) of a member, by webdataset's rule; None where its name has no such parts."""
    folder, slash, base = name.rpartition("/")
    stem, _, rest = base.partition(".")
    return (folder + slash + stem, rest.lower()) if stem and rest else None


def list_tar(path: str, options: Options) -> Listing:
    """The samples of a shard. What is truncated, damaged or double is reported with its offset; the rest
    is kept."""
    found = Listing(path, alike=True)
    try:
        with open(path, "rb") as file:
            _list(file, options, found)
    except OSError as e:
        found.refused.append((path, f"{path}: {e.strerror}; make it readable"))
    return found


def _list(file: BinaryIO, options: Options, found: Listing) -> None:
    path, stat = found.origin, os.fstat(file.fileno())
    groups: dict[str, dict[str, Member]] = {}
    bad: dict[str, str] = {}
    odd: list[str] = []
    for info in _members(file, options.ignore_zeros, stat.st_size, found):
        name = info.name[2:] if info.name.startswith("./") else info.name
        if info.isdir() or _is_debris(name):
            continue
        at = f"{path}: {name!r} at byte {info.offset}"
        parts = split(name)
        if reason := _unusable(info, parts):
            found.refused.append((path, f"{at} {reason}"))
            continue
        assert parts is not None
        key, item = parts
        if any(" " in part or part.isdigit() for part in item.split(".")):
            odd.append(f"{name!r} is item {item!r} of sample {key!r}")
        members = groups.setdefault(key, {})
        if item in members:
            bad.setdefault(key, f"{at} is there twice (before: byte {members[item].offset - _BLOCK})")
        members[item] = _member(path, stat, info, item, at)
    for key, reason in bad.items():
        del groups[key]
        found.refused.append((path, f"{reason}; nobody can tell which is meant: write the shard again"))
    found.samples = [Draft(key, tuple(members.values())) for key, members in groups.items()]
    if odd:
        found.warnings.append(
            f"{path}: names are split at their first dot, which gives odd items for {len(odd)} members: "
            f"{odd[0]}; rename them if that is not meant"
        )


def _member(path: str, stat: os.stat_result, info: tarfile.TarInfo, name: str, label: str) -> Member:
    suffix = last_suffix(name)
    return Member(
        name,
        path,
        info.offset_data,
        info.size,
        stat.st_mtime_ns,
        whole=False,
        text=suffix in TEXT_SUFFIXES,
        needed=suffix in MEDIA_SUFFIXES,
        label=label,
    )


def _is_debris(name: str) -> bool:
    """What macOS and Windows leave, and webdataset's own notes about the shard ("__meta__")."""
    folder, _, base = name.rpartition("/")
    if "__MACOSX" in folder.split("/") or base.startswith("._") or base in (".DS_Store", "Thumbs.db"):
        return True
    return not folder and base.startswith("__") and base.endswith("__")


def _unusable(info: tarfile.TarInfo, parts: tuple[str, str] | None) -> str:
    if not info.isreg():
        return "is a link or a device; store the file itself"
    if info.issparse():
        return "is sparse, its bytes are not in one piece; write the shard without --sparse"
    try:
        info.name.encode()
    except UnicodeEncodeError:
        return "has a name that is not UTF-8; rename it"
    return "" if parts else "has no name of the form KEY.EXTENSION; rename it"


def _members(file: BinaryIO, on: bool, size: int, found: Listing) -> Iterator[tarfile.TarInfo]:
    """Members whose bytes are all there; says in `found` where and why reading ended early."""
    path = found.origin
    try:
        archive = tarfile.TarFile(fileobj=file, mode="r", ignore_zeros=on)
    except tarfile.TarError as e:
        file.seek(0)
        packed = file.read(2) == b"\x1f\x8b"
        cure = "decompress it once (gunzip)" if packed else "fetch it again"
        found.refused.append((path, f"{path}: no tar ({e}); {cure}"))
        return
    while archive.offset:  # 0: it has no members, and Python 3.10 cannot be asked for one again
        try:
            info = archive.next()
        except (tarfile.TarError, ValueError):
            break  # what is wrong there is told below
        if info is None:
            break
        end = info.offset_data + (0 if info.issparse() else info.size)
        if end > size:
            at = f"{path}: {info.name!r} at byte {info.offset}"
            found.refused.append(
                (
                    path,
                    f"{at} is truncated: it would end at {end}, the shard ends at {size}; fetch it again",
                )
            )
            return
        yield info
        archive.members.clear()  # type: ignore[attr-defined]  # it would keep every header of a large shard
    _check_end(file, archive.offset, size, found)


def _check_end(file: BinaryIO, at: int, size: int, found: Listing) -> None:
    """Where reading ended there should be zeros, or nothing; anything else would be lost without a word."""
    path = found.origin
    file.seek(at)
    block = file.read(_BLOCK)
    if not block:
        return  # without the blocks that mark an end: an interrupted writer, but all members are whole
    if block.strip(b"\0"):
        what = "is cut off" if len(block) < _BLOCK else "is damaged"
        found.refused.append(
            (path, f"{path}: the header at byte {at} {what}, what follows is left out; fetch it again")
        )
        return
    while block and not block.strip(b"\0"):
        at += len(block)
        block = file.read(_SEARCHED_AT_ONCE)
    if block:
        at += len(block) - len(block.lstrip(b"\0"))
        found.warnings.append(
            f"{path}: the archive ends before byte {at}, but {size - at} follow, as where tars are joined; "
            "these are not read: give --ignore-zeros to read them, or write the shard again"
        )
