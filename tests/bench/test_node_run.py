"""`bench node`: plans, decoding that sleeps, and tiny runs of real systems."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console
from rich.progress import Progress

import bench.node.campaign as campaign
from bench.clips import ClipPlan
from bench.node import emulate, plans
from bench.node.case import Case, read_rows
from bench.node.prepare import Prepared, Shape, case_of, prepare
from bench.node.recipe import Omni, loaded
from bench.node.records import Folder
from bench.node.runs import Ranks, Run
from bench.node.system import MODULES, System, system
from bench.node.workloads import WORKLOADS, Workload
from bench.samples import Visit, describe, read_samples
from bench.side import own_environment
from libhelix.recipe import OPENING_US, Descriptor, Part, Recipe, Rng, Sample
from libhelix.recipes import Clip
from libhelix.recipes.rows import spec_of
from libhelix.wire.settings import RecipeSpec
from tests.bench.test_handoff import marked_by_us
from tests.bench.test_node_measures import a_head

RANKS, BATCH, SAMPLES = 2, 2, 32


def tiny(n: int) -> list[ClipPlan]:
    """Short clips of many lengths, with places to cut."""
    return [ClipPlan(f"{i:03d}.mp4", "mpeg4", 64, 48, 8 + 5 * (i % 7), i % 4, i, gop=8) for i in range(n)]


WORKLOAD = Workload(
    number=0, name="tiny", title="tiny clips", distribution="", scale="", plans=tiny, emulated_scale=2.0,
    recipe=Clip(rate=24.0, max_frames=64, size=(32, 32), layout="pack"),
)  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def prepared(cache: Path) -> Prepared:
    with Progress(disable=True) as progress:
        return prepare(WORKLOAD, SAMPLES, cache, progress)


def a_shape(**changes: object) -> Shape:
    shape = Shape(
        ranks=RANKS,
        batch=BATCH,
        micro_batches=1,
        cores=tuple(sorted(os.sched_getaffinity(0)))[:2],
        emulated_cores=None,
        window_s=0.02,
        rho=0.9,
        steps=8,
        warm_up=8,
        seed=3,
    )
    return msgspec.structs.replace(shape, **changes)


# ---- plans ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [plans.slices, plans.length_grouped, plans.windows, plans.shard])
def test_every_plan_has_every_sample_once_in_an_epoch(prepared: Prepared, plan: object) -> None:
    case = case_of(prepared, a_shape(), 3)
    steps = SAMPLES // (RANKS * BATCH)
    seen: Counter[int] = Counter()
    for rank in range(RANKS):
        epoch = list(itertools.islice(plan(case, rank), steps))  # type: ignore[operator]
        assert {len(batch) for batch in epoch} == {BATCH}
        seen.update(v.sample for batch in epoch for v in batch)
    assert seen == Counter(range(SAMPLES))


def test_length_groups_are_more_alike_than_slices(prepared: Prepared) -> None:
    case = case_of(prepared, a_shape(), 3)
    tokens = read_rows(case.rows).tokens

    def spread(order: Iterator[plans.Batch]) -> float:
        return float(np.mean([np.ptp([tokens[v.sample] for v in b]) for b in itertools.islice(order, 8)]))

    assert spread(plans.length_grouped(case, 0)) < 0.5 * spread(plans.slices(case, 0))


def test_windows_make_the_ranks_of_a_step_alike(prepared: Prepared) -> None:
    case = case_of(prepared, a_shape(), 3)
    tokens = read_rows(case.rows).tokens

    def uneven(plan: object) -> float:
        columns = zip(*(itertools.islice(plan(case, rank), 8) for rank in range(RANKS)))  # type: ignore[operator]
        sums = [[sum(tokens[v.sample] for v in batch) for batch in column] for column in columns]
        return float(np.mean([max(s) / np.mean(s) for s in sums]))

    assert uneven(plans.windows) < 1.0 + 0.5 * (uneven(plans.slices) - 1.0)


def test_a_shard_belongs_to_one_rank(prepared: Prepared) -> None:
    case = case_of(prepared, a_shape(skew=True), 3)
    for rank in range(RANKS):
        batches = itertools.islice(plans.slices(case, rank), 20)
        assert {v.sample % RANKS for batch in batches for v in batch} == {rank}


# ---- emulated decoding ------------------------------------------------------------------------------------


def emulated(prepared: Prepared, **changes: object) -> tuple[Case, emulate.Emulated]:
    case = case_of(prepared, a_shape(emulated_cores=4, **changes), 3)
    recipe = loaded(case.recipe)
    assert isinstance(recipe, emulate.Emulated)
    return case, recipe


def test_a_sample_takes_as_long_whole_as_in_parts_but_for_opening_its_file(prepared: Prepared) -> None:
    case, recipe = emulated(prepared)
    samples = read_samples(Path(prepared.index))
    cut = 0
    for sample in samples:
        desc = describe(recipe, samples, Visit(sample.id, 0), 0)
        bounds = (0, *desc.cuts, desc.units)
        parts = [Part(a, b, desc.units) for a, b in itertools.pairwise(bounds)]
        whole_s = recipe.part_s(desc, Part(0, desc.units, desc.units))
        in_parts_s = sum(recipe.part_s(desc, part) for part in parts)
        opening_s = OPENING_US * 1e-6 * case.dilation
        assert in_parts_s == pytest.approx(whole_s + (len(parts) - 1) * opening_s)
        assert whole_s == pytest.approx(case.decode_s(sample.id, read_rows(case.rows).recorded_us[sample.id]))
        cut += len(parts) > 1
    assert cut, "some samples can be cut"


def test_describe_says_what_the_inner_recipe_does_and_the_oracle_what_it_takes(prepared: Prepared) -> None:
    case, recipe = emulated(prepared)
    samples = read_samples(Path(prepared.index))
    inner = describe(loaded(prepared.recipe), samples, Visit(5, 0), 0)
    told = describe(recipe, samples, Visit(5, 0), 0)
    assert (told.fields, told.cuts, told.costs) == (inner.fields, inner.cuts, inner.costs)
    assert case.emulated is not None
    stretched = case.emulated.full_us(5, sum(inner.segment_us)) * case.dilation
    assert sum(told.segment_us) == pytest.approx(stretched, rel=0.01)
    oracle = msgspec.structs.replace(recipe, oracle=True)
    knows = describe(oracle, samples, Visit(5, 0), 0)
    assert sum(knows.segment_us) * 1e-6 == pytest.approx(recipe.part_s(knows, Part(0, 99, 99)), rel=0.01)


def test_sleeping_counts_as_cpu_time_and_the_output_is_touched(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "thread_time", time.thread_time)  # put back afterwards
    _, recipe = emulated(prepared)
    samples = read_samples(Path(prepared.index))
    desc = describe(recipe, samples, Visit(5, 0), 0)
    out = {f.name: np.zeros(f.shape, f.dtype) for f in desc.fields}
    part = Part(0, desc.units, desc.units)
    before_s, began_s = time.thread_time(), time.monotonic()
    recipe.fill(samples[5], desc, part, out)
    assert time.monotonic() - began_s >= recipe.part_s(desc, part)
    assert time.thread_time() - before_s >= 0.9 * recipe.part_s(desc, part)
    assert all((array == 5).all() for array in out.values())


# ---- runs -------------------------------------------------------------------------------------------------


def visits(run: Run, case: Case) -> Counter[tuple[int, int]]:
    return Counter((s.epoch, i) for rank in run.ranks for s in rank.steps for i in s.ids)


def test_all_systems_see_the_same_samples_and_the_same_pixels(prepared: Prepared) -> None:
    case = case_of(prepared, a_shape(), 3)
    epochs = case.all_steps * RANKS * BATCH // SAMPLES
    seen: dict[str, dict[int, set[int]]] = {}
    with Ranks(RANKS) as ranks:
        for name in (
            "datahelix",
            "dataloader",
            "dataloader-samples",
            "dataloader-lengths",
            "dataloader-windows",
        ):
            one = system(name)
            run = ranks.run(case, one, one.variants(case)[0], checksums=True)
            assert visits(run, case) == Counter((e, i) for e in range(epochs) for i in range(SAMPLES))
            # A DataLoader has a worker a rank at least; beyond that nobody has more than cores.
            assert run.decode_processes == max(case.decoders, RANKS)
            assert bool(run.daemon) == (name == "datahelix")
            crcs = seen.setdefault(name, {})
            for step in (s for rank in run.ranks for s in rank.steps):
                for i, crc in zip(step.ids, step.crcs, strict=True):
                    crcs.setdefault(i, set()).add(crc)
    assert all(crcs == seen["datahelix"] for crcs in seen.values())
    assert all(len(crcs) == 1 for crcs in seen["datahelix"].values())
    assert len(set().union(*seen["datahelix"].values())) > SAMPLES // 2
    assert not marked_by_us()


@pytest.mark.parametrize("name", ["dataloader", "dataloader-samples"])
def test_batches_that_come_as_they_are_ready_are_of_the_same_samples(prepared: Prepared, name: str) -> None:
    case = case_of(prepared, a_shape(emulated_cores=8), 4)
    one = system(name)
    ready = [v for v in one.variants(case) if not v.options["in_order"]]
    assert ready
    with Ranks(RANKS) as ranks:
        run = ranks.run(case, one, ready[0], checksums=True)
    seen = visits(run, case)
    assert max(seen.values()) == 1, "a sample comes once an epoch"
    assert sum(seen.values()) == case.all_steps * RANKS * BATCH
    assert {len(step.ids) for rank in run.ranks for step in rank.steps} == {BATCH}


class Log(Recipe, frozen=True):
    """A recipe that writes down when a sample's decoding begins and ends."""

    inner: RecipeSpec
    path: str

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        return loaded(self.inner).describe(sample, rng)

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        with open(self.path, "a") as file:
            print(os.getpid(), time.monotonic(), "begin", file=file, flush=True)
        time.sleep(0.002)
        loaded(self.inner).fill(sample, desc, part, out)
        with open(self.path, "a") as file:
            print(os.getpid(), time.monotonic(), "end", file=file, flush=True)


