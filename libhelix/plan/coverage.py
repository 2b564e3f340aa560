"""How often a state says that each sample was delivered."""

from __future__ import annotations

import msgspec
import numpy as np

from libhelix.errors import UsageError
from libhelix.plan.mixture import Mixture, order_of
from libhelix.plan.state import State
from libhelix.plan.window import Ints
from libhelix.wire.settings import Base


class EpochCoverage(msgspec.Struct, frozen=True):
    """Samples of an epoch: delivered once, not delivered and listed, and still to come."""

    epoch: int
    delivered: int
    left_out: int
    to_come: int


class SourceCoverage(msgspec.Struct, frozen=True):
    """A source of a mixture: its samples, how many draws of it were delivered over all epochs but `earlier`
    ones' left out, and its share of them beside the one that its weights ask for."""

    samples: int
    delivered: int
    share: float
    asked: float


class Coverage(msgspec.Struct, frozen=True):
    """The last epochs, one by one; `earlier` ones before them left out `left_out_earlier` samples in all."""

    samples: int
    epochs: tuple[EpochCoverage, ...]
    earlier: int
    left_out_earlier: int
    sources: tuple[SourceCoverage, ...] = ()


def coverage(state: State) -> Coverage:
    """How often samples were delivered. Raises UsageError for a state of inside a step."""
    rest = _rest(state)
    left: dict[int, int] = {}
    for base in (saved.restored() for saved in state.left_out):
        left[base.epoch] = left.get(base.epoch, 0) + len(base.carried) + state.epoch_draws - base.draw
    first = min([*left, state.epoch])
    epochs = []
    for epoch in range(first, state.epoch + 1):
        to_come = len(rest.carried) + state.epoch_draws - rest.draw if epoch == state.epoch else 0
        out = left.get(epoch, 0)
        epochs.append(EpochCoverage(epoch, state.epoch_draws - to_come - out, out, to_come))
    by_source = _by_source(state, rest) if state.sources else ()
    return Coverage(state.samples, tuple(epochs), first, state.left_out_before, by_source)


def _by_source(state: State, rest: Base) -> tuple[SourceCoverage, ...]:
    order = _order(state)
    here = state.epoch * state.epoch_draws
    counts = np.asarray(order.counts(here + rest.draw), dtype=np.int64)
    asked = counts / max(1, counts.sum())  # weights may have changed on the way; draws follow them
    for base in (rest, *(saved.restored() for saved in state.left_out)):
        tail = np.arange(base.draw, state.epoch_draws) if base is not rest else np.arange(0)
        missing = np.concatenate([np.asarray(base.carried, dtype=np.int64), tail.astype(np.int64)])
        sources, _ = order.at(missing + base.epoch * state.epoch_draws)
        counts -= np.bincount(sources, minlength=len(counts)).astype(np.int64)
    shares = counts / max(1, counts.sum())
    return tuple(
        SourceCoverage(n, int(c), float(s), float(a))
        for n, c, s, a in zip(state.sources, counts, shares, asked)
    )


def undelivered(state: State) -> tuple[Ints, Ints]:
    """The samples that the state's epoch has left out so far, and those that are still to come."""
    rest = _rest(state)
    out = [saved.restored() for saved in state.left_out if saved.epoch == state.epoch]
    return _samples(state, out), _samples(state, [rest])


def _samples(state: State, bases: list[Base]) -> Ints:
    parts = [np.zeros(0, dtype=np.int64)]
    for base in bases:
        parts.append(np.asarray(base.carried, dtype=np.int64))
        parts.append(np.arange(base.draw, state.epoch_draws, dtype=np.int64))
    draws = np.concatenate(parts)
    return _order(state).draws(state.epoch, draws)[0]


def _order(state: State) -> Mixture:
    return order_of(
        state.samples,
        state.sources,
        state.weights.in_force,
        state.seed,
        shuffle=state.shuffle,
        block=state.shuffle_block,
        epoch_draws=state.epoch_draws,
        without=state.quarantine,
    )


def _rest(state: State) -> Base:
    if state.rest is None:
        raise UsageError(
            f"the state is of inside a step (micro-batch {state.micro}), and one rank does not know what "
            "others have of it; save it after a whole step"
        )
    return state.rest.restored()
