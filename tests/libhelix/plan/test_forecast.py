"""What is said of an epoch before it begins is what its windows have."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from libhelix.plan.forecast import forecast, too_large
from libhelix.wire.messages import FieldSpec, Row
from libhelix.wire.settings import Batching, FixedBatch, Packed, TokenBudget
from tests.libhelix.plan.test_planner import planner


class Known:
    """Samples of 1 to n tokens, a KiB and two patches each."""

    schema = (FieldSpec("x", "uint8", "ragged", 1),)

    def __init__(self, n: int) -> None:
        tokens = np.arange(1, n + 1)
        self.costs: Mapping[str, NDArray[np.int64]] = {"tokens": tokens, "patches": 2 * tokens}

    def __getitem__(self, sample: int) -> Row:
        n = sample + 1
        return Row(sample, ((n << 10,),), {"tokens": n, "patches": 2 * n}, 1, (), (0,))


@pytest.mark.parametrize(
    ("batching", "first"),
    [
        (TokenBudget(20, oversize="skip"), 20),
        (TokenBudget(20, max_bytes=16 << 10, oversize="skip"), 15),
        (Packed(20, max_patches=16, oversize="skip"), 8),
        (FixedBatch(2), 30),
    ],
)
def test_what_no_micro_batch_can_hold_is_what_the_epoch_leaves_out(batching: Batching, first: int) -> None:
    found = planner(30, batching, ranks=1, end="pad")
    assert too_large(found, Known(30)) == list(range(first, 30))
    plan = forecast(found, Known(30))
    assert plan.too_large == plan.left_out == 30 - first


@pytest.mark.parametrize(
    ("micros", "per_step", "all_idle"), [(1, 3, True), (2, 3, True), (1, 4, False), (2, 5, False)]
)
def test_steps_in_which_a_rank_has_no_sample_are_counted(micros: int, per_step: int, all_idle: bool) -> None:
    found = forecast(planner(60, TokenBudget(60, per_step=per_step), 4, micros), Known(60))
    assert found.steps > 5
    assert found.steps_with_idle_rank == (found.steps if all_idle else 0)
