"""An index for sources that have none: built once per user, found again while the files are unchanged."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from libhelix.errors import IndexProblem
from libhelix.index.build import build
from libhelix.index.formats import Options
from libhelix.index.probing import Progress
from libhelix.index.read import Index
from libhelix.index.schema import FORMAT, PROBING
from libhelix.index.sources import Sources, find, listings


def open_or_build(source: str | Path | Sequence[str | Path], *, progress: bool = True) -> Index:
    """The index of `source`: an .arrow file is opened; all that `helixctl index` takes is indexed and cached.

    The cache lies in $HELIX_CACHE or ~/.cache/helix and is keyed by paths, sizes and modification times.
    Processes that ask at once wait for the first. `progress` shows a bar on stderr, if that is a terminal.
    Raises IndexProblem.
    """
    sources = [source] if isinstance(source, (str, Path)) else list(source)
    if len(sources) == 1 and os.fspath(sources[0]).endswith(".arrow"):
        return Index.open(sources[0])
    folder = cache_folder()
    target = os.path.join(folder, _listing_key(sources) + ".arrow")
    if not os.path.exists(target):
        with _locked(target + ".lock"):
            # Another process may have built it while this one waited.
            if not os.path.exists(target):
                with progress_bar(progress) as report:
                    build(sources, target, progress=report)
    index = Index.open(target)
    index.sources = tuple(os.fspath(one) for one in sources)
    return index


def user_cache() -> str:
    """The folder of all that is kept for a user: $HELIX_CACHE, or ~/.cache/helix."""
    return os.environ.get("HELIX_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "helix")


def cache_folder() -> str:
    """The folder of cached indexes, created if missing."""
    folder = os.path.join(user_cache(), "index")
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as e:
        raise IndexProblem(f"{folder}: {e.strerror}; set HELIX_CACHE to a writable folder") from e
    return folder


def _listing_key(sources: Sequence[str | Path]) -> str:
    """What decides whether a cached index still fits: the sources and every file's size and time."""
    found = find(sources)
    stats = {**found.plain, **found.holders}
    files = {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}
    # What a tar holds follows from its size and time. What a list of paths names has its own.
    lists = Sources(holders={p: s for p, s in found.holders.items() if not p.lower().endswith(".tar")})
    for listing in listings(lists, Options()):
        files.update({m.path: (m.size, m.mtime_ns) for d in listing.samples for m in d.members if m.whole})
    digest = hashlib.blake2b(digest_size=16)
    folders = sorted(map(os.path.realpath, found.folders))
    digest.update("\0".join([str(FORMAT), PROBING, *folders, ""]).encode(errors="surrogateescape"))
    for path, (size, changed) in sorted(files.items()):
        digest.update(f"{path}\0{size}\0{changed}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


@contextmanager
def _locked(path: str) -> Iterator[None]:
    # flock, because the kernel drops it with the process: a killed builder blocks nobody.
    try:
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise IndexProblem(f"{path}: {e.strerror}; set HELIX_CACHE to a writable folder") from e
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def progress_bar(wanted: bool = True, doing: str = "indexing") -> Iterator[Progress | None]:
    """A `progress(done, total)` that draws on stderr, or None where that is no terminal."""
    if not (wanted and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
