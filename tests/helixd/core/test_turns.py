"""Turns of the loop are counted by how long they took, and the longest is kept."""

from __future__ import annotations

import pytest

from helixd.core.turns import BOUNDS_MS, Turns
from libhelix.ctl.status import _loop
from tests.helixd.core.node import Node


def test_the_longest_turn_is_kept_in_wall_and_in_cpu_time() -> None:
    turns = Turns()
    for wall_s, cpu_s in ((0.001, 0.0001), (0.009, 0.002), (0.003, 0.003)):
        turns.add(wall_s, cpu_s)
    seen = turns.view()
    assert (seen["turns"], seen["longest_ms"], seen["longest_cpu_ms"]) == (3, 9.0, 3.0)
    assert seen["cpu_s"] == pytest.approx(0.0051)


@pytest.mark.parametrize(("ms", "bucket"), [(0.0, 0), (0.5, 0), (0.51, 1), (5.0, 3), (1e4, len(BOUNDS_MS))])
def test_a_turn_is_counted_by_the_first_bound_that_it_does_not_exceed(ms: float, bucket: int) -> None:
    turns = Turns()
    turns.add(ms / 1e3, 0.0)
    assert [i for i, n in enumerate(turns.wall) if n] == [bucket]
    assert turns.cpu[0] == 1


def test_the_status_has_what_the_runtime_has_added() -> None:
    node = Node()
    node.machine.turns.add(0.007, 0.001)
    assert node.status()["loop"] == node.machine.turns.view()


def test_people_read_the_longest_turn_and_how_many_were_late() -> None:
    turns = Turns()
    for wall_s in (0.0001, 0.005, 0.0051, 0.2):
        turns.add(wall_s, 0.0012)
    assert _loop(turns.view()) == "longest turn 200.0 ms, in CPU time 1.2 ms; 2 of 4 turns over 5 ms"
