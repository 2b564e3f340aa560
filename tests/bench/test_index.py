"""`bench index` on small numbers: what is compared, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from bench.index.command import IndexSettings, run
from bench.index.files import make_tree, prepare_images
from bench.index.measure import HEADERS, SCAN, Built, Probed
from bench.index.report import AGAIN, KINDS, NEW, TARGETS, figures, table


def probed(kind: str, side: str, cpu_s: float) -> Probed:
    return Probed(kind, side, files=100, cpu_s=cpu_s, wall_s=9.0)


def test_rates_are_medians_of_cpu_time() -> None:
    rounds = [probed("video", HEADERS, s) for s in (0.1, 0.2, 5.0)] + [probed("video", SCAN, 2.0)]
    found = figures(rounds, [])
    assert found["video_headers_per_core_s"] == pytest.approx(500)
    assert found["video_headers_to_scan"] == pytest.approx(10)
    assert "image_headers_per_core_s" not in found


def test_a_new_tree_is_told_by_cpu_time_and_an_unchanged_one_by_the_clock() -> None:
    found = figures([], [Built(NEW, 1000, cpu_s=0.5, wall_s=2.0), Built(AGAIN, 1000, cpu_s=0.1, wall_s=1.5)])
    assert found["images_indexed_per_core_s"] == pytest.approx(2000)
    assert found["reindex_s"] == 1.5


def test_a_tree_is_many_names_of_a_few_files(tmp_path: Path) -> None:
    images = prepare_images(tmp_path / "images")
    names = [p for p in make_tree(tmp_path / "tree", images, 1100).rglob("*") if p.is_file()]
    assert len(names) == 1100
    assert {p.stat().st_ino for p in names} == {p.stat().st_ino for p in images}


def test_a_tiny_run_measures_every_target(tmp_path: Path) -> None:
    settings = IndexSettings(rounds=1, seconds=0.01, files=40, clips=2, longest_s=1.0)
    results = run(settings, tmp_path, Console(quiet=True))
    assert {t.figure for t in TARGETS} <= results.figures.keys()
    assert {(r.kind, r.side) for r in results.rounds} == {(k, s) for k in KINDS for s in (HEADERS, SCAN)} - {
        ("image", SCAN)
    }
    assert [b.name for b in results.built] == [NEW, AGAIN]
    assert table(results.figures).row_count == len(KINDS) + 2
