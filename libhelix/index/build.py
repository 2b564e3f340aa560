"""Building an index: find the files, probe what is new on all cores, write one Arrow file."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path

import msgspec

from libhelix.errors import IndexProblem
from libhelix.index import schema, tokens, writing
from libhelix.index.assemble import Keyed, samples_of
from libhelix.index.formats import Listing, Member, Options
from libhelix.index.journal import Journal, path_of
from libhelix.index.known import Known, read_samples
from libhelix.index.probing import Probed, Progress, probe_all
from libhelix.index.sources import Sources, extracted, find, listings
from libhelix.recipe import Item, Sample


class BuildReport(msgspec.Struct, frozen=True):
    """What a build did. `refused` are (path, reason) of what is not in the index.

    `added`, `changed` and `removed` are samples, against the index that was there. `reused` are the files and
    members that were not opened again.
    """

    samples: int
    refused: list[tuple[str, str]]
    fingerprint: str
    warnings: list[str] = []
    added: int = 0
    changed: int = 0
    removed: int = 0
    reused: int = 0


def build(
    sources: Sequence[str | Path],
    output: str | Path,
    *,
    options: Options = Options(),  # noqa: B008 - frozen
    rebuild: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
    tokenizer: str | Path | None = None,
) -> BuildReport:
    """Index files, folders, patterns, shards, JSONL and Parquet into `output`, atomically.

    What an index at `output` says of unchanged files is taken over, unless `rebuild`. `jobs` processes scan
    (all usable cores by default); `progress(done, total)` is called from the caller's thread. Raises
    IndexProblem where a source is missing, nothing usable is found, or the output cannot be written. The
    tokens of texts are counted where a `tokenizer` (a tokenizer.json) is given; UsageError where it cannot be
    used.
    """
    counting = tokens.opened(tokenizer) if tokenizer is not None else None
    with _no_collector():
        return _build(sources, os.path.abspath(os.fspath(output)), options, rebuild, jobs, progress, counting)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Millions of small objects without circles: looking for some takes a third of a build's time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _build(
    sources: Sequence[str | Path],
    output: str,
    options: Options,
    rebuild: bool,
    jobs: int | None,
    progress: Progress | None,
    counting: tokens.Counting | None,
) -> BuildReport:
    found = find(sources, skip=(output, path_of(output)), grouped=bool(options.group))
    writing.check_writable(output)
    found = extracted(found, options)
    lists = list(listings(found, options, jobs))
    members = [member for one in lists for draft in one.samples for member in draft.members]
    before, old_root = ((), "") if rebuild else read_samples(output)
    with Journal(output) as journal:
        probed = _probe(members, before, old_root, journal, rebuild, jobs, progress)
        refused = [*found.refused]
        ordered: list[tuple[str, Keyed]] = []
        root = _root(found, members)
        for one in lists:
            some, bad = samples_of(one, probed.answers, options.keep_incomplete)
            ordered += [(at, _below(root, sample, one)) for at, sample in some]
            refused += [*one.refused, *bad]
        samples = [sample for _, sample in sorted(ordered, key=itemgetter(0))]
        if counting is not None:
            samples, unread = tokens.counted(samples, root, counting)
            refused += unread
        if not samples:
            journal.forget()
            some_reasons = "; ".join(reason for _, reason in refused[:3]) or "the sources hold no files"
            raise IndexProblem(
                f"nothing to index in {', '.join(map(str, sources))}: {some_reasons}; name media files"
            )
        mark = schema.fingerprint(samples)
        _write(samples, output, root, mark, len(refused), counting.fingerprint if counting else "")
    added, changed, removed = _difference(before, old_root, samples, root)
    return BuildReport(
        len(samples),
        refused,
        mark,
        [text for one in lists for text in one.warnings],
        added,
        changed,
        removed,
        probed.known,
    )


def _probe(
    members: Sequence[Member],
    before: Sequence[Sample],
    old_root: str,
    journal: Journal,
    rebuild: bool,
    jobs: int | None,
    progress: Progress | None,
) -> Probed:
    known = Known(before, old_root)
    if rebuild:
        journal.forget()
    else:
        journal.read_into(known)
    return probe_all(members, known, journal, jobs, progress)


def _root(found: Sources, members: Sequence[Member]) -> str:
    """The folder below which all sources and all files that they name lie."""
    folders = {os.path.dirname(path) for path in {member.path for member in members}}
    return os.path.commonpath([*found.folders, *folders])


def _below(root: str, sample: Keyed, listing: Listing) -> Keyed:
    """A sample with paths below the root."""
    key, items = sample
    prefix = len(root) if root.endswith(os.sep) else len(root) + 1
    relative: tuple[Item, ...] = tuple(
        msgspec.structs.replace(item, path=item.path[prefix:]) for item in items
    )
    if listing.below_root:
        key = key[prefix:] or os.path.basename(root)  # of files that are one sample with their folder
    return key, relative


def _difference(
    before: Sequence[Sample], old_root: str, samples: Sequence[Keyed], root: str
) -> tuple[int, int, int]:
    """(added, changed, removed): samples by key, and which of that key; a moved root changes all."""
    if not before:
        return len(samples), 0, 0
    old: dict[tuple[str, int], tuple[Item, ...]] = {}
    seen: dict[str, int] = {}
    prefix = len(old_root) if old_root.endswith(os.sep) else len(old_root) + 1
    for sample in before:
        number = seen[sample.key] = seen.get(sample.key, -1) + 1
        old[sample.key, number] = sample.items
    seen.clear()
    added = changed = 0
    for key, items in samples:
        number = seen[key] = seen.get(key, -1) + 1
        was = old.pop((key, number), None)
        if was is None:
            added += 1
        elif root != old_root or [(i.path[prefix:], _told(i)) for i in was] != [
            (i.path, _told(i)) for i in items
        ]:
            changed += 1
    return added, changed, len(old)


def _told(item: Item) -> tuple[object, ...]:
    info = getattr(item, item.kind, None)
    return item.kind, item.name, item.offset, item.size, item.mtime_ns, info


def _write(samples: Sequence[Keyed], path: str, root: str, mark: str, refused: int, tokenizer: str) -> None:
    metadata = {
        schema.META_FORMAT: str(schema.FORMAT),
        schema.META_PROBING: schema.PROBING,
        schema.META_FINGERPRINT: mark,
        schema.META_ROOT: root,
        schema.META_REFUSED: json.dumps(refused),
        schema.META_TOKENIZER: tokenizer,
    }
    writing.write(schema.batch((schema.row(key, items) for key, items in samples), metadata), path)
