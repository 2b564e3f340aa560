"""How often a state says that each sample was delivered."""

from __future__ import annotations

import msgspec
import numpy as np

from libhelix.errors import UsageError
from libhelix.plan.order import Permutation
from libhelix.plan.state import State
from libhelix.plan.window import Ints
from libhelix.wire.settings import Base


class EpochCoverage(msgspec.Struct, frozen=True):
    """Samples of an epoch: delivered once, not delivered and listed, and still to come."""

    epoch: int
    delivered: int
    left_out: int
    to_come: int


class Coverage(msgspec.Struct, frozen=True):
    """The last epochs, one by one; `earlier` ones before them left out `left_out_earlier` samples in all."""

    samples: int
    epochs: tuple[EpochCoverage, ...]
    earlier: int
    left_out_earlier: int


def coverage(state: State) -> Coverage:
    """How often samples were delivered. Raises UsageError for a state of inside a step."""
    rest = _rest(state)
    left: dict[int, int] = {}
    for base in (saved.restored() for saved in state.left_out):
        left[base.epoch] = left.get(base.epoch, 0) + len(base.carried) + state.samples - base.draw
    first = min([*left, state.epoch])
    epochs = []
    for epoch in range(first, state.epoch + 1):
        to_come = len(rest.carried) + state.samples - rest.draw if epoch == state.epoch else 0
        out = left.get(epoch, 0)
        epochs.append(EpochCoverage(epoch, state.samples - to_come - out, out, to_come))
    return Coverage(state.samples, tuple(epochs), first, state.left_out_before)


def undelivered(state: State) -> tuple[Ints, Ints]:
    """The samples that the state's epoch has left out so far, and those that are still to come."""
    rest = _rest(state)
    out = [saved.restored() for saved in state.left_out if saved.epoch == state.epoch]
    return _samples(state, out), _samples(state, [rest])


def _samples(state: State, bases: list[Base]) -> Ints:
    parts = [np.zeros(0, dtype=np.int64)]
    for base in bases:
        parts.append(np.asarray(base.carried, dtype=np.int64))
        parts.append(np.arange(base.draw, state.samples, dtype=np.int64))
    draws = np.concatenate(parts)
    if not state.shuffle or not len(draws):
        return draws
    return Permutation(state.samples, state.seed, state.epoch)[draws]


def _rest(state: State) -> Base:
    if state.rest is None:
        raise UsageError(
            f"the state is of inside a step (micro-batch {state.micro}), and one rank does not know what "
            "others have of it; save it after a whole step"
        )
    return state.rest.restored()
