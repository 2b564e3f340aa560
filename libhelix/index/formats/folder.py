"""Folders: a file is a sample. With `group="stem"` files that differ in their suffix alone are one, with
`group="folder"` those of one folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from operator import attrgetter

from libhelix.errors import IndexProblem
from libhelix.index.formats import MEDIA_SUFFIXES, TEXT_SUFFIXES, Draft, Listing, Member, last_suffix


def walk(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every regular file below a folder. What is hidden, or a Mac's notes (__MACOSX), is passed over; links
    to folders are not followed (they may form a circle). Raises IndexProblem where a folder cannot be read.
    """
    todo = [folder]
    while todo:
        at = todo.pop()
        try:
            with os.scandir(at) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or entry.name == "__MACOSX":
                        continue
                    if entry.is_dir():
                        if not entry.is_symlink():
                            todo.append(entry.path)
                    # Sockets and pipes would block whoever opens them.
                    elif entry.is_file():
                        yield entry.path, entry.stat()
        except OSError as e:
            raise IndexProblem(f"{e.filename or at}: {e.strerror}; make it readable") from e


def list_files(files: Iterable[tuple[str, os.stat_result]], group: str) -> Listing:
    """The samples that files are, in the order of their paths."""
    found = Listing("", below_root=True, alike=group == "stem")
    groups: dict[str, list[Member]] = {}
    for path, stat in files:
        try:
            path.encode()
        except UnicodeEncodeError:
            found.refused.append((path, f"{path!r}: the name is not UTF-8; rename the file"))
            continue
        member = Member("", path, 0, stat.st_size, stat.st_mtime_ns)
        if not group:
            found.samples.append(Draft(path, (member,)))
            continue
        if group == "folder":
            key, name = os.path.split(path)
        else:
            key, suffix = os.path.splitext(path)
            name = suffix[1:].lower()
        groups.setdefault(key, []).append(_named(member, name))
    for key, members in groups.items():
        found.samples.append(Draft(key, tuple(sorted(members, key=attrgetter("path")))))
    return found


def _named(member: Member, name: str) -> Member:
    suffix = last_suffix(name)
    return Member(
        name,
        member.path,
        0,
        member.size,
        member.mtime_ns,
        text=suffix in TEXT_SUFFIXES,
        needed=suffix in MEDIA_SUFFIXES,
    )
