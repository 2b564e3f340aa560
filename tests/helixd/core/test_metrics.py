"""Metrics say what the history says, and counters never fall."""

from __future__ import annotations

import random
from functools import partial

import pytest

from helixd.core.metrics import MOST_KINDS, Counters, Histogram, gauges
from helixd.runtime.exposition import Exposition
from tests.helixd.core import world as w
from tests.helixd.core.node import Node


def _values(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def _rising(values: dict[str, float]) -> dict[str, float]:
    return {
        k: v for k, v in values.items() if k.split("{")[0].endswith(("_total", "_bucket", "_count", "_sum"))
    }


@pytest.mark.parametrize("layout", ["stack", "pack"])
def test_counters_never_fall_and_agree_with_the_history(layout: str) -> None:
    node = Node()
    for rank in range(2):
        node.attach(rank, w.settings(layout))
    exposition, before = Exposition(node.machine), dict[str, float]()
    for n in (2, 5, 9):
        node.run(partial(_all_took, node, n))
        now = _rising(_values(exposition.text().decode()))
        assert all(now[k] >= v for k, v in before.items()), "a counter fell"
        before = now
    (job,) = node.machine.jobs.values()
    (stream,) = job.streams.values()
    counters = node.machine.counters
    asked = [b for b in stream.history.batches if b.asked is not None]
    assert counters.waits.count == len(asked) == before["helix_input_wait_seconds_count"] > 0
    assert counters.waits.total == pytest.approx(sum(b.wait_s for b in asked))
    fills = [t for t in stream.history.tasks if t.at is not None]
    assert counters.stage_s["decode"] == pytest.approx(sum(t.cpu_us for t in fills) * 1e-6)
    assert sum(h.total for h in counters.decode.values()) == pytest.approx(counters.stage_s["decode"])
    described = [t for t in stream.history.tasks if t.at is None]
    assert counters.stage_s["describe"] == pytest.approx(sum(t.ended - t.began for t in described))
    seen = gauges(node.machine.jobs.values())
    rings = [c.ledger.nbytes for c in stream.consumers.values() if c.ledger is not None]
    assert seen.ring_free + seen.ring_filling + seen.ring_leased == sum(rings) > 0
    assert (seen.jobs, seen.loaders, seen.ranks, seen.workers) == (1, 1, 2, len(job.pool.workers))
    for trainer in list(node.trainers):
        node.kill_trainer(trainer)
    after = _rising(_values(exposition.text().decode()))
    assert all(after[k] >= v for k, v in before.items()), "counters fall when a job leaves"
    assert _values(exposition.text().decode())["helix_jobs"] == 0


def test_a_worker_that_dies_is_counted_by_how_it_ended() -> None:
    counters = Counters()
    counters.worker_gone(killed=False, status=-9)
    counters.worker_gone(killed=False, status=3)
    counters.worker_gone(killed=True, status=-9)
    counters.worker_gone(killed=False, status=None)
    assert counters.restarts == {"signal": 1, "exit": 1, "stuck": 1, "host": 1}


def test_kinds_are_bounded_and_hold_no_free_text() -> None:
    counters = Counters()
    counters.decoded("/home/anna/secret film.mp4", 0.1)
    for i in range(10 * MOST_KINDS):
        counters.decoded(f"kind{i}", 0.1)
    assert len(counters.decode) <= MOST_KINDS + 1
    assert not any("/" in kind for kind in counters.decode)
    assert sum(h.count for h in counters.decode.values()) == 10 * MOST_KINDS + 1


def test_buckets_hold_all_that_is_at_most_their_bound() -> None:
    histogram, rng = Histogram((0.1, 1.0)), random.Random(0)
    values = [0.1, 1.0, *(rng.random() * 2 for _ in range(200))]
    for value in values:
        histogram.add(value)
    expected = [sum(v <= bound for v in values) for bound in (0.1, 1.0, 9.0)]
    assert histogram.buckets() == list(zip(("0.1", "1.0", "+Inf"), expected))
    assert histogram.total == pytest.approx(sum(values))


def _all_took(node: Node, n: int) -> bool:
    return all(len(t.taken) > n for t in node.trainers)
