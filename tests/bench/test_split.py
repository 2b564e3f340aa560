"""`bench split` on a short clip: that parts are shared out and pixels are the same, not how fast it is."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bench.split.command import SplitSettings, run
from bench.split.recipe import DecodedPart, busiest_cpu_s, take_notes
from bench.split.report import Round, figures, table
from bench.split.requests import Waited
from tests.bench.test_handoff import marked_by_us


def rounds(*, digest: str = "a") -> list[Round]:
    found = []
    for clip in ("parts", "whole"):
        for workers, times in (("one", (2.0, 2.2, 9.0)), ("two", (1.0, 1.1, 1.3))):
            for seconds in times:
                waited = Waited(
                    seconds=seconds, busiest_cpu_s=seconds, digest="a", parts=4, workers=2, threads=1
                )
                found.append(Round(clip=clip, workers=workers, waited=waited))
    found[-1] = msgspec.structs.replace(
        found[-1], waited=msgspec.structs.replace(found[-1].waited, digest=digest)
    )
    return found


def test_quotients_are_of_medians_and_of_the_best() -> None:
    found = figures(rounds())
    assert found["parts_two_to_one"] == pytest.approx(0.5)
    assert found["parts_two_to_one_min"] == pytest.approx(0.5)
    assert found["whole_two_s"] == pytest.approx(1.1)
    assert found["identical"] == 1.0


def test_one_other_pixel_is_seen() -> None:
    assert figures(rounds(digest="b"))["identical"] == 0.0


def test_the_busiest_worker_counts_with_all_its_parts(tmp_path: Path) -> None:
    parts = [DecodedPart(1, 0, 2, 1, 0.3), DecodedPart(2, 2, 4, 1, 0.4), DecodedPart(1, 4, 6, 1, 0.2)]
    assert busiest_cpu_s(parts) == pytest.approx(0.5)
    assert busiest_cpu_s([]) == 0.0
    (tmp_path / "1.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(parts))
    assert take_notes(tmp_path) == parts
    assert take_notes(tmp_path) == []


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_short_run_on_both_clips(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    settings = SplitSettings(
        rounds=1, cores=(cores[0], cores[1]), frames=24, size=(48, 64), parts_s=20, whole_s=6, gop_s=1
    )
    results = run(settings, tmp_path, Console(quiet=True))
    assert {t.figure for t in results.targets} <= set(results.figures)
    assert results.figures["identical"] == 1.0
    assert results.figures["parts_two_parts"] > results.figures["parts_one_workers"] == 1
    assert results.figures["whole_two_parts"] == 1
    assert table(results).row_count == 2
    assert not marked_by_us()
