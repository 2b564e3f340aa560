"""Decoding all samples of an index, or some, on all cores; this module is also the program of the processes.

A question is a few samples' numbers, an answer what was found. What kills a process costs one sample.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing

import msgspec

from libhelix.errors import IndexProblem
from libhelix.index import crew
from libhelix.index.probing import Progress
from libhelix.index.read import Index
from libhelix.media.finding import Finding
from libhelix.recipe import Item

_CODE = "from libhelix.index.lint import main; main()"
_TIMEOUT_S = 3600.0
"""Of one film, decoded whole."""
_SAMPLES_PER_QUESTION = 16
_SAMPLES_PER_PROCESS = 8


class Task(msgspec.Struct, frozen=True):
    """What a process is told when it starts."""

    index: str
    root: str


class Note(msgspec.Struct, frozen=True):
    """What was found of an item: `grade` is "broken", "odd" or "slow"."""

    sample: int
    key: str
    item: str
    path: str
    grade: str
    text: str


class Looked(msgspec.Struct):
    """What a process says of some samples. `skipped` counts items of kinds that are not looked into."""

    notes: list[Note] = []
    items: int = 0
    skipped: dict[str, int] = {}


class Result(msgspec.Struct):
    """What was found in so many samples, of `of` that there are; `seed`: what drew them, None for all."""

    samples: int
    of: int
    seed: int | None
    items: int
    skipped: dict[str, int]
    notes: list[Note]


def chosen(index: Index, count: int, seed: int = 0) -> list[int]:
    """Numbers of so many samples: always the same ones of an index and a seed."""
    n = len(index)
    if count >= n:
        return list(range(n))
    return sorted(random.Random(f"{index.fingerprint} {seed}").sample(range(n), max(1, count)))


def lint(
    index: Index,
    count: int | None = None,
    *,
    seed: int = 0,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Decode so many samples completely, all by default. Raises IndexProblem where processes do not start."""
    numbers = chosen(index, len(index) if count is None else count, seed)
    result = lint_samples(index, numbers, jobs=jobs, progress=progress)
    result.seed = seed if len(numbers) < len(index) else None
    return result


def lint_samples(
    index: Index, numbers: Sequence[int], *, jobs: int | None = None, progress: Progress | None = None
) -> Result:
    """Decode these samples, at least one, completely. Raises IndexProblem."""
    processes = jobs or min(crew.usable_cores(), -(-len(numbers) // _SAMPLES_PER_PROCESS))
    step = max(1, min(_SAMPLES_PER_QUESTION, len(numbers) // (8 * processes)))
    result = Result(len(numbers), len(index), None, 0, {}, [])
    done = 0
    alone: list[Sequence[int]] = []
    for some, looked in _asked(
        index, [numbers[i : i + step] for i in range(0, len(numbers), step)], processes
    ):
        if isinstance(looked, crew.Died) and len(some) > 1:
            alone += [[number] for number in some]
            continue
        done = _add(result, index, some, looked, done, progress)
    for some, looked in _asked(index, alone, processes):
        done = _add(result, index, some, looked, done, progress)
    result.notes.sort(key=lambda note: (("broken", "odd", "slow").index(note.grade), note.sample))
    return result


def _add(
    result: Result,
    index: Index,
    some: Sequence[int],
    looked: Looked | crew.Died,
    done: int,
    progress: Progress | None,
) -> int:
    if isinstance(looked, crew.Died):
        sample = index[some[0]]
        text = f"decoding it ended the process ({looked.how}); leave it out"
        looked = Looked([Note(sample.id, sample.key, "", sample.items[0].path, "broken", text)])
    result.notes += looked.notes
    result.items += looked.items
    for kind, n in looked.skipped.items():
        result.skipped[kind] = result.skipped.get(kind, 0) + n
    done += len(some)
    if progress is not None:
        progress(done, result.samples)
    return done


def _asked(
    index: Index, questions: Sequence[Sequence[int]], processes: int
) -> Iterator[tuple[Sequence[int], Looked | crew.Died]]:
    asking = crew.ask_all(
        [msgspec.json.encode(question) for question in questions],
        code=_CODE,
        module=__name__,
        argument=msgspec.json.encode(Task(os.path.abspath(index.path), index.root)).decode(),
        processes=processes,
        failed=lambda text: IndexProblem(f"the process that decodes does not start {text}"),
        timeout_s=_TIMEOUT_S,
    )
    with closing(asking):
        for at, answer in asking:
            if isinstance(answer, crew.Died):
                yield questions[at], answer
            else:
                yield questions[at], msgspec.json.decode(answer, type=Looked)


def look(index: Index, number: int, into: Looked) -> None:
    """Decode one sample."""
    from libhelix.media.examine import between, examine

    sample = index[number]

    def note(item: Item, found: Finding) -> None:
        label = f"{item.kind} {item.name}".strip()
        into.notes.append(Note(number, sample.key, label, item.path, found.grade, found.text))

    for item in sample.items:
        try:
            findings = examine(item)
        except Exception as e:  # noqa: BLE001  # what is unforeseen concerns this one, not all after it
            findings = [Finding("broken", f"looking at it failed with {type(e).__name__}: {e}; leave it out")]
        if findings is None:
            into.skipped[item.kind] = into.skipped.get(item.kind, 0) + 1
            continue
        into.items += 1
        for found in findings:
            note(item, found)
    for item, found in between(sample.items):
        note(item, found)


def main() -> None:
    """Answer until the input ends."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    index = Index.open(task.index, root=task.root)
    answers = crew.answers_only()
    for line in sys.stdin.buffer:
        looked = Looked()
        for number in msgspec.json.decode(line, type=list[int]):
            look(index, number, looked)
        answers.write(msgspec.json.encode(looked) + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
