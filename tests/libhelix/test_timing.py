"""What libhelix says of a trainer's time, and keeps of what decoding costs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from libhelix.learned import keep_scales, kept_scales
from libhelix.timing import WindowClock
from libhelix.wire.settings import Position

AT = Position(0, 0, 0)


def test_the_window_is_from_one_batch_to_the_next_question() -> None:
    clock = WindowClock()
    first = clock.taking(AT, time.monotonic() - 0.5)
    assert (first.window_us, first.computing) == (0, False)
    assert 500_000 <= first.wait_us < 600_000
    second = clock.taking(AT, time.monotonic() + 2.0)
    assert 1_900_000 < second.window_us <= 2_100_000


def test_nested_computing_is_counted_once_and_several_add_up() -> None:
    clock = WindowClock()
    clock.taking(AT, time.monotonic())
    began = time.monotonic()
    for _ in range(2):
        with clock.computing(), clock.computing():
            time.sleep(0.02)
    most_us = (time.monotonic() - began) * 1e6
    taking = clock.taking(AT, time.monotonic())
    assert taking.computing
    assert 40_000 <= taking.window_us <= most_us


def test_what_lies_between_seeks_is_no_window() -> None:
    clock = WindowClock()
    clock.taking(AT, time.monotonic())
    clock.restarted()
    assert clock.taking(AT, time.monotonic() + 1.0).window_us == 0


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path))
    return tmp_path / "decode-costs.json"


def test_scales_are_kept_for_the_next_job_and_the_newest_win(cache: Path) -> None:
    assert kept_scales() == {}
    keep_scales({"h264": 1.5, "av1": 0.5})
    keep_scales({"h264": 1.7})
    assert kept_scales() == {"av1": 0.5, "h264": 1.7}
    for n in range(300):
        keep_scales({f"kind {n}": 1.0})
    assert len(kept_scales()) == 64
    assert "kind 299" in kept_scales()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": {"h264": -1}}', '{"x": {"h264": "fast"}}'])
def test_a_file_that_makes_no_sense_is_as_none(cache: Path, text: str) -> None:
    cache.write_text(text)
    assert kept_scales() == {}
    keep_scales({"h264": 1.5})
    assert kept_scales() == {"h264": 1.5}


def test_where_nothing_can_be_kept_nothing_happens(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.parent.joinpath("file").write_text("")
    monkeypatch.setenv("HELIX_CACHE", str(cache.parent / "file"))
    keep_scales({"h264": 1.5})
    assert kept_scales() == {}
