"""CPU time of processes that live and of those that have ended, and their end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from bench.processes import MARK, CpuMeter, Marked, busy_s, end_marked, parse_stat, remove_torch_segments
from bench.results import BenchFailed
from bench.side import Side

LINE = (
    "42 (a (b) c) S 7 42 42 0 -1 4194304 500 0 0 0 {user} {system} {cuser} {csystem} 20 0 1 0 {started} 9 9\n"
)


class FakeProc:
    """A /proc with processes of our making."""

    def __init__(self, root: Path, mark: str) -> None:
        self.root = root
        self.mark = mark

    def put(
        self, pid: int, parent: int, *, user: int = 0, reaped: int = 0, marked: bool = True, started: int = 1
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        ticks = f"{user} 0 {reaped} 0"
        (folder / "stat").write_text(f"{pid} (x) S {parent} 0 0 0 0 0 0 0 0 0 {ticks} 20 0 1 0 {started} 0\n")
        entry = f"{MARK}={self.mark}" if marked else "OTHER=1"
        (folder / "environ").write_bytes(f"PATH=/bin\0{entry}\0".encode())

    def end(self, pid: int) -> None:
        for file in (self.root / str(pid)).iterdir():
            file.unlink()
        (self.root / str(pid)).rmdir()


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    (tmp_path / "self").mkdir()
    return FakeProc(tmp_path, "m1")


def test_a_name_in_stat_may_hold_anything() -> None:
    stat = parse_stat(LINE.format(user=150, system=50, cuser=30, csystem=20, started=777))
    assert (stat.pid, stat.parent, stat.state, stat.started) == (42, 7, "S", 777)
    assert stat.cpu_s == pytest.approx(200 / os.sysconf("SC_CLK_TCK"))
    assert stat.reaped_s == pytest.approx(50 / os.sysconf("SC_CLK_TCK"))


def test_only_marked_processes_count(proc: FakeProc) -> None:
    proc.put(10, 1, user=100)
    proc.put(11, 1, user=900, marked=False)
    assert [s.pid for s in Marked("m1", proc.root).stats()] == [10]
    assert Marked("m", proc.root).stats() == []


def test_an_ended_child_counts_once_and_an_ended_orphan_is_kept(proc: FakeProc) -> None:
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    meter = CpuMeter(Marked("m1", proc.root))
    proc.put(10, 1, user=100)
    proc.put(11, 10, user=50)  # a worker of 10
    proc.put(12, 1, user=30, reaped=5)  # a daemon
    assert meter.read_s() == pytest.approx(185 * tick_s)
    proc.end(11)
    proc.put(10, 1, user=100, reaped=55)
    proc.end(12)
    assert meter.read_s() == pytest.approx((155 + 35) * tick_s)
    assert meter.read_s() == pytest.approx((155 + 35) * tick_s)


def test_children_that_nobody_waits_for_count_too(proc: FakeProc) -> None:
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    meter = CpuMeter(Marked("m1", proc.root))
    proc.put(10, 1, user=100)  # ignores their ends
    proc.put(11, 10, user=50)
    proc.put(12, 10, user=30)
    meter.read_s()
    proc.end(11)
    assert meter.read_s() == pytest.approx(180 * tick_s)
    proc.end(12)
    proc.put(10, 1, user=110)
    assert meter.read_s() == pytest.approx(190 * tick_s)


def test_a_process_id_that_is_used_again_is_another_process(proc: FakeProc) -> None:
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    meter = CpuMeter(Marked("m1", proc.root))
    proc.put(12, 1, user=30)
    meter.read_s()
    proc.end(12)
    proc.put(12, 1, user=500, marked=False, started=2)
    assert meter.read_s() == pytest.approx(30 * tick_s)


def test_what_a_side_leaves_in_other_sessions_is_ended() -> None:
    mark = f"test-{os.getpid()}"
    code = "import subprocess, sys; subprocess.Popen(['sleep', '60'], start_new_session=True)"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {MARK: mark}, check=True)
    assert len(Marked(mark).stats()) == 1
    end_marked(mark)
    assert not [s for s in Marked(mark).stats() if s.state != "Z"]


def test_only_the_segments_of_these_processes_are_removed(tmp_path: Path) -> None:
    for name in ("torch_12_1_1", "torch_12_2_2", "torch_123_1_1", "other_12_1"):
        (tmp_path / name).touch()
    remove_torch_segments([12], tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other_12_1", "torch_123_1_1"]


def test_the_machine_has_been_busy() -> None:
    before_s = busy_s()
    until_s = time.process_time() + 0.05
    while time.process_time() < until_s:
        pass
    assert busy_s() > before_s


class Ask(msgspec.Struct):
    """A question to the toy side."""

    word: str


class Said(msgspec.Struct):
    """Its answer."""

    word: str
    pid: int


SIDE = """
import os, sys
import msgspec
from bench.child import serve
class Ask(msgspec.Struct):
    word: str
def answer(ask: Ask) -> dict:
    print("noise on stdout")
    if ask.word == "die":
        sys.exit("no luck")
    return {"word": ask.word, "pid": os.getpid()}
serve(Ask, answer)
"""


@pytest.fixture
def toy(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "toy_side.py").write_text(SIDE)
    root = Path(__file__).resolve().parents[2]
    return {"PYTHONPATH": f"{root}:{tmp_path}"}


def test_a_side_answers_line_by_line_and_is_gone_afterwards(toy: dict[str, str]) -> None:
    with Side("toy_side", toy) as side:
        first = side.ask(Ask("a"), Said)
        assert side.ask(Ask("b"), Said) == Said("b", first.pid)
        assert side.meter.read_s() > 0
    assert not Path(f"/proc/{first.pid}").exists()


def test_a_side_that_ends_says_why(toy: dict[str, str]) -> None:
    with Side("toy_side", toy) as side, pytest.raises(BenchFailed, match=r"(?s)exit code 1.*no luck"):
        side.ask(Ask("die"), Said)


def test_a_side_that_says_nothing_is_given_up(toy: dict[str, str]) -> None:
    with Side("toy_side", toy) as side, pytest.raises(BenchFailed, match="did not answer"):
        side.answer(Said, limit_s=0.1)
