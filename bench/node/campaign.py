"""All runs of a benchmark, one after the other. What fails is written down, and the rest goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress

from bench.node.case import Case, Variant
from bench.node.measures import measures
from bench.node.prepare import Prepared, Shape, case_of, measured, prepare
from bench.node.recipe import Unpadded
from bench.node.records import Folder, Head, Point, Record
from bench.node.runs import Ranks
from bench.node.system import System, system
from bench.node.workloads import BY_NAME

RHOS = (0.6, 0.8, 0.9, 1.0, 1.2)
MICROS = 8
STORAGE_S = 0.010
TABLE_LOOKAHEAD = 3
_GIVEN_UP = 2
"""A system that has failed so often at a point is left out there."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run. own_data: (index, recipe, parameters) instead of workloads."""

    points: tuple[Point, ...]
    systems: tuple[str, ...]
    shape: Shape
    runs: int
    samples: int
    own_data: tuple[Path, str, tuple[str, ...]] | None = None

    @property
    def workloads(self) -> tuple[str, ...]:
        """Each once."""
        return tuple(dict.fromkeys(p.workload for p in self.points))


def point_list(
    workloads: Sequence[str], lookaheads: Sequence[int], tables: Sequence[str]
) -> tuple[Point, ...]:
    """The main table, workload by workload, then the separate ones."""
    found = [Point(table="main", workload=w, lookahead=n) for w in workloads for n in lookaheads]
    values = {"skew": (1.0,), "rho": RHOS, "micro": (float(MICROS),), "storage": (STORAGE_S,)}
    found += [
        Point(table=t, workload=w, lookahead=MICROS + 2 if t == "micro" else TABLE_LOOKAHEAD, value=v)
        for t in tables
        for v in values[t]
        for w in workloads
    ]
    return tuple(found)


def shape_at(shape: Shape, point: Point) -> Shape:
    """What a table changes."""
    change = msgspec.structs.replace
    match point.table:
        case "skew":
            return change(shape, skew=True)
        case "rho":
            return change(shape, rho=point.value)
        case "micro":
            return change(shape, micro_batches=int(point.value), steps=max(8, shape.steps // 4), warm_up=4)
        case "storage":
            return change(shape, storage_s=point.value)
    return shape


class Campaign:
    """Runs a plan; every result is in the folder as soon as it is there."""

    def __init__(
        self, plan: Plan, folder: Folder, head: Head, cache: Path, progress: Progress, console: Console
    ) -> None:
        self._plan, self._folder, self._head = plan, folder, head
        self._cache, self._progress, self._console = cache, progress, console
        self._systems = [system(name) for name in plan.systems if name not in head.skipped]
        self._prepared: dict[str, Prepared] = {}
        self._task = progress.add_task("runs", total=len(plan.points) * plan.runs * len(self._systems))

    def run(self) -> None:
        """All points. Ctrl-C ends it early, and says so in the folder."""
        with Ranks(self._plan.shape.ranks) as ranks:
            try:
                for point in self._plan.points:
                    self._point(point, ranks)
            except KeyboardInterrupt:
                self._folder.head(msgspec.structs.replace(self._head, stopped=True))

    def _point(self, point: Point, ranks: Ranks) -> None:
        try:
            case = case_of(self._prepare(point.workload), shape_at(self._plan.shape, point), point.lookahead)
        except Exception as e:  # noqa: BLE001 - encoders and pools may fail in any way; other workloads go on
            text = f"cannot be prepared: {type(e).__name__}: {e}"
            self._folder.add(Record(point=point, number=-1, system="", error=text))
            self._progress.advance(self._task, self._plan.runs * len(self._systems))
            return
        chosen = {one.name: self._choose(point, case, one, ranks) for one in self._systems}
        failed = dict.fromkeys(chosen, 0)
        for number in range(self._plan.runs):
            # Another order of the samples each time, the same for all systems.
            drawn = msgspec.structs.replace(case, seed=case.seed + number)
            # Back and forth, so that what drifts on the machine meets all alike.
            for one in self._systems if number % 2 == 0 else reversed(self._systems):
                variant = chosen[one.name]
                self._progress.advance(self._task)
                if variant is None or failed[one.name] >= _GIVEN_UP:
                    continue
                failed[one.name] += not self._measure(point, drawn, one, variant, ranks, number)

    def _measure(
        self, point: Point, case: Case, one: System, variant: Variant, ranks: Ranks, number: int
    ) -> float:
        """Samples/s of a run that is written down; 0 where it failed."""
        self._progress.update(
            self._task, description=f"{point.workload[:12]} {point.lookahead} {one.name[:8]}"
        )
        try:
            run = ranks.run(case, one, variant)
            found = measures(case, run).samples_per_s
        except Exception as e:  # noqa: BLE001 - a system may fail in any way; others go on
            text = f"{type(e).__name__}: {e}"
            self._folder.add(Record(point=point, number=number, system=one.name, case=case, error=text))
            return 0.0
        self._folder.add(Record(point=point, number=number, system=one.name, case=case, run=run))
        return found

    def _choose(self, point: Point, case: Case, one: System, ranks: Ranks) -> Variant | None:
        """The best setting, each tried in a run as long as those that count; None where none works."""
        variants = one.variants(case)
        if len(variants) == 1:
            return variants[0]
        rates = [self._measure(point, case, one, variant, ranks, -1) for variant in variants]
        return variants[rates.index(max(rates))] if max(rates) else None

    @property
    def _real(self) -> bool:
        return self._plan.shape.emulated_cores is None

    def _prepare(self, workload: str) -> Prepared:
        if workload not in self._prepared:
            if self._plan.own_data is not None:
                found = self._own()
            else:
                found = prepare(
                    BY_NAME[workload], self._plan.samples, self._cache, self._progress, anew=self._real
                )
            self._prepared[workload] = found
        return self._prepared[workload]

    def _own(self) -> Prepared:
        from libhelix.index.read import Index
        from libhelix.recipe import Pad, Rng
        from libhelix.recipes.rows import spec_of
        from libhelix.recipes.run import load_recipe
        from libhelix.wire.settings import RecipeSpec

        assert self._plan.own_data is not None, "asked for with it"
        index, name, params = self._plan.own_data
        module, _, qualname = name.partition(":")
        values = {k: _value(v) for k, _, v in (p.partition("=") for p in params)}
        recipe = load_recipe(RecipeSpec(module, qualname, msgspec.json.encode(values).decode()))
        first = recipe.describe(Index.open(index)[0], Rng(0, 0, 0))
        if any(isinstance(field.layout, Pad) for field in first.fields):
            recipe = Unpadded(spec_of(recipe))  # as the workloads: nobody is measured by its padding
        folder = self._cache / "bench" / "node-own"
        folder.mkdir(parents=True, exist_ok=True)
        return measured("own", index.absolute(), recipe, folder, self._progress, anew=self._real)


def _value(text: str) -> object:
    try:
        found: object = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return found
