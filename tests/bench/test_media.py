"""`bench media`: every library on the same files, and what is missing is said."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.media.report import MediaResults, figures, table
from bench.media.requests import Used, Work
from bench.media.rounds import Outcome, _wrong
from bench.media.systems import OURS, DataHelix, OpenCV, Pillow, SoundFile, Spdl, System
from tests.clips import make_clip, read_number


def test_the_best_other_counts_that_gives_what_was_asked_for() -> None:
    outcomes = {
        "h264_a": {
            OURS: Outcome(cpu_s=2.0, of=4),
            "torchcodec": Outcome(cpu_s=4.0, of=4),
            "decord": Outcome(cpu_s=1.0, of=4, wrong=1),
            "OpenCV": Outcome(error="fails"),
        },
        "jpeg": {OURS: Outcome(cpu_s=3.0, of=1), "OpenCV": Outcome(error="no decoder")},
    }
    found = figures(outcomes)
    assert found["h264_a_of_best"] == 0.5
    assert found["h264_of_torchcodec"] == 0.5
    assert found["h264_a_decord_wrong"] == 1
    assert "jpeg_of_best" not in found


def test_other_pictures_are_counted_one_by_one(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 200, (3, 8, 8, 3), dtype=np.uint8)
    other = frames.copy()
    other[1] = 255 - other[1]
    np.save(tmp_path / "a.npy", frames)
    np.save(tmp_path / "b.npy", other)
    np.save(tmp_path / "c.npy", frames[:2])
    work = Work("video", "x.mp4", (0, 1, 2))
    assert _wrong(work, str(tmp_path / "a.npy"), str(tmp_path / "a.npy")) == (0, 3)
    assert _wrong(work, str(tmp_path / "b.npy"), str(tmp_path / "a.npy")) == (1, 3)
    assert _wrong(work, str(tmp_path / "c.npy"), str(tmp_path / "a.npy")) == (3, 3)


@pytest.mark.parametrize("make", [DataHelix, OpenCV, Spdl])
def test_frames_come_as_they_were_asked_for(tmp_path: Path, make: type[System]) -> None:
    try:
        system = make()
    except ImportError as e:
        pytest.skip(f"not installed: {e}")
    clip = make_clip(tmp_path / "a.mp4", 40, size=(96, 192), gop=12, bframes=2)
    found = system.video(str(clip), (3, 17, 18, 39))
    assert found.shape == (4, 96, 192, 3)
    assert found.dtype == np.uint8
    assert [read_number(frame) for frame in found] == [3, 17, 18, 39]


@pytest.mark.parametrize("make", [OpenCV, Pillow, SoundFile])
def test_a_library_without_a_decoder_says_so(make: type[System]) -> None:
    try:
        system = make()
    except ImportError as e:
        pytest.skip(f"not installed: {e}")
    with pytest.raises(NotImplementedError):
        system.sound("x") if make is not SoundFile else system.image("x")


def test_the_command_compares_what_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow makes the images")
    out = tmp_path / "r.json"
    args = ["media", "--only", "jpeg_vga", "--rounds", "1", "--cache", str(tmp_path), "--json", str(out)]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    found = msgspec.json.decode(out.read_bytes(), type=MediaResults)
    assert found.libraries[OURS].version
    assert found.libraries["Pillow"].version
    assert found.figures["jpeg_vga_of_best"] > 0
    assert found.outcomes["jpeg_vga"]["Pillow"].wrong == 0
    assert found.outcomes["jpeg_vga"]["Pillow"].of == 1
    missing = [name for name, used in found.libraries.items() if used.missing]
    assert all(any(name in note for note in found.notes) for name in missing)


def test_no_class_of_that_name_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow makes the images")
    result = CliRunner().invoke(main, ["media", "--only", "tiff", "--cache", str(tmp_path)])
    assert result.exit_code == 1
    assert "no class begins with 'tiff'" in result.output


def test_the_table_shows_wrong_parts() -> None:
    outcomes = {"x": {OURS: Outcome(cpu_s=0.002, of=2), "decord": Outcome(cpu_s=0.001, wrong=1, of=2)}}
    results = _results(outcomes)
    cells = [list(column.cells) for column in table(results).columns]
    assert ["2.00"] in cells
    assert ["1.00 !1/2"] in cells


def _results(outcomes: dict[str, dict[str, Outcome]]) -> MediaResults:
    from bench.machine import circumstances

    return MediaResults(
        command="media",
        figures=figures(outcomes),
        targets=(),
        circumstances=circumstances(),
        settings=None,
        libraries={name: Used(version="1") for name in outcomes["x"]},
        outcomes=outcomes,
    )
