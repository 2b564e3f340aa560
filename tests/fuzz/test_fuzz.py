"""Damaged files are read or refused: nothing else is raised, nothing hangs, nobody takes much memory.

HELIX_FUZZ=20000 reads so many of them instead of 500; HELIX_FUZZ_SEED draws others. What ends the process
that reads, such as a crash inside FFmpeg, is contained as it is in a worker, counted and reported.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from libhelix.errors import HelixError
from libhelix.index import crew
from tests.fuzz import process
from tests.fuzz.mutate import mutated
from tests.fuzz.sources import write_all

COUNT = int(os.environ.get("HELIX_FUZZ", "500"))
FIRST = int(os.environ.get("HELIX_FUZZ_SEED", "1")) * 1_000_000
TIMEOUT_S = 20.0
_CODE = "from tests.fuzz.process import main; main()"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_all(tmp_path_factory.mktemp("whole"))


def test_whole_files_are_read(files: list[Path]) -> None:
    for path in files:
        if path.name != "a.parquet":  # its media are inside: it is told to be extracted
            process.read(str(path))


def test_damage_is_the_same_every_time(files: list[Path]) -> None:
    body, other = files[0].read_bytes(), files[1].read_bytes()
    damaged = {mutated(body, other, seed) for seed in range(50)}
    assert {mutated(body, other, seed) for seed in range(50)} == damaged
    assert len(damaged) > 40


def test_damaged_files_are_read_or_refused(files: list[Path]) -> None:
    questions = [
        process.Question(str(files[i % len(files)]), str(files[(i * 7 + 3) % len(files)]), FIRST + i)
        for i in range(COUNT)
    ]
    ended: Counter[str] = Counter()
    bad: list[str] = []
    died: list[str] = []
    peak = 0
    asking = crew.ask_all(
        [msgspec.json.encode(question) for question in questions],
        code=_CODE,
        module="tests.fuzz.process",
        processes=min(2, crew.usable_cores()),
        failed=HelixError,
        timeout_s=TIMEOUT_S,
    )
    with closing(asking):
        for at, answer in asking:
            name = f"{Path(questions[at].path).name} seed {questions[at].seed}"
            if isinstance(answer, crew.Died):
                ended["died"] += 1
                died.append(f"{name}: {answer.how}")
                continue
            found = msgspec.json.decode(answer, type=process.Ended)
            ended[found.how] += 1
            peak = max(peak, found.peak_bytes)
            if found.how not in ("read", "refused", "no memory"):
                bad.append(f"{name}: {found.how}: {found.text}")
    print(f"{COUNT} damaged files: {dict(ended)}, at most {peak >> 20} MiB; {died}")
    assert not bad, "\n".join(bad)
    assert ended.total() == COUNT
    assert ended["refused"] > COUNT // 10
    assert ended["read"] > COUNT // 10
    assert not [text for text in died if "SIGKILL" in text], f"hung for {TIMEOUT_S} s: {died}"
    if died:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(f"{len(died)} of {COUNT} damaged files ended their process: {died}", stacklevel=1)
