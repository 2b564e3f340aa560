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
_MOST_EXTENDED_BYTES = 1 << 20
"""Of a header that extends the next one: a long name, PAX records. tarfile reads it at once."""
_EXTENDING = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


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


class _Header(tarfile.TarInfo):
    """A header whose size is one: tarfile would go back by a negative one, for ever, and ask for as much
    memory as a large one says."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size < 0 or (self.type in _EXTENDING and self.size > _MOST_EXTENDED_BYTES):
            raise tarfile.InvalidHeaderError("bad size")  # type: ignore[attr-defined]
        found: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        if found.size < 0:  # by a PAX record
            raise tarfile.InvalidHeaderError("bad size")  # type: ignore[attr-defined]
        return found


_DAMAGE = (tarfile.TarError, ValueError, OverflowError, RecursionError)
"""What tarfile raises for bytes that are no header."""


def _members(file: BinaryIO, on: bool, size: int, found: Listing) -> Iterator[tarfile.TarInfo]:
    """Members whose bytes are all there; says in `found` where and why reading ended early."""
    path = found.origin
    try:
        archive = tarfile.TarFile(fileobj=file, mode="r", tarinfo=_Header)
    except _DAMAGE as e:
        file.seek(0)
        packed = file.read(2) == b"\x1f\x8b"
        cure = "decompress it once (gunzip)" if packed else "fetch it again"
        found.refused.append((path, f"{path}: no tar ({e}); {cure}"))
        return
    while True:
        at = archive.offset
        try:
            # 0: it begins with no member, and Python 3.10 cannot be asked for one again.
            info = archive.next() if at else None
        except _DAMAGE:
            info = None
        if info is None:
            following = _end(file, at, size, found, on)
            if following is None:
                return
            archive.offset = following
            continue
        end = info.offset_data + (0 if info.issparse() else info.size)
        if end > size:
            where = f"{path}: {info.name!r} at byte {info.offset}"
            found.refused.append(
                (
                    path,
                    f"{where} is truncated: it would end at {end}, the shard ends at {size}; fetch it again",
                )
            )
            return
        yield info
        archive.members.clear()  # type: ignore[attr-defined]  # it would keep every header of a large shard


def _end(file: BinaryIO, at: int, size: int, found: Listing, on: bool) -> int | None:
    """Where to read on behind an end, if `on`.

    Where reading ended there should be zeros, or nothing; anything else would be lost without a word.
    """
    path = found.origin
    file.seek(at)
    block = file.read(_BLOCK)
    if not block:
        return None  # without the blocks that mark an end: an interrupted writer, but all members are whole
    if block.strip(b"\0"):
        what = "is cut off" if len(block) < _BLOCK else "is damaged"
        found.refused.append(
            (path, f"{path}: the header at byte {at} {what}, what follows is left out; fetch it again")
        )
        return None
    while block and not block.strip(b"\0"):
        at += len(block)
        block = file.read(_SEARCHED_AT_ONCE)
    if not block:
        return None
    at += len(block) - len(block.lstrip(b"\0"))
    if on:
        return at - at % _BLOCK
    found.warnings.append(
        f"{path}: the archive ends before byte {at}, but {size - at} follow, as where tars are joined; "
        "these are not read: give --ignore-zeros to read them, or write the shard again"
    )
    return None
