"""`bench costs` on small numbers: what is decoded, what is predicted before it, and what counts."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bench.clips import encodable
from bench.costs.clips import CRFS, GOPS, clips_of
from bench.costs.command import CostSettings, run
from bench.costs.measure import PartCost
from bench.costs.report import TARGETS, figures, table
from helixd.core.decode_cost import DecodeCosts


def test_clips_are_the_same_at_every_call_and_differ_in_what_matters() -> None:
    clips = clips_of("h264", 15)
    assert clips == clips_of("h264", 15)
    assert {c.gop for c in clips} == set(GOPS)
    assert {c.crf for c in clips} == set(CRFS["h264"])
    assert len({(c.width, c.height) for c in clips}) == 5
    assert len({c.name for c in clips}) == 15
    assert {c.crf for c in clips_of("mpeg4", 5)} == {None}


def test_only_parts_after_learning_count() -> None:
    parts = [PartCost(0, 100, 100.0, 900), PartCost(1, 100, 110.0, 100)]
    parts += [PartCost(2, 100, 150.0, 200), PartCost(3, 100, 300.0, 300)]
    found = figures({"h264": parts}, learning=1)
    assert found["h264_parts"] == 3
    assert found["h264_mape"] == pytest.approx((0.1 + 0.25 + 0.0) / 3)
    assert found["h264_declared_mape"] == pytest.approx((0.0 + 0.5 + 2 / 3) / 3)
    assert found["h264_rank_correlation"] == pytest.approx(1.0)
    assert found["h264_of_declared"] == pytest.approx(2.0)


def test_parts_are_decoded_and_learned_from_one_after_the_other(tmp_path: Path) -> None:
    codec = encodable(("mpeg4", "h264"))[0]
    settings = CostSettings(codecs=(codec,), clips=2, tasks=6, learning=2)
    results = run(settings, tmp_path, Console(file=StringIO()))
    parts = results.parts[codec]
    assert sorted({p.task for p in parts}) == list(range(6))
    assert all(p.cpu_us > 0 and p.declared_us > 0 for p in parts)
    replayed = DecodeCosts()
    for part in parts:
        assert part.expected_us == pytest.approx(part.declared_us * replayed.scale(codec))
        replayed.learn(codec, part.declared_us, part.cpu_us)
    assert {t.figure for t in TARGETS if t.figure.startswith(codec)} <= results.figures.keys()
    assert table(results.figures, settings.codecs).row_count == 1