@pytest.mark.parametrize("lookahead", [3, 4])
@pytest.mark.parametrize("name", ["datahelix", "dataloader", "dataloader-samples", "dataloader-windows"])
def test_nobody_decodes_more_than_the_look_ahead_nor_on_more_cores(
    prepared: Prepared, tmp_path: Path, name: str, lookahead: int
) -> None:
    """While ranks hold the first batch for ever, as many are decoded as may be ahead, and no more."""
    path = tmp_path / "log"
    case = case_of(prepared, a_shape(emulated_cores=8, steps=8, warm_up=8), lookahead)
    recipe = spec_of(Log(spec_of(loaded(case.recipe)), str(path)))
    slow = msgspec.structs.replace(case.window, fixed_s=2.0, per_token_s=0.0, per_square_s=0.0)
    case = msgspec.structs.replace(case, recipe=recipe, window=slow, steps=1, warm_up=1)
    one = system(name)
    splits = {(v.options.get("workers", 0), v.options.get("prefetch", 0)): v for v in one.variants(case)}
    for variant in splits.values():
        path.unlink(missing_ok=True)
        with Ranks(RANKS) as ranks:
            run = ranks.run(case, one, variant)
        held_s = max(rank.steps[0].asked_at_s + rank.steps[0].wait_s for rank in run.ranks) + 1.9
        lines = [line.split() for line in path.read_text().splitlines()]
        begun = [pid for pid, at, what in lines if what == "begin" and float(at) < held_s]
        most = variant.options.get("workers", 0) and int(variant.options["workers"]) * int(
            variant.options["prefetch"]
        ) // (BATCH if name == "dataloader-samples" else 1)
        ahead = most or lookahead - 1
        assert lookahead - 2 <= ahead <= lookahead
        assert len(begun) == RANKS * BATCH * (1 + ahead), (variant, len(begun))
        assert len(set(begun)) <= run.decode_processes


