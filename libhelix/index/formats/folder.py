"""Folders: a file is a sample. With `group="stem"` files that differ in their suffix alone are one, with
`group="folder"` those of one folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from libhelix.errors import IndexProblem
from libhelix.index.formats import MEDIA_SUFFIXES, TEXT_SUFFIXES, Draft, Listing, Member, last_suffix


class Entry(NamedTuple):
    """A file that a folder holds, or a link to one. `stat` is that of the file; None where a link leads
    nowhere."""

    path: str
    stat: os.stat_result | None
    is_link: bool


def walk(folder: str) -> Iterator[Entry]:
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
                    is_link = entry.is_symlink()
                    if is_link and leads_nowhere(entry.path):
                        yield Entry(entry.path, None, True)
                    elif entry.is_dir():
                        if not is_link:
                            todo.append(entry.path)
                    # Sockets and pipes would block whoever opens them.
                    elif entry.is_file():
                        yield Entry(entry.path, entry.stat(), is_link)
        except OSError as e:
            raise IndexProblem(f"{e.filename or at}: {e.strerror}; make it readable") from e


def leads_nowhere(link: str) -> bool:
    """Whether what a link names is not there, or the link is one of a circle of links."""
    try:
        os.stat(link)
    except OSError as e:
        if e.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return True
    return False


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
