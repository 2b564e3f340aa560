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
from libhelix.index.build import Progress, build, list_files
from libhelix.index.read import Index
from libhelix.index.schema import FORMAT


def open_or_build(source: str | Path | Sequence[str | Path], *, progress: bool = True) -> Index:
    """The index of `source`: an .arrow file is opened; media files and directories are indexed and cached.

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


def cache_folder() -> str:
    """The folder of cached indexes, created if missing."""
    base = os.environ.get("HELIX_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "helix")
    folder = os.path.join(base, "index")
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as e:
        raise IndexProblem(f"{folder}: {e.strerror}; set HELIX_CACHE to a writable folder") from e
    return folder


def _listing_key(sources: Sequence[str | Path]) -> str:
    """What decides whether a cached index still fits: the sources and every file's size and time."""
    root, paths = list_files(sources)
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{FORMAT}\0{os.path.realpath(root)}\0".encode(errors="surrogateescape"))
    for path in paths:
        found = os.stat(path)
        line = f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0"
        digest.update(line.encode(errors="surrogateescape"))
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
