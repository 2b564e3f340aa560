"""Sources as users give them (files, folders, globs, shards, JSONL, Parquet) to samples in a fixed order.

Files come in the order of their paths, whatever the order of the sources; a shard or JSONL stands for its
samples where its own path is. This module is also the program of the processes that list those.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from libhelix.errors import HelixError, IndexProblem
from libhelix.index import crew
from libhelix.index.formats import Listing, Options
from libhelix.index.formats.folder import list_files, walk
from libhelix.index.formats.jsonl import list_jsonl
from libhelix.index.formats.parquet import Unusable, extract, list_parquet
from libhelix.index.formats.tar import list_tar
from libhelix.index.schema import META_FORMAT, META_ROWS

FORMATS: dict[str, Callable[[str, Options], Listing]] = {
    ".tar": list_tar,
    ".jsonl": list_jsonl,
    ".ndjson": list_jsonl,
    ".parquet": list_parquet,
}
"""What lists a file that holds samples, by its suffix."""
_PACKED = {".gz": "gunzip", ".tgz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd"}
_GLOB = frozenset("*?[")
_FILES_PER_PROCESS = 8
_LISTING_TIMEOUT_S = 3600.0
"""On network storage every header of a large shard is a round trip."""
_CODE = "from libhelix.index.sources import main; main()"

Files = dict[str, os.stat_result]


class Sources(msgspec.Struct):
    """What was given: plain files, and files that hold samples. `folders` are what the root lies above.
    `refused` are files that are not read as they are."""

    plain: Files = {}
    holders: Files = {}
    folders: list[str] = []
    refused: list[tuple[str, str]] = []


def find(sources: Sequence[str | Path], skip: Sequence[str] = (), *, grouped: bool = False) -> Sources:
    """All files in `sources`, without `skip`, each once however many links lead to it; where files are
    `grouped`, a link is a file of its folder too. Raises IndexProblem where a source is missing or cannot be
    read."""
    if not sources:
        raise IndexProblem("no source was given; name a folder, media files, shards, JSONL or Parquet")
    found = Sources()
    files: dict[str, _File] = {}
    for source in (os.path.abspath(os.fspath(s)) for s in sources):
        for path in _matching(source):
            if os.path.isdir(path):
                found.folders.append(path)
                for at, stat, is_link in walk(path):
                    if stat is None:
                        found.refused.append((at, _nowhere(at)))
                    else:
                        files.setdefault(at, _File(stat, False, is_link))
            elif os.path.isfile(path):
                found.folders.append(os.path.dirname(path))
                files[path] = _File(os.stat(path), True, os.path.islink(path))
            elif os.path.islink(path) and path != source:
                found.refused.append((path, _nowhere(path)))
            else:
                missing = f"{path}: no such file or directory; check the path"
                raise IndexProblem(_nowhere(path) if os.path.islink(path) else missing)
    for path in skip:
        files.pop(path, None)
    for path in _once(files, grouped):
        _sort_in(path, files[path].stat, files[path].given, found)
    return found


class _File(NamedTuple):
    """`given`: named itself, not found in a folder."""

    stat: os.stat_result
    given: bool
    is_link: bool


def _nowhere(link: str) -> str:
    return f"{link}: a link to {os.readlink(link)}, which is not there; mend or remove it"


def _once(files: Mapping[str, _File], grouped: bool) -> list[str]:
    """Paths in their order, one for each file: of several that lead to it the one with fewest links, then the
    first."""
    folders: dict[str, str] = {}
    taken: dict[str, tuple[int, str]] = {}
    for path in sorted(files):
        folder, name = os.path.split(path)
        real = folders.get(folder)
        if real is None:
            real = folders[folder] = os.path.realpath(folder)
        is_link = files[path].is_link
        at = os.path.realpath(path) if is_link and not grouped else os.path.join(real, name)
        rank = is_link + (real != folder), path
        if at not in taken or rank < taken[at]:
            taken[at] = rank
    return sorted(path for _, path in taken.values())


def _matching(source: str) -> list[str]:
    if os.path.exists(source) or not _GLOB & set(source):
        return [source]
    found = sorted(glob.glob(source, recursive=True))
    if not found:
        raise IndexProblem(f"{source}: matches no file; check the pattern")
    return found


def _is_ours(path: str) -> bool:
    """Whether helixctl wrote it: an index, rows beside one, a quarantine."""
    if path.lower().endswith(".quarantine"):
        return _is_ours(path[: -len(".quarantine")])
    try:
        metadata = pa.ipc.open_file(pa.memory_map(path, "r")).schema.metadata or {}
    except (pa.ArrowInvalid, OSError):
        return False
    return META_FORMAT in metadata or META_ROWS in metadata


def _sort_in(path: str, stat: os.stat_result, given: bool, found: Sources) -> None:
    base, suffix = os.path.splitext(path.lower())
    if not given and suffix in (".arrow", ".quarantine") and _is_ours(path):
        return  # an index that lies beside its media, and what is kept with it
    inner = os.path.splitext(base)[1]
    if suffix == ".tgz" or (suffix in _PACKED and inner in FORMATS):
        found.refused.append(
            (
                path,
                f"{path}: compressed, so that one sample costs decompressing all before it; decompress it "
                f"once: {_PACKED[suffix]} {os.path.basename(path)}",
            )
        )
    elif suffix in FORMATS and (given or suffix == ".tar"):
        found.holders[path] = stat
    elif suffix in FORMATS:
        # Often a list of files that lie beside it and are indexed already, or notes about shards.
        found.refused.append((path, f"{path}: not read unless it is named as a source; name it to index it"))
    elif suffix == ".json" and given and _begins_with(path, b"["):
        name = os.path.basename(path)
        found.refused.append(
            (path, f"{path}: one JSON array; write it as JSONL: jq -c '.[]' {name} > {name}l, and index that")
        )
    else:
        found.plain[path] = stat


def _begins_with(path: str, what: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(what)


def extracted(found: Sources, options: Options) -> Sources:
    """Sources with Parquet files replaced by tars of what they hold, below `options.extract`."""
    parquets = [path for path in found.holders if path.lower().endswith(".parquet")]
    if options.extract is None or not parquets:
        return found
    above = os.path.commonpath([os.path.dirname(path) for path in parquets])
    for path in parquets:
        below = os.path.splitext(os.path.relpath(path, above))[0]
        target = os.path.join(os.path.abspath(options.extract), f"{below}.tar")
        del found.holders[path]
        try:
            found.refused += extract(path, target, options)
        except Unusable as e:
            found.refused.append((path, str(e)))
            continue
        found.holders[target] = os.stat(target)
        found.folders.append(os.path.dirname(target))
    return found


def listings(found: Sources, options: Options, jobs: int | None = None) -> Iterator[Listing]:
    """What the sources hold: all plain files together first, then each other file, in order of paths."""
    if found.plain:
        yield list_files(found.plain.items(), options.group)
    paths = sorted(found.holders)
    wanted = jobs if jobs is not None else min(crew.usable_cores(), len(paths) // _FILES_PER_PROCESS)
    if wanted <= 1 and len(paths) < _FILES_PER_PROCESS:
        for path in paths:
            yield _listed(path, options)
        return
    asking = crew.ask_all(
        [msgspec.json.encode(path) for path in paths],
        code=_CODE,
        module=__name__,
        argument=msgspec.json.encode(options).decode(),
        processes=wanted,
        failed=lambda text: IndexProblem(f"the process that lists shards does not start {text}"),
        timeout_s=_LISTING_TIMEOUT_S,
    )
    answers: dict[int, Listing] = {}
    with closing(asking):
        for at, answer in asking:
            if isinstance(answer, crew.Died):
                reason = f"{paths[at]}: listing it ended the process ({answer.how}); leave it out"
                answers[at] = Listing(paths[at], refused=[(paths[at], reason)])
                continue
            got = msgspec.json.decode(answer, type=Listing | Problem)
            if isinstance(got, Problem):
                raise IndexProblem(got.text)
            answers[at] = got
    yield from (answers[i] for i in range(len(paths)))


def _listed(path: str, options: Options) -> Listing:
    return FORMATS[os.path.splitext(path.lower())[1]](path, options)


class Problem(msgspec.Struct, tag=True):
    """Why nothing is indexed at all."""

    text: str


def main() -> None:
    """Answer until the input ends."""
    answers = crew.answers_only()
    options = msgspec.json.decode(sys.argv[1], type=Options)
    for line in sys.stdin.buffer:
        path = msgspec.json.decode(line, type=str)
        try:
            found: Listing | Problem = _listed(path, options)
        except HelixError as e:
            found = Problem(str(e))
        answers.write(msgspec.json.encode(found) + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