def test_emulated_cores_are_as_many_workers(prepared: Prepared) -> None:
    case = case_of(prepared, a_shape(emulated_cores=6), 3)
    counts, over = [0], threading.Event()

    def count() -> None:
        while not over.wait(0.1):
            names = [(folder / "comm") for folder in marked_by_us()]
            counts.append(sum(_read(name).startswith("helix-w") for name in names))

    counter = threading.Thread(target=count)
    counter.start()
    try:
        with Ranks(RANKS) as ranks:
            one = system("datahelix")
            run = ranks.run(case, one, one.variants(case)[0])
    finally:
        over.set()
        counter.join()
    assert max(counts) == run.decode_processes == 6
    assert all(len(rank.steps) == case.all_steps and not rank.error for rank in run.ranks)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # ended meanwhile


class Broken(System):
    name = "broken"
    title = "one that is not there"

    def missing(self) -> str | None:
        return "broken 1.0 is not installed: pip install broken"


def test_a_missing_system_is_skipped_and_a_failing_workload_does_not_stop_the_rest(
    prepared: Prepared, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(n: int) -> list[ClipPlan]:
        raise OSError("no room for clips")

    bad = msgspec.structs.replace(WORKLOAD, name="bad", plans=fails)
    monkeypatch.setattr(campaign, "BY_NAME", {"tiny": WORKLOAD, "bad": bad})
    monkeypatch.setitem(MODULES, "broken", "tests.bench.test_node_run:Broken")
    why = system("broken").missing()
    assert why is not None
    folder = Folder(tmp_path)
    head = a_head(skipped={"broken": why})
    folder.begin(head)
    plan = campaign.Plan(
        points=campaign.point_list(("bad", "tiny"), (3,), ()),
        systems=("broken", "datahelix"),
        shape=a_shape(steps=4),
        runs=1,
        samples=SAMPLES,
    )
    with Progress(disable=True) as progress:
        campaign.Campaign(plan, folder, head, cache, progress, Console(quiet=True)).run()
    _, records = folder.read()
    assert [(r.point.workload, r.system, bool(r.error)) for r in records] == [
        ("bad", "", True),
        ("tiny", "datahelix", False),
    ]
    assert "no room for clips" in records[0].error


def test_ctrl_c_leaves_no_process_and_writes_what_was_measured(cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["-m", "bench", "node", "--workloads", "pairs", "--samples", "64", "--systems", "datahelix"]
    options = ["--runs", "50", "--steps", "8", "--ranks", "2", "--cores", "2", "--window-ms", "20"]
    process = subprocess.Popen(
        [sys.executable, *command, *options, "--cache", str(cache), "--out", str(out)],
        env=os.environ | own_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        until = time.monotonic() + 60
        while not list(out.glob("raw/0000.json")):
            assert process.poll() is None and time.monotonic() < until, "the first run ends"  # noqa: PT018
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130, output.decode()
    assert "Stopped before its end" in (out / "report.md").read_text()
    assert (out / "results.json").exists()
    entry = f"HELIX_BENCH_SIDE={process.pid}-".encode()
    left = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            left += [environ] if entry in environ.read_bytes() else []
        except OSError:
            continue
    assert not left


# ---- workloads --------------------------------------------------------------------------------------------


def test_there_are_eleven_workloads_whose_files_are_the_same_at_every_call() -> None:
    assert [w.number for w in WORKLOADS] == list(range(1, 12))
    assert [w.name for w in WORKLOADS if w.control] == ["uniform", "pairs"]
    for workload in WORKLOADS:
        made = workload.plans(40)
        assert made == workload.plans(40)
        names = [plan.name for plan in made]
        assert len(set(names)) == len(names)
        if workload.folders:
            assert len({name.split("/")[0] for name in names}) == 40
    codecs = {p.codec for p in WORKLOADS[5].plans(40) if isinstance(p, ClipPlan)}
    assert codecs == {"h264", "hevc", "vp9", "av1"}


def test_a_sample_of_several_items_fills_all_fields(cache: Path) -> None:
    workload = next(w for w in WORKLOADS if w.name == "omni")
    with Progress(disable=True) as progress:
        prepared = prepare(workload, 20, cache, progress)
    recipe = loaded(prepared.recipe)
    assert isinstance(recipe, Omni)
    samples = read_samples(Path(prepared.index))
    filled: Counter[str] = Counter()
    for sample in samples:
        desc = describe(recipe, samples, Visit(sample.id, 0), 0)
        out = {f.name: np.zeros(f.shape, f.dtype) for f in desc.fields}
        recipe.fill(sample, desc, Part(0, desc.units, desc.units), out)
        filled.update(name for name, array in out.items() if array.any())
    assert set(filled) == {"video", "pixels", "audio"}
    assert len(samples) == 20
