"""What an epoch will be, planned from rows that are all known: steps, what is left out, fill, balance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from libhelix.plan import window as w
from libhelix.plan.caps import cost_caps, row_bytes
from libhelix.plan.planner import Planner, Window, windows_from
from libhelix.wire.messages import FieldSpec, Row
from libhelix.wire.settings import Base, Buckets, FixedBatch, Packed, TokenBudget

BALANCED = ("tokens", "encoder")
"""Declared costs that ranks are balanced by."""
Numbers = NDArray[Any]


class Balance(msgspec.Struct, frozen=True):
    """Largest over mean declared cost of the ranks of a step, all its micro-batches together."""

    mean: float
    p95: float


class Forecast(msgspec.Struct, frozen=True):
    """An epoch.

    left_out   samples that no step has; `too_large` of them because no micro-batch can hold them
    deferred   samples that were left to a later window, a share of all
    fillers    a share of the places: micro-batches without a sample, in fixed batches single samples
    steps_with_idle_rank   steps in which some rank has fillers only, in all its micro-batches
    fill       mean share of the budget that micro-batches use; None where there is none
    padding    share of the packs that is padding; None without pad_to
    balance    by declared cost
    """

    steps: int
    left_out: int
    too_large: int
    deferred: float
    fillers: float
    steps_with_idle_rank: int
    fill: float | None
    padding: float | None
    balance: dict[str, Balance]


class Known(Protocol):
    """Rows of all samples: one by one, and their declared costs as columns, negative where there are none."""

    @property
    def costs(self) -> Mapping[str, NDArray[np.int64]]:
        """By name."""

    @property
    def schema(self) -> Sequence[FieldSpec]:
        """What the shapes in the rows are of."""

    def __getitem__(self, sample: int) -> Row:
        """The row of a sample."""


def steps_of(planner: Planner, epoch: int, rows: Known) -> int:
    """Steps of an epoch."""
    return sum(len(window.steps) for window in _windows(planner, epoch, rows))


def forecast(planner: Planner, rows: Known) -> Forecast:
    """What epoch 0 will be."""
    costs = rows.costs
    batching = planner.settings.batching
    tokens = costs.get("tokens", np.zeros(planner.settings.index_samples, dtype=np.int64))
    use, cap = tokens.astype(np.float64), 0
    if isinstance(batching, Buckets):
        use, cap = use**batching.power, batching.compute
    elif not isinstance(batching, FixedBatch):
        cap = cost_caps(batching)["tokens"]
    balanced = {name: costs[name].astype(np.float64) for name in BALANCED if name in costs}
    steps = left_out = deferred = fillers = places = idle = 0
    ratios: dict[str, list[Numbers]] = {name: [] for name in balanced}
    used: list[Numbers] = []
    for window in _windows(planner, 0, rows):
        steps += len(window.steps)
        left_out += len(window.dropped)
        deferred += len(window.after.carried)
        samples, micro, shape = _flat(planner, window)
        real = samples != w.FILLER
        fillers += int((~real).sum())
        places += len(samples)
        idle += _with_idle_rank(micro[real], shape)
        for name, column in balanced.items():
            ratios[name].append(_max_over_mean(_sums(column, samples[real], micro[real], shape)))
        if cap:
            used.append(_sums(use, samples[real], micro[real], shape).ravel())
    fill = padding = None
    if cap:
        loads = np.concatenate(used)
        fill = float(loads.mean() / cap)
        if isinstance(batching, Packed) and batching.pad_to is not None:
            padded = np.ceil(loads / batching.pad_to) * batching.pad_to
            padding = float(1 - loads.sum() / max(1.0, padded.sum()))
    return Forecast(
        steps=steps,
        left_out=left_out,
        too_large=len(too_large(planner, rows)),
        deferred=deferred / planner.draws,
        fillers=fillers / max(1, places),
        steps_with_idle_rank=idle,
        fill=fill,
        padding=padding,
        balance={name: _balance(np.concatenate(found)) for name, found in ratios.items()},
    )


def too_large(planner: Planner, rows: Known) -> list[int]:
    """The samples that no micro-batch can hold, in any epoch."""
    batching, n = planner.settings.batching, planner.settings.index_samples
    if not isinstance(batching, TokenBudget | Packed):
        return []
    over = np.zeros(n, dtype=np.bool_)
    for name, most in cost_caps(batching).items():
        if name in rows.costs:
            over |= rows.costs[name] > most
    if (most_bytes := batching.max_bytes) is not None:
        over |= np.asarray([row_bytes(rows.schema, rows[i]) > most_bytes for i in range(n)], dtype=np.bool_)
    found: list[int] = np.flatnonzero(over).tolist()
    return found


def _windows(planner: Planner, epoch: int, rows: Known) -> Iterator[Window]:
    return windows_from(planner, Base(epoch, 0, 0), lambda _, sample: rows[sample], rows.schema)


def _flat(planner: Planner, window: Window) -> tuple[Numbers, Numbers, tuple[int, int, int]]:
    """Samples of a window, FILLER in empty places; the number of the micro-batch of each; and how these
    make [steps, micro-batches, ranks]."""
    found = [rank for step in window.steps for micro in step for rank in micro]
    draws = np.asarray([d for rank in found for d in rank], dtype=np.int64)
    micro = np.repeat(np.arange(len(found)), [len(rank) for rank in found])
    samples = np.full(len(draws), w.FILLER, dtype=np.int64)
    real = draws != w.FILLER
    samples[real] = planner.ids(window.base.epoch, draws[real].tolist())
    return samples, micro, (len(window.steps), len(window.steps[0]), len(window.steps[0][0]))


def _sums(column: Numbers, samples: Numbers, micro: Numbers, shape: tuple[int, int, int]) -> Numbers:
    sums = np.bincount(micro, weights=np.maximum(column[samples], 0), minlength=int(np.prod(shape)))
    return sums.reshape(shape)


def _with_idle_rank(micro: Numbers, shape: tuple[int, int, int]) -> int:
    """Steps in which a rank has no sample; `micro` has the micro-batch of each sample."""
    of_ranks = np.bincount(micro, minlength=int(np.prod(shape))).reshape(shape).sum(axis=1)
    return int((of_ranks == 0).any(axis=1).sum())


def _max_over_mean(loads: Numbers) -> Numbers:
    ranks = loads.sum(axis=1)
    mean = ranks.mean(axis=1)
    some: Numbers = mean > 0
    return np.asarray(ranks.max(axis=1)[some] / mean[some])


def _balance(ratios: Numbers) -> Balance:
    if not len(ratios):
        return Balance(1.0, 1.0)
    return Balance(float(ratios.mean()), float(np.quantile(ratios, 0.95)))
