"""Describing every sample of an index, on all cores; this module is also the program of those processes.

A question is a range of samples, an answer their columns.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import closing

import msgspec
import numpy as np

from libhelix.errors import HelixError, IndexProblem, RecipeError, TooManyBadSamples, from_code
from libhelix.index import crew
from libhelix.index.join import Joined
from libhelix.index.probing import Progress
from libhelix.index.read import Index
from libhelix.plan.rows import Known, learn_shapes, row_problem, same_schema
from libhelix.recipe import Recipe, nbytes
from libhelix.recipes.rows import FORMAT, UNDECLARED, Ints, Origin, Rows, spec_of
from libhelix.recipes.run import Loaded, describe_row, load_recipe
from libhelix.wire import messages as m
from libhelix.wire.layout import aligned, record_bytes
from libhelix.wire.settings import RecipeSpec

EPOCH = 0
COMPARED = 4096
"""Samples, evenly spread, that are described for another epoch too: do costs depend on random draws?"""
_SAMPLES_PER_QUESTION = 256
_SAMPLES_PER_PROCESS = 2000
"""A process takes 0.3 s to start, about what it takes to describe so many."""
_CODE = "from libhelix.recipes.describe import main; main()"

Range = tuple[int, int]


class Task(msgspec.Struct, frozen=True):
    """What a process is told when it starts. Every `compared`th sample is also described for another epoch,
    and under another number."""

    recipe: RecipeSpec
    index: str
    root: str
    fingerprint: str
    seed: int
    compared: int
    folder: str
    sys_path: tuple[str, ...]


class Columns(msgspec.Struct, frozen=True, array_like=True):
    """The rows of a range. `example` is one of them, with the schema of all; None where all failed.

    `drawn`: one is another in another epoch; `numbered`: under another number. `wrong` is (code, text) of
    an error that concerns the recipe.
    """

    costs: dict[str, list[int]] = {}
    groups: list[str] = []
    nbytes: list[int] = []
    decode_us: list[int] = []
    errors: dict[int, str] = {}
    schema: m.Schema = ()
    example: m.Row | None = None
    drawn: bool = False
    numbered: bool = False
    wrong: tuple[str, str] | None = None


# ---- the caller's side ---------------------------------------------------------------------------------


def describe_all(index: Index, recipe: Recipe, *, seed: int = 0, progress: Progress | None = None) -> Rows:
    """The rows of all samples, in epoch 0. Samples on which describe fails have an error instead.

    Raises RecipeError where the recipe breaks its contract, TooManyBadSamples where no sample succeeds.
    """
    n = len(index)
    spec = spec_of(recipe)
    task = Task(
        recipe=spec,
        index=os.path.abspath(index.path),
        root=index.root,
        fingerprint=index.fingerprint,
        seed=seed,
        compared=-(-n // COMPARED),
        folder=os.getcwd(),
        sys_path=tuple(sys.path),
    )
    found = _Gathered(spec, n)
    ranges = [(a, min(n, a + _SAMPLES_PER_QUESTION)) for a in range(0, n, _SAMPLES_PER_QUESTION)]
    alone: list[Range] = []
    for (first, stop), answer in _asked(task, ranges):
        if isinstance(answer, crew.Died):  # one of them kills: which, is found out one by one
            alone += [(i, i + 1) for i in range(first, stop)]
            continue
        found.put((first, stop), answer)
        if progress is not None:
            progress(found.done, n)
    for (number, stop), answer in _asked(task, alone):
        if isinstance(answer, crew.Died):
            answer = Columns(
                {}, [""], [0], [0], {0: f"{index[number].key}: describe ended its process ({answer.how})"}
            )
        found.put((number, stop), answer)
        if progress is not None:
            progress(found.done, n)
    if not found.schema:
        raise TooManyBadSamples(f"describe failed for all {n} samples; the first: {found.errors[0]}")
    origin = Origin(
        format=FORMAT,
        index=index.fingerprint,
        recipe=spec,
        seed=seed,
        epoch=EPOCH,
        drawn=found.drawn,
        numbered=found.numbered,
        record_bytes=record_bytes(found.schema),
        padded=any(
            spec.layout == "pad" or (spec.layout == "stack" and bool(found.errors)) for spec in found.schema
        ),
        counted=any(spec.counts for spec in found.schema),
    )
    groups = tuple(found.group_codes)
    errors = dict(sorted(found.errors.items()))
    return Rows(origin, found.costs, groups, found.group_of, found.nbytes, found.decode_us, errors)


def _asked(task: Task, ranges: Sequence[Range]) -> Generator[tuple[Range, Columns | crew.Died], None, None]:
    samples = sum(stop - first for first, stop in ranges)
    asking = crew.ask_all(
        [msgspec.json.encode(r) for r in ranges],
        code=_CODE,
        module=__name__,
        argument=msgspec.json.encode(task).decode(),
        processes=min(crew.usable_cores(), -(-samples // _SAMPLES_PER_PROCESS)),
        failed=lambda text: RecipeError(f"the process that describes does not start {text}"),
    )
    with closing(asking):
        for at, answer in asking:
            if isinstance(answer, bytes):
                yield ranges[at], msgspec.msgpack.decode(base64.b64decode(answer), type=Columns)
            else:
                yield ranges[at], answer


class _Gathered:
    """Columns of all samples, filled range by range; and what must be alike in all of them."""

    def __init__(self, recipe: RecipeSpec, samples: int) -> None:
        self._recipe = recipe
        self._shapes: Known = {}
        self.done = 0
        self.costs: dict[str, Ints] = {}
        self.group_codes: dict[str, int] = {}
        self.group_of = np.zeros(samples, dtype=np.int32)
        self.nbytes: Ints = np.zeros(samples, dtype=np.int64)
        self.decode_us: Ints = np.zeros(samples, dtype=np.int64)
        self.errors: dict[int, str] = {}
        self.schema: m.Schema = ()
        self.drawn = self.numbered = False

    def put(self, where: Range, part: Columns) -> None:
        if part.wrong is not None:
            raise from_code(*part.wrong)
        if part.example is not None:
            self.schema = _alike(self._recipe, self.schema, part.schema, part.example, self._shapes)
        first, stop = where
        for name, column in part.costs.items():
            if name not in self.costs:
                self.costs[name] = np.full(len(self.nbytes), UNDECLARED, dtype=np.int64)
            self.costs[name][first:stop] = column
        codes = self.group_codes
        self.group_of[first:stop] = [codes.setdefault(group, len(codes)) for group in part.groups]
        self.nbytes[first:stop] = part.nbytes
        self.decode_us[first:stop] = part.decode_us
        self.errors.update((first + at, text) for at, text in part.errors.items())
        self.drawn = self.drawn or part.drawn
        self.numbered = self.numbered or part.numbered
        self.done += stop - first


def _alike(recipe: RecipeSpec, before: m.Schema, schema: m.Schema, row: m.Row, shapes: Known) -> m.Schema:
    """The schema. Raises RecipeError where samples differ in what they must not."""
    if before and not same_schema(schema, before):
        raise RecipeError(f"recipe {recipe}: fields {schema} in one sample, {before} in others")
    problem = learn_shapes(schema, row, shapes, by_group=True)
    if problem is not None:
        raise RecipeError(f"recipe {recipe}: {problem}")
    return schema


# ---- the process ---------------------------------------------------------------------------------------


def main() -> None:
    """Answer until the input ends."""
    answers = crew.answers_only()
    task = msgspec.json.decode(sys.argv[1], type=Task)
    process: _Process | None = None
    for line in sys.stdin.buffer:
        first, stop = msgspec.json.decode(line, type=Range)
        try:
            process = process or _Process(task)
            found = process.columns(first, stop)
        except HelixError as e:
            found = Columns(wrong=(e.code, str(e)))
        answers.write(base64.b64encode(msgspec.msgpack.encode(found)) + b"\n")
        answers.flush()


class _Process:
    """A recipe and an index, and what they have said so far."""

    def __init__(self, task: Task) -> None:
        os.chdir(task.folder)
        sys.path.extend(p for p in task.sys_path if p not in sys.path)
        recipe = load_recipe(task.recipe)
        index = Index.open(task.index, root=task.root)
        if index.fingerprint != task.fingerprint:
            raise IndexProblem(f"{index.path}: rebuilt meanwhile; describe it again")
        self._task = task
        # Twice, one after the other: each sample has another number too, as in a mixture.
        self._loaded = Loaded(recipe, task.recipe.qualname, Joined([index, index]), task.seed)
        self._samples = len(index)
        self._schema: m.Schema = ()
        self._shapes: Known = {}

    def columns(self, first: int, stop: int) -> Columns:
        """The columns of a range."""
        rows: list[m.Row] = []
        drawn = numbered = False
        for number in range(first, stop):
            row, schema = self._row(EPOCH, number)
            if number % self._task.compared == 0:
                drawn = drawn or _differ((row, schema), self._row(EPOCH + 1, number))
                twin = self._row(EPOCH, self._samples + number)
                numbered = numbered or _differ((row, schema), twin)
            rows.append(row)
        names = dict.fromkeys(name for row in rows for name in row.costs)
        return Columns(
            {name: [row.costs.get(name, UNDECLARED) for row in rows] for name in names},
            [row.group for row in rows],
            [sum(aligned(nbytes(f.dtype, s)) for f, s in zip(self._schema, row.shapes)) for row in rows],
            [sum(row.segment_us) for row in rows],
            {i: row.error for i, row in enumerate(rows) if row.error},
            self._schema,
            next((row for row in rows if not row.error), None),
            drawn,
            numbered,
        )

    def _row(self, epoch: int, number: int) -> tuple[m.Row, m.Schema]:
        row, schema = describe_row(self._loaded, epoch, number)
        if row.error:
            return row, schema
        if (problem := row_problem(schema, row)) is not None:
            raise RecipeError(f"recipe {self._task.recipe}: sample {number} {problem}")
        self._schema = _alike(self._task.recipe, self._schema, schema, row, self._shapes)
        return row, schema


def _differ(one: tuple[m.Row, m.Schema], other: tuple[m.Row, m.Schema]) -> bool:
    """Whether planning could tell two rows of a sample apart."""
    (a, a_schema), (b, b_schema) = one, other
    said = [(row.shapes, row.costs, row.group, bool(row.error)) for row in (a, b)]
    return said[0] != said[1] or not same_schema(a_schema, b_schema)


if __name__ == "__main__":
    main()
