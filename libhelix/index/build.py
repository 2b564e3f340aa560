"""Building an index: find the files, probe them on all cores, write one Arrow file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from libhelix.errors import IndexProblem
from libhelix.index import crew, scan, schema, writing
from libhelix.recipe import Item

Progress = Callable[[int, int], None]
Keyed = tuple[str, tuple[Item, ...]]
"""A sample's key, and its items with paths below the root."""

_FILES_PER_PROCESS = 16
"""A scanning process takes 0.3 s to start: it should have something to do."""
_SCAN = "from libhelix.index.scan import main; main()"


class BuildReport(msgspec.Struct, frozen=True):
    """What a build did. `refused` are (path, reason) of files that are not in the index."""

    samples: int
    refused: list[tuple[str, str]]
    fingerprint: str


def build(
    sources: Sequence[str | Path],
    output: str | Path,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Index files and directories (recursively, in sorted order) into `output`, atomically.

    Keys are paths below the sources' common directory. `jobs` processes scan (all usable cores by default);
    `progress(done, total)` is called from the caller's thread. Raises IndexProblem where a source is missing,
    nothing usable is found, or the output cannot be written.
    """
    output = os.path.abspath(os.fspath(output))
    root, paths = list_files(sources, skip=output)
    writing.check_writable(output)
    answers = _probe_all(paths, jobs, progress)
    refused = [(p, a.refused) for p, a in zip(paths, answers, strict=True) if not a.items]
    samples = [_lone(a.items, root) for a in answers if a.items]
    if not samples:
        some = "; ".join(reason for _, reason in refused[:3]) or "the sources hold no files"
        raise IndexProblem(f"nothing to index in {', '.join(map(str, sources))}: {some}; name media files")
    mark = schema.fingerprint(samples)
    _write(samples, output, root, mark, len(refused))
    return BuildReport(len(samples), refused, mark)


def list_files(sources: Sequence[str | Path], skip: str = "") -> tuple[str, list[str]]:
    """(common root, sorted absolute paths) of the files in `sources`, without `skip`.

    Hidden directories are not entered, links to directories not followed (they may form a circle).
    """
    if not sources:
        raise IndexProblem("no source was given; name a directory or media files")
    folders: list[str] = []
    found: set[str] = set()
    for source in (os.path.abspath(os.fspath(s)) for s in sources):
        if os.path.isdir(source):
            folders.append(source)
            found.update(_walk(source))
        elif os.path.isfile(source):
            folders.append(os.path.dirname(source))
            found.add(source)
        else:
            raise IndexProblem(f"{source}: no such file or directory; check the path")
    found.discard(skip)
    return os.path.commonpath(folders), sorted(found)


def _walk(folder: str) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise IndexProblem(f"{error.filename}: {error.strerror}; make it readable") from error

    for at, folders, files in os.walk(folder, onerror=fail):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        # Sockets and pipes would block whoever opens them.
        yield from (p for p in (os.path.join(at, f) for f in files) if os.path.isfile(p))


def _probe_all(paths: Sequence[str], jobs: int | None, progress: Progress | None) -> list[scan.Answer]:
    wanted = jobs if jobs is not None else min(crew.usable_cores(), -(-len(paths) // _FILES_PER_PROCESS))
    answers: dict[int, scan.Answer] = {}
    questions: list[bytes] = []
    asked: list[int] = []
    for i, path in enumerate(paths):
        try:
            questions.append(msgspec.json.encode(path))
            asked.append(i)
        except UnicodeEncodeError:
            answers[i] = scan.Answer(refused=f"{path!r}: the name is not UTF-8; rename the file")
    asking = crew.ask_all(
        questions, code=_SCAN, module="libhelix.index.scan", processes=wanted, failed=_not_started
    )
    with closing(asking):
        for at, answer in asking:
            answers[asked[at]] = _answer(paths[asked[at]], answer)
            if progress is not None:
                progress(len(answers), len(paths))
    return [answers[i] for i in range(len(paths))]


def _answer(path: str, answer: crew.Answer) -> scan.Answer:
    if isinstance(answer, crew.Died):
        return scan.Answer(
            refused=f"{path}: reading it ended the scanning process ({answer.how}); leave it out"
        )
    return msgspec.json.decode(answer, type=scan.Answer)


def _not_started(text: str) -> IndexProblem:
    return IndexProblem(f"the scanning process does not start {text}")


def _lone(items: Sequence[Item], root: str) -> Keyed:
    """A file that is a sample: its path below the root is its key."""
    key = os.path.relpath(items[0].path, root)
    return key, tuple(msgspec.structs.replace(item, path=key) for item in items)


def _write(samples: Sequence[Keyed], path: str, root: str, mark: str, refused: int) -> None:
    metadata = {
        schema.META_FORMAT: str(schema.FORMAT),
        schema.META_FINGERPRINT: mark,
        schema.META_ROOT: root,
        schema.META_REFUSED: json.dumps(refused),
    }
    writing.write(schema.batch((schema.row(key, items) for key, items in samples), metadata), path)
