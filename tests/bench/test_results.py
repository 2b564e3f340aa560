"""What all commands have in common: targets, JSON, exit codes."""

from __future__ import annotations

import math
import signal
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from bench.machine import Circumstances, this_machine
from bench.results import (
    BenchFailed,
    Results,
    Target,
    conclude,
    console_for,
    failures_shown,
    load_notes,
    result_options,
    verdicts,
)
from bench.stats import median, percentile

TARGETS = (Target("share", ">=", 0.95), Target("wait_ms", "<", 1.0), Target("start_s", "<=", 1.5))


def circumstances(cores_busy: float = 0.0) -> Circumstances:
    return Circumstances(machine=this_machine(), cores_busy=cores_busy, versions={}, git_revision=None)


def results(**figures: float) -> Results:
    return Results(
        command="toy", figures=figures, targets=TARGETS, circumstances=circumstances(), settings={"n": 1}
    )


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> click.Command:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the handler would outlive the test

    @click.command()
    @click.option("--share", type=float)
    @click.option("--fail", is_flag=True)
    @result_options
    def command(share: float | None, fail: bool, json_to: Path | None, check: bool) -> None:
        console = console_for(json_to)
        with failures_shown("toy", console):
            if fail:
                raise BenchFailed("no luck")
            if share is None:
                raise KeyboardInterrupt
            found = results(share=share, wait_ms=0.5, start_s=1.5)
            conclude(found, "", console, json_to=json_to, check=check)

    return command


def run(command: click.Command, *arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


@pytest.mark.parametrize(
    ("figure", "value", "met"),
    [("share", 0.95, True), ("share", 0.94, False), ("wait_ms", 1.0, False), ("start_s", 1.5, True)],
)
def test_a_bound_says_whether_it_is_met(figure: str, value: float, met: bool) -> None:
    (verdict,) = verdicts({figure: value}, [t for t in TARGETS if t.figure == figure])
    assert verdict.met is met


def test_what_was_not_measured_is_not_met() -> None:
    assert [v.met for v in verdicts({"share": math.nan, "start_s": 1.0}, TARGETS)] == [False, False, True]


def test_check_prints_every_target_and_exits_with_0_where_all_are_met(toy: click.Command) -> None:
    shown = run(toy, "--share", "0.96", "--check")
    assert shown.exit_code == 0
    assert all(t.figure in shown.output for t in TARGETS)
    assert "missed" not in shown.output


def test_a_missed_target_is_exit_code_1_only_with_check(toy: click.Command) -> None:
    assert run(toy, "--share", "0.5").exit_code == 0
    shown = run(toy, "--share", "0.5", "--check")
    assert shown.exit_code == 1
    assert "1 of 3 targets missed" in shown.output


def test_json_goes_to_a_new_folder_and_holds_what_was_measured_even_if_missed(
    toy: click.Command, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "toy.json"
    assert run(toy, "--share", "0.5", "--check", "--json", str(path)).exit_code == 1
    assert msgspec.json.decode(path.read_bytes(), type=Results) == results(
        share=0.5, wait_ms=0.5, start_s=1.5
    )


def test_json_on_stdout_is_alone_there(toy: click.Command) -> None:
    shown = run(toy, "--share", "0.5", "--check", "--json", "-")
    assert msgspec.json.decode(shown.stdout, type=Results).figures["share"] == 0.5
    assert "targets missed" in shown.stderr


def test_failures_are_a_line_and_exit_code_1_and_interrupts_130(toy: click.Command) -> None:
    failed = run(toy, "--fail")
    assert (failed.exit_code, failed.output) == (1, "toy failed: no luck\n")
    assert run(toy).exit_code == 130


def test_a_busy_machine_is_noted() -> None:
    assert load_notes(circumstances(0.0)) == ()
    assert "1.5 cores busy" in load_notes(circumstances(1.5))[0]


def test_percentiles_are_linear_between_neighbours() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([0.0, 10.0], 0.95) == pytest.approx(9.5)
    assert percentile([7.0], 0.95) == 7.0
    assert math.isnan(percentile([], 0.5))
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
