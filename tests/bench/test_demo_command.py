"""What the command prints, writes and exits with; the run itself is a stand-in here."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from bench.__main__ import main
from bench.ceiling import Ceiling
from bench.demo import command, report
from bench.demo.recipe import LabelledClip
from bench.demo.records import DataLoaderSettings, TrainSettings, Window
from bench.demo.stats import figures
from bench.machine import Circumstances, this_machine, versions
from bench.results import BenchFailed
from tests.bench.test_demo_stats import record

CIRCUMSTANCES = Circumstances(machine=this_machine(), cores_busy=0.0, versions=versions(), git_revision=None)


def results(
    *, last_loss: float = 0.5, cpu_s: float = 2.0, masked: int = 0, compared: bool = False
) -> report.DemoResults:
    steps = [
        record(r, s, loss=1.0 if s < 5 else last_loss, masked=masked) for r in range(2) for s in range(10)
    ]
    run, ceiling = figures(steps), Ceiling(samples=50, cores=2, wall_s=1.0, cpu_s=cpu_s)
    ours = report.run_figures(run, 0.05)
    named = ours | report.bound_figures(run, ceiling)
    if compared:
        named |= report.compared_figures(ours, ours | {"samples_per_s": 12.5})
    return report.DemoResults(
        command="demo",
        figures=named,
        targets=report.TARGETS,
        limit=report.limited_by(named),
        circumstances=CIRCUMSTANCES,
        settings=TrainSettings(
            index="/x", recipe=LabelledClip(), window=Window(0.1, 0.0), classes=5, steps=10, batch=2, seed=0
        ),
        data_loader=DataLoaderSettings(workers=1, prefetch=2) if compared else None,
        demand=0.8,
        data_version="1",
        data_notes=(),
        notes=report.doubts(named),
    )


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Runs the command with this outcome instead of a run."""

    def run(outcome: report.DemoResults | Exception, *arguments: str) -> Result:
        def stand_in(*_: object) -> report.DemoResults:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(command, "run_demo", stand_in)
        monkeypatch.setattr(signal, "signal", lambda *_: None)  # the handler would outlive the test
        return CliRunner().invoke(main, ["demo", "--out", str(tmp_path), *arguments])

    return run


def test_the_table_says_what_limits_the_run(demo: Callable[..., Result]) -> None:
    shown = demo(results())
    assert shown.exit_code == 0
    for word in (
        "samples/s",
        "input wait p95",
        "misses",
        "accelerator bound",
        "decode bound",
        "of the lower one: the",
    ):
        assert word in shown.output
    assert "note:" not in shown.output


def test_both_loaders_are_in_one_table(demo: Callable[..., Result]) -> None:
    shown = demo(results(compared=True)).output
    assert [line for line in shown.splitlines() if "samples/s" in line and "40.0" in line and "12.5" in line]
    assert "DataLoader" in shown
    assert "DataLoader" not in demo(results()).output


def test_more_ranks_than_cores_is_said_plainly() -> None:
    tuned = DataLoaderSettings(workers=1, prefetch=2)
    text = report.workers_caption(tuned, ranks=4, cores=2)
    assert "1 persistent worker a rank" in text
    assert "4 decode processes for 2 cores, DataHelix 2" in text
    assert "decode processes" not in report.workers_caption(tuned, ranks=2, cores=2)


def test_json_on_stdout_is_alone_there(demo: Callable[..., Result]) -> None:
    shown = demo(results(), "--json", "-")
    read = msgspec.json.decode(shown.stdout, type=report.DemoResults)
    assert read == results()
    assert read.figures["samples_per_s"] == pytest.approx(40.0)
    assert "DataHelix demo" in shown.stderr


def test_json_into_a_file(demo: Callable[..., Result], tmp_path: Path) -> None:
    assert demo(results(), "--json", str(tmp_path / "copy.json")).exit_code == 0
    assert msgspec.json.decode((tmp_path / "copy.json").read_bytes(), type=report.DemoResults) == results()


def test_a_loss_that_does_not_fall_is_exit_code_1(demo: Callable[..., Result]) -> None:
    shown = demo(results(last_loss=1.0))
    assert shown.exit_code == 1
    assert "the loss did not fall" in shown.output


def test_a_failed_rank_is_exit_code_1_and_says_why(demo: Callable[..., Result]) -> None:
    shown = demo(BenchFailed("rank 2 was killed by SIGSEGV"))
    assert shown.exit_code == 1
    assert "demo failed: rank 2 was killed by SIGSEGV" in shown.output


def test_a_busy_machine_is_a_warning(demo: Callable[..., Result]) -> None:
    assert "note: the bare loops had only 50% of their cores" in demo(results(cpu_s=1.0)).output


def test_masked_samples_are_a_warning(demo: Callable[..., Result]) -> None:
    assert "20 samples could not be decoded" in demo(results(masked=1)).output


def test_bad_options_are_exit_code_2() -> None:
    assert CliRunner().invoke(main, ["demo", "--ranks", "0"]).exit_code == 2
    assert CliRunner().invoke(main, ["demo", "--decode-cores", "4096"]).exit_code == 2
    assert CliRunner().invoke(main, ["nothing"]).exit_code == 2


def test_help_names_the_commands() -> None:
    shown = CliRunner().invoke(main, ["--help"])
    assert shown.exit_code == 0
    assert "demo" in shown.output
