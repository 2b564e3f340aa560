"""What a long run says of memory and descriptors that grow."""

from __future__ import annotations

import os

from tests.chaos.soak import Looks, wrong


def _looks(nbytes: list[int], descriptors: list[int]) -> Looks:
    looks = Looks()
    looks.nbytes["helixd"], looks.descriptors["helixd"] = nbytes, descriptors
    return looks


def test_what_grows_is_told_and_what_fills_at_the_start_is_not() -> None:
    steady = _looks([50] * 8 + [100] * 92, [3] * 8 + [9] * 92)
    assert not wrong(steady.summary())
    leaking = _looks([100 + i // 5 for i in range(100)], [9] * 100)
    assert wrong(leaking.summary()) == ["helixd: +12.5% of memory"]
    opening = _looks([100] * 100, [9 + i // 50 for i in range(100)])
    assert wrong(opening.summary()) == ["helixd: 9 descriptors, then 10"]


def test_a_process_is_looked_at_as_it_is() -> None:
    looks = Looks()
    looks.look({"me": os.getpid()})
    assert looks.nbytes["me"][0] > 1 << 20
    assert looks.descriptors["me"][0] >= 3
