"""Lists of bad samples: bounded however long jobs run, whole whoever writes, mended after a full disk."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from libhelix import bad_samples
from libhelix.bad_samples import list_of, note, noted
from libhelix.index.build import build
from libhelix.index.read import Index
from libhelix.wire.messages import Bad
from libhelix.wire.settings import Position

ROOT = Path(__file__).parents[2]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path / "cache"))
    np.save(tmp_path / "a.npy", np.zeros(3))
    build([tmp_path / "a.npy"], tmp_path / "x.arrow", jobs=1)
    return Index.open(tmp_path / "x.arrow")


def _note(index: Index, step: int, text: str = "broken") -> None:
    note(index, index[0], Bad(0, 0, Position(0, step, 0), "fill", text, note=True), "train")


def _steps(index: Index) -> list[int]:
    return [bad.step for bad in noted(index)]


def _small(monkeypatch: pytest.MonkeyPatch, each: int, in_all: int = 1 << 30) -> None:
    monkeypatch.setattr(bad_samples, "MOST_BYTES", each)
    monkeypatch.setattr(bad_samples, "MOST_BYTES_IN_ALL", in_all)


def _bytes(index: Index) -> int:
    return sum(path.stat().st_size for path in Path(list_of(index)).parent.iterdir())


def test_a_list_that_is_full_begins_again_and_the_last_failures_are_kept(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    _small(monkeypatch, 10_000)
    most = 0
    for step in range(1_000):
        _note(index, step)
        most = max(most, _bytes(index))
    assert 15_000 < most <= 20_500, "two lists, and one line beyond"
    kept = _steps(index)
    assert kept == list(range(1_000 - len(kept), 1_000))
    assert len(kept) > 50


def _write(path: str, writer: int, each: int) -> None:
    _of = Index.open(path)
    bad_samples.MOST_BYTES = 60_000
    for i in range(each):
        _note(_of, writer * each + i)


def test_lines_of_many_writers_are_whole_and_none_is_lost_when_one_puts_the_list_aside(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    _small(monkeypatch, 60_000)
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_write, args=(index.path, writer, 100)) for writer in range(4)]
    for process in writers:
        process.start()
    for process in writers:
        process.join(30)
        assert process.exitcode == 0
    assert Path(f"{list_of(index)}.old").exists(), "it was full once"
    assert sorted(_steps(index)) == list(range(400))


def test_lists_of_indexes_that_are_no_more_make_room(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _small(monkeypatch, 1_000, 20_000)
    folder = Path(list_of(index)).parent
    folder.mkdir(parents=True)
    for night in range(40):
        (folder / f"{night}.jsonl").write_bytes(b"x" * 1_000)
        os.utime(folder / f"{night}.jsonl", (night, night))
    _note(index, 0)
    assert _bytes(index) <= 20_000
    left = sorted(int(path.stem) for path in folder.iterdir() if path.stem.isdigit())
    assert left == list(range(40 - len(left), 40)), "those that were written to last"
    assert len(left) > 10
    assert _steps(index) == [0]


_FULL = """
import resource, sys
from libhelix.index.read import Index
from tests.libhelix.test_bad_sample_lists import _note
index = Index.open(sys.argv[1])
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
_note(index, 0)
resource.setrlimit(resource.RLIMIT_FSIZE, (400, hard))
failed = 0
for step in range(1, 5):
    try:
        _note(index, step)
    except OSError as e:
        failed += 1
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
_note(index, 9)
print(failed)
"""


def test_a_line_that_a_full_disk_cuts_costs_no_other(index: Index) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FULL, index.path], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    failed = int(done.stdout)
    assert 1 <= failed <= 4
    assert b"\n{" in Path(list_of(index)).read_bytes()
    assert _steps(index) == [*range(5 - failed), 9]


def test_a_list_that_cannot_be_put_aside_grows_no_further(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    _small(monkeypatch, 1_000)
    _note(index, 0)
    Path(f"{list_of(index)}.old").mkdir()
    for step in range(100):
        if Path(list_of(index)).stat().st_size >= 2_000:
            break
        _note(index, step)
    with pytest.raises(OSError, match="full, and cannot be renamed"):
        _note(index, 100)
    assert Path(list_of(index)).stat().st_size < 2_500
