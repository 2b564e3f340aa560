"""`bench node`: what is made of waits, and of many runs. Nothing is measured here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.machine import Circumstances, Machine
from bench.node.campaign import point_list, shape_at
from bench.node.case import Case, Emulation, Step, Trained, Window
from bench.node.measures import cpu_between, geometric, measures, quotient, reduction
from bench.node.prepare import Shape, window_of
from bench.node.records import Folder, Head, Point, Record
from bench.node.report import write
from bench.node.runs import Run
from bench.node.summary import OURS, summarise
from bench.node.watch import Memory, Taken, Watch
from bench.processes import NODE_MARK
from bench.results import BenchFailed
from libhelix.wire.settings import RecipeSpec

WARM_UP, STEPS = 2, 4


def a_case(*, emulated: Emulation | None = None, micro_batches: int = 1, lookahead: int = 3) -> Case:
    return Case(
        workload="made up",
        index="",
        recipe=RecipeSpec("a", "B", "{}"),
        rows="",
        samples=8,
        ranks=2,
        batch=2,
        micro_batches=micro_batches,
        cores=(0, 1),
        emulated=emulated,
        lookahead=lookahead,
        lookahead_bytes=lookahead * 100,
        level_bytes=50,
        window=Window(0.1, 0.0, 0.0),
        steps=STEPS,
        warm_up=WARM_UP,
        seed=0,
    )


def a_run(system: str = OURS, *, step_s: float = 1.0, late_s: float = 0.0) -> Run:
    """Two ranks: the second's windows are as long as a step less its wait, the first's half of that."""
    ranks = []
    for rank in range(2):
        steps = tuple(
            Step(
                asked_at_s=k * step_s,
                wait_s=late_s,
                window_s=(step_s - late_s) * (0.5 if rank == 0 else 1.0),
                done_at_s=(k + 1) * step_s,
                epoch=0,
                ids=(rank, 2 + rank),
                tokens=10,
                decode_s=0.25,
            )
            for k in range(WARM_UP + STEPS)
        )
        ranks.append(Trained(steps=steps, first_batch_s=0.5 + rank))
    taken = (Taken(0.0, 0.0), Taken(100.0, 50.0))
    return Run(
        system=system, variant="v", decode_processes=2, ranks=tuple(ranks), taken=taken,
        peak=Memory(2_000_000, 1_000_000),
    )  # fmt: skip


def test_a_run_is_measured_without_its_warm_up() -> None:
    found = measures(a_case(), a_run(late_s=0.2))
    assert found.samples_per_s == pytest.approx(4.0)
    assert found.tokens_per_s == pytest.approx(20.0)
    assert found.utilisation == pytest.approx(0.6)
    assert found.imbalance == pytest.approx(0.8 / 0.6)
    assert found.of_bound == pytest.approx(0.6)
    assert found.of_own_bound == pytest.approx(0.8)
    assert found.demand == pytest.approx(0.25 / 0.6)
    assert found.wait_p95_ms == pytest.approx(200)
    assert found.cpu_ms_per_sample == pytest.approx(125)
    assert found.overhead_ms_per_sample == pytest.approx(0.0)
    assert found.real_cores == pytest.approx(0.5)
    assert found.first_batch_s == 1.5


def test_cores_bound_a_run_whose_windows_are_short() -> None:
    run = a_run(late_s=0.9)
    assert measures(a_case(), run).of_bound == pytest.approx(0.25)


@pytest.mark.parametrize(("late_s", "misses"), [(0.009, 0.0), (0.011, 1.0)])
def test_a_wait_of_more_than_a_hundredth_of_the_median_step_is_a_miss(late_s: float, misses: float) -> None:
    found = measures(a_case(), a_run(late_s=late_s))
    assert (found.misses, found.step_misses) == (misses, misses)


def test_a_miss_at_a_fixed_window_does_not_depend_on_how_slow_a_system_is() -> None:
    # Half of each step is waiting, so that steps are twice as long as the windows of the slower rank.
    assert measures(a_case(), a_run(late_s=0.5)).fixed_misses == 1.0
    assert measures(a_case(), a_run(late_s=0.0)).fixed_misses == 0.0


def test_emulated_times_are_given_as_they_would_be_without_dilation() -> None:
    slow = measures(a_case(emulated=Emulation(cores=2, dilation=10.0)), a_run(late_s=0.2))
    assert slow.samples_per_s == pytest.approx(40.0)
    assert slow.wait_p95_ms == pytest.approx(20.0)
    assert slow.of_bound == pytest.approx(0.6)
    # None of the CPU time is decoding, and it is not stretched.
    assert slow.overhead_ms_per_sample == slow.cpu_ms_per_sample == pytest.approx(125)


def test_a_millisecond_of_the_undilated_wait_is_no_miss() -> None:
    emulation = Emulation(cores=2, dilation=100.0)
    # A step of 10 ms, and a wait of 0.9 ms or 1.1 ms: the limit is a millisecond, not a tenth of one.
    assert measures(a_case(emulated=emulation), a_run(late_s=0.09)).misses == 0.0
    assert measures(a_case(emulated=emulation), a_run(late_s=0.11)).misses == 1.0


def test_micro_batches_make_steps() -> None:
    found = measures(msgspec.structs.replace(a_case(micro_batches=2), warm_up=1), a_run())
    assert found.imbalance == pytest.approx(1 / 0.75)
    assert found.samples_per_s == pytest.approx(4.0)


def test_waits_of_micro_batches_are_one_wait_of_their_step() -> None:
    """6 ms each are no miss of a step of a second, together they are."""
    case = msgspec.structs.replace(a_case(micro_batches=2), warm_up=1)
    assert measures(case, a_run(step_s=0.5, late_s=0.004)).misses == 0.0
    found = measures(case, a_run(step_s=0.5, late_s=0.006))
    assert (found.misses, found.step_misses, found.fixed_misses) == (1.0, 1.0, 1.0)


def test_helixd_is_counted_apart_and_at_full_speed() -> None:
    run = msgspec.structs.replace(a_run(), daemon=(Taken(0.0, 0.0), Taken(100.0, 10.0)))
    found = measures(a_case(emulated=Emulation(cores=2, dilation=10.0)), run)
    assert found.helixd_cores == pytest.approx(1.0)
    assert found.node_cores == pytest.approx(5.0)


def test_cpu_time_that_falls_is_no_figure() -> None:
    run = msgspec.structs.replace(a_run(), taken=(Taken(0.0, 9.0), Taken(100.0, 0.0)))
    with pytest.raises(ValueError, match="lost sight of"):
        measures(a_case(), run)


def test_a_run_that_only_warmed_up_has_no_measures() -> None:
    with pytest.raises(ValueError, match="nothing to measure"):
        measures(msgspec.structs.replace(a_case(), warm_up=6), a_run())


def test_cpu_time_is_taken_between_readings() -> None:
    taken = (Taken(0.0, 1.0), Taken(2.0, 3.0), Taken(4.0, 3.0))
    assert cpu_between(taken, 1.0, 3.0) == pytest.approx(1.0)
    assert cpu_between(taken, 3.0, 9.0) == pytest.approx(0.0)


def test_quotients_are_of_the_same_repetition() -> None:
    assert quotient({0: 10, 1: 1, 2: 4}, {0: 5, 1: 0.5, 2: 2}) == 2.0
    assert quotient({1: 1, 2: 4}, {0: 9, 1: 1, 2: 4}) == 1.0, "the first of ours failed"
    assert quotient({0: 1}, {1: 1}) is None
    assert geometric([1, 4]) == pytest.approx(2.0)
    assert reduction([1, 0], [5, 5]) == pytest.approx(0.9)


def test_windows_have_the_mean_that_was_asked_for() -> None:
    tokens = (1, 10, 100)
    window = window_of(tokens, batch=4, mean_s=2.0)
    mean_s = sum(window.seconds([a, b, c, d]) for a in tokens for b in tokens for c in tokens for d in tokens)
    assert mean_s / 81 == pytest.approx(2.0)


def test_emulated_decoding_makes_up_for_shorter_files_but_opens_them_once() -> None:
    emulation = Emulation(cores=4, dilation=3.0, scale=10.0)
    assert emulation.full_us(1, 102_300) == pytest.approx(2_300 + 1_000_000)
    dear = msgspec.structs.replace(emulation, dear=4)
    assert dear.full_us(4, 102_300) == pytest.approx(3 * dear.full_us(5, 102_300))


def test_tables_change_one_thing_each() -> None:
    points = point_list(("omni",), (3, 8), ("skew", "rho", "micro", "storage"))
    assert [p.lookahead for p in points if p.table == "main"] == [3, 8]
    shape = Shape(
        ranks=8, batch=4, micro_batches=1, cores=(0,), emulated_cores=32, window_s=0.1, rho=0.9, steps=32,
        warm_up=16, seed=0,
    )  # fmt: skip
    changed = {p.table: shape_at(shape, p) for p in points}
    assert changed["main"] == shape
    assert changed["skew"].skew
    assert changed["rho"].rho == 1.2
    assert changed["micro"].micro_batches == 8
    assert changed["storage"].storage_s == pytest.approx(0.01)


def a_head(**changes: object) -> Head:
    machine = Machine("a cpu", 2, 2, 1 << 30, "linux", "x86_64")
    found = Circumstances(machine=machine, cores_busy=0.0, versions={}, git_revision=None)
    head = Head(
        tier="emulated",
        circumstances=found,
        settings={},
        systems={OURS: "DataHelix", "dataloader": "DataLoader", "ray": "Ray"},
        workloads={"omni": "omni mixture", "pairs": "image-text pairs"},
        skipped={"ray": "it is not installed"},
    )
    return msgspec.structs.replace(head, **changes)


def some_records() -> list[Record]:
    found = []
    for workload, slower in (("omni", 4.0), ("pairs", 1.0)):
        for lookahead in (3, 8):
            point = Point(table="main", workload=workload, lookahead=lookahead)
            case = a_case(lookahead=lookahead)
            for number, drift in enumerate((1.0, 3.0)):
                late_s = 0.2 * drift * slower
                runs = [a_run(step_s=drift), a_run("dataloader", step_s=drift * slower, late_s=late_s)]
                found += [
                    Record(point=point, number=number, system=run.system, case=case, run=run) for run in runs
                ]
            # One in which a setting was tried does not count.
            tried = a_run("dataloader", step_s=0.001)
            found.append(Record(point=point, number=-1, system="dataloader", case=case, run=tried))
    failed = Point(table="main", workload="omni", lookahead=3)
    return [*found, Record(point=failed, number=0, system="ray", error="BenchFailed: it hangs\nsomewhere")]


def test_systems_are_compared_over_all_workloads() -> None:
    found = summarise(a_head(), some_records())
    assert found.summary["speedup_over_dataloader_at_3"] == pytest.approx(2.0)
    assert found.summary["least_speedup_over_dataloader_at_3"] == pytest.approx(1.0)
    assert found.summary["less_wait_p95_ms_than_dataloader_at_8"] == pytest.approx(1.0)
    assert found.summary["less_misses_than_dataloader_at_8"] == pytest.approx(1.0)
    assert [f.system for f in found.failures] == ["ray"]
    cell = next(c for c in found.cells if c.system == "dataloader" and c.point.workload == "omni")
    assert cell.runs == 2
    assert cell.ratio == pytest.approx(4.0)


def test_a_report_is_made_of_the_raw_waits_alone(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.begin(a_head())
    for record in some_records():
        folder.add(record)
    first = write(folder)
    made = (tmp_path / "report.md").read_text()
    for name in ("results.json", "report.md"):
        (tmp_path / name).unlink()
    again = write(folder)
    assert msgspec.json.encode(again) == msgspec.json.encode(first)
    assert (tmp_path / "report.md").read_text() == made
    assert "Skipped: ray, it is not installed" in made
    assert "omni, 3 batches, ray: BenchFailed: it hangs somewhere" in made
    rows = [line for line in made.splitlines() if line.startswith(("| DataHelix", "| DataLoader"))]
    assert rows
    assert all("emulated" in row for row in rows)


def test_a_run_that_cannot_be_read_is_one_that_failed(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.begin(a_head())
    for record in some_records():
        folder.add(record)
    (tmp_path / "raw" / "0000.json").write_text('{"schema":')
    write(folder)
    assert "0000.json cannot be read" in (tmp_path / "report.md").read_text()


def test_the_report_says_where_others_are_ahead(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.begin(a_head())
    point = Point(table="main", workload="omni", lookahead=3)
    for run in (a_run(late_s=0.2), a_run("dataloader", step_s=0.5)):
        busy = msgspec.structs.replace(run, daemon=(Taken(0.0, 0.0), Taken(100.0, 200.0)))
        folder.add(Record(point=point, number=0, system=run.system, case=a_case(), run=busy))
    write(folder)
    made = (tmp_path / "report.md").read_text()
    assert "DataHelix has 0.50 times the samples/s of DataLoader" in made
    assert "wait_p95_ms: 200.0 ms, DataLoader 0.0 ms" in made
    assert "helixd would need 2.0 cores" in made
    assert "here are 1" in made


def test_shared_memory_that_nobody_has_touched_is_seen() -> None:
    """As a batch that a rank holds and does not read."""
    mark = f"test-{os.getpid()}"
    code = (
        "import os, mmap; f = os.memfd_create('x'); os.write(f, bytes(1 << 22)); print(flush=True); input()"
    )
    env = {**os.environ, NODE_MARK: mark}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as held:
        assert held.stdout is not None
        held.stdout.readline()
        found = Watch(mark)._shared()
        held.communicate(b"\n", timeout=10)
    assert found == 1 << 22


def test_results_are_not_written_over_those_of_another_run(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.begin(a_head())
    with pytest.raises(BenchFailed, match="choose another --out"):
        folder.begin(a_head())


def test_a_folder_that_holds_no_results_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(BenchFailed, match="no raw results"):
        write(Folder(tmp_path))
