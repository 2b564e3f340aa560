"""Predictions of the gate: what they learn from what samples took."""

from __future__ import annotations

import pytest

from helixd.core.gate import TRY_AGAIN_S, Gate


def _sent(gate: Gate, work_s: float, took_s: float) -> float:
    """A sample of 1 MB, which came after `took_s`; what was predicted."""
    takes_s = gate.takes_s(work_s, 1_000_000)
    gate.came(takes_s, takes_s / gate.bias, took_s, work_s, work_s, 1e8)
    return takes_s


@pytest.mark.parametrize("part", [0.6, 1.0, 1.7])
def test_what_always_takes_a_part_of_what_was_predicted_is_predicted_so(part: float) -> None:
    gate = Gate()
    for i in range(200):
        work_s = 0.01 * (1 + i % 5)
        predicted_s = _sent(gate, work_s, took_s := part * (0.01 + work_s))
    assert predicted_s == pytest.approx(took_s, rel=0.05)
    assert gate.margin < 0.2


@pytest.mark.parametrize("there", [False, True])
def test_a_node_that_stalled_once_is_asked_again(there: bool) -> None:
    gate = Gate()
    for _ in range(50):
        _sent(gate, 0.03, took_s=0.032)
    for _ in range(12):
        gate.came(0.032, 0.032 / gate.bias, 0.9, 0.9 if there else 0.03, 0.03, None)
    # It would be ready here after a fifth of a second: worth a try, if no more than one.
    assert gate.passes(gate.takes_s(0.03, 0), 0.2, 1000, 0, now=TRY_AGAIN_S)


def test_what_was_predicted_before_a_bias_was_known_does_not_count_against_it() -> None:
    # Twenty samples are on their way at any time, as on a link that is busy.
    gate = Gate()
    on_the_way: list[tuple[float, float]] = []
    errors = []
    for _ in range(400):
        takes_s = gate.takes_s(0.05, 0)
        on_the_way.append((takes_s, takes_s / gate.bias))
        if len(on_the_way) > 20:
            predicted_s, expected_s = on_the_way.pop(0)
            gate.came(predicted_s, expected_s, 0.03, 0.05, 0.05, None)
            errors.append(predicted_s / 0.03)
    assert min(errors) > 0.9
    assert errors[-1] == pytest.approx(1.0, rel=0.05)


def _used(gate: Gate, rate: float, count: int) -> None:
    """Samples of 1 MB, 5 ms to decode, which come at a rate."""
    for _ in range(count):
        took_s = 0.006 + 1e6 / rate
        gate.came(gate.takes_s(0.005, 1_000_000), took_s / gate.bias, took_s, 0.005, 0.005, rate)


def _passes(gate: Gate) -> bool:
    """Such a sample, which would be ready here after 50 ms; nothing is on the way, one was just tried."""
    gate.tried = 100.0
    return gate.passes(gate.takes_s(0.005, 1_000_000), 0.05, 1_000_000, 0, now=100.0)


def test_a_fast_link_passes_and_a_slow_one_refuses() -> None:
    fast, slow = Gate(), Gate()
    _used(fast, 1.25e9, 20)
    _used(slow, 6.25e6, 20)
    assert _passes(fast)
    assert not _passes(slow)


def test_goodput_that_changes_is_followed_both_ways() -> None:
    gate = Gate()
    _used(gate, 1.25e9, 40)
    assert _passes(gate)
    _used(gate, 6.25e6, 40)
    assert not _passes(gate)
    _used(gate, 1.25e9, 40)
    assert _passes(gate)
