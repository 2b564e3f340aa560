"""`bench overhead` on tiny workloads: what is counted for whom, not how much it is."""

from __future__ import annotations

import io
import os
from pathlib import Path

import av
import pytest
from rich.console import Console

from bench.overhead import command, images
from bench.overhead.command import OverheadSettings, _long_turns, run
from bench.overhead.cpu import DAEMON, HOST, WORKERS, CpuByKind, kind_of, parse_schedstat, read_cpu
from bench.overhead.report import Loop, Measured, figures, late, pace_notes, table
from bench.overhead.requests import Taken
from tests.bench.test_handoff import TINY, marked_by_us


def measured(name: str, *, longest_ms: float = 4.0) -> Measured:
    return Measured(
        name=name,
        taken=Taken(
            batches=10, samples=100, wall_s=2.0, next_cpu_s=0.002, release_cpu_s=0.001, decode_cpu_s=1.0
        ),
        cpu=CpuByKind(daemon_s=0.016, loop_s=0.015, host_s=0.001, workers_s=1.1),
        loop=Loop(
            turns=9,
            longest_ms=longest_ms,
            longest_cpu_ms=longest_ms / 2,
            cpu_s=0.1,
            bounds_ms=(1.0, 5.0, 10.0),
            by_wall=(5, 1, 2, 1),
            by_cpu=(9, 0, 0, 0),
        ),
    )


def test_overhead_is_all_that_is_ours_as_a_share_of_decoding() -> None:
    found = figures([measured("images")])
    assert found["images_overhead"] == pytest.approx(0.02)
    assert found["images_overhead_us"] == pytest.approx(200.0)
    assert found["images_daemon_us"] == pytest.approx(160.0)
    assert found["images_samples_per_s"] == pytest.approx(50.0)


def test_the_longest_turn_is_that_of_any_workload() -> None:
    found = figures([measured("images"), measured("plans", longest_ms=9.0), measured("video")])
    assert found["loop_longest_ms"] == pytest.approx(9.0)
    assert found["loop_longest_cpu_ms"] == pytest.approx(4.5)
    assert found["plans_loop_turns_late"] == 3


def test_a_turn_of_exactly_five_milliseconds_is_not_late() -> None:
    assert late((1.0, 5.0, 10.0), (5, 1, 2, 1)) == 3
    assert late((1.0, 5.0), (7, 7, 0)) == 0


def test_a_pace_that_was_not_reached_is_said() -> None:
    assert pace_notes({"images_samples_per_s": 1990.0}, 2000.0) == ()
    assert "1100 samples/s, not 2000" in pace_notes({"images_samples_per_s": 1100.0}, 2000.0)[0]


@pytest.mark.parametrize(
    ("name", "command_line", "kind"),
    [
        ("helix-w1", b"python\0-m\0helixd.worker\0@x\0job", WORKERS),
        ("helix-host", b"python\0-m\0helixd.worker\0@x\0job", HOST),
        ("python", b"python\0-m\0helixd\0embedded\0helix/0/x", DAEMON),
        ("python", b"python\0-m\0bench.overhead.trainer", None),
    ],
)
def test_processes_are_told_apart(name: str, command_line: bytes, kind: str | None) -> None:
    assert kind_of(name, command_line) == kind


def test_schedstat_counts_nanoseconds() -> None:
    assert parse_schedstat("1500000000 42 7\n") == pytest.approx(1.5)


def test_all_threads_of_helixd_count_and_its_loop_is_the_main_one(tmp_path: Path) -> None:
    for thread, seconds in ((7, 2), (8, 1)):
        folder = tmp_path / "7" / "task" / str(thread)
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(f"{seconds}000000000 0 0")
    (tmp_path / "7" / "comm").write_text("python\n")
    (tmp_path / "7" / "cmdline").write_bytes(b"python\0-m\0helixd\0embedded\0x\0")
    found = read_cpu([7, 99], tmp_path)
    assert (found.daemon_s, found.loop_s, found.workers_s) == pytest.approx((3.0, 2.0, 0.0))
    assert found.since(CpuByKind(daemon_s=1.0)).daemon_s == pytest.approx(2.0)


def test_the_longest_turns_are_taken_from_the_log() -> None:
    log = "".join(
        f"helixd: info: a turn took {ms} ms, 1.0 ms of it CPU time; 1.0 ms for Tick\nother\n"
        for ms in (6.0, 30.5, 7.0, 9.0)
    )
    found = _long_turns("video", log)
    assert [line.split()[4] for line in found] == ["30.5", "9.0", "7.0"]
    assert found[0].startswith("video: a turn took")


def test_images_are_small_and_decode(tmp_path: Path) -> None:
    one = images.jpeg(5)
    with av.open(io.BytesIO(one)) as opened:
        frame = next(opened.decode(video=0))
    assert 80 <= frame.width <= 120
    assert 80 <= frame.height <= 120
    assert images.jpeg(5) == one != images.jpeg(6)


def test_a_tiny_run_of_all_workloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "MEDIUM", TINY)
    settings = OverheadSettings(
        seconds=0.3, warm_up_s=0.1, pace=500.0, images=64, batch=8, video="tiny", window_batch=2,
        window_micro_batches=2,
    )  # fmt: skip
    results = run(settings, tmp_path, Console(quiet=True))
    assert {t.figure for t in results.targets} <= set(results.figures)
    for name in ("images", "video", "plans"):
        for part in ("daemon_us", "next_us", "release_us", "decode_us", "workers_us", "loop_longest_ms"):
            assert results.figures[f"{name}_{part}"] > 0, (name, part)
    assert table(results).row_count == 14
    assert len(list((tmp_path / "bench").glob("images-*/*/*.jpg"))) == 64
    assert not marked_by_us()
    assert f"bench-{os.getpid()}-" not in Path("/proc/net/unix").read_text()
