"""Faults all the time lose, double and change nothing; and the oracle sees it when something does."""

from __future__ import annotations

import os
from typing import Any

from tests.chaos.oracle import Life, Line, judge
from tests.chaos.run import run

MINUTES = float(os.environ.get("HELIX_CHAOS_MINUTES", "2"))


def _lines(*steps: int, checksum: int = 7) -> list[Line]:
    return [{"at": [0, s, 0], "samples": [[s, True, checksum]], "t": float(s)} for s in steps]


def _life(lines: list[Line], after: int | None = None) -> Life:
    return Life([0, after, 0] if after is not None else None, 0.0, lines)


def _wrong(*lives: Life) -> str:
    return "; ".join(judge(lives, iter(_lines(*range(20)))).wrong)


def test_what_is_right_is_not_told() -> None:
    again, idle = _life(_lines(2, 3, 4), 1), _life([], 4)
    assert not _wrong(_life(_lines(0, 1, 2, 3)), again, idle, _life(_lines(5, 6), 4))


def test_what_is_lost_doubled_or_changed_is_told() -> None:
    assert "[0, 4, 0] follows [0, 1, 0]" in _wrong(_life(_lines(0, 1)), _life(_lines(4, 5), 1))
    assert "[0, 0, 0] follows [0, 1, 0]" in _wrong(_life(_lines(0, 1)), _life(_lines(0, 1), 1))
    assert "[0, 1, 0] follows nothing" in _wrong(_life(_lines(1)))
    assert "[0, 3, 0] follows [0, 1, 0]" in _wrong(_life(_lines(0, 1, 3)))
    assert "[0, 1, 0] follows [0, 1, 0]" in _wrong(_life(_lines(0, 1, 1)))
    assert "sample 1 has other pixels" in _wrong(_life(_lines(0)), _life(_lines(1, checksum=8), 0))
    swapped: list[Any] = _lines(0, 1)
    swapped[1]["samples"][0][0] = 9
    assert "samples [9], not [1]" in _wrong(_life(swapped))


def test_faults_all_the_time_lose_double_and_change_nothing() -> None:
    faults, verdicts, wrong, _ = run(MINUTES, seed=int(os.environ.get("HELIX_CHAOS_SEED", "1")))
    assert not wrong, "\n".join(wrong)
    assert sum(faults.values()) >= 15 * MINUTES
    assert len(faults) >= 5
    assert all(verdict.batches > 10 for verdict in verdicts)
