"""What the processes of `bench ablate` are told, and what they answer."""

from __future__ import annotations

import msgspec

from bench.ablate.recipe import LevelClip
from helixd.core.policy import Policy


class Serve(msgspec.Struct, frozen=True, kw_only=True):
    """Be a standing helixd at a path, with a policy, on cores."""

    socket: str
    policy: Policy
    cores: tuple[int, ...]


class Serving(msgspec.Struct, frozen=True):
    """The socket is there."""


class Train(msgspec.Struct, frozen=True, kw_only=True):
    """Train for `steps`; every token of a batch takes `per_token_s` of the accelerator.

    socket: of the helixd to use; None: a DataLoader with a worker. barrier: where the ranks meet.
    """

    index: str
    recipe: LevelClip
    rank: int
    ranks: int
    batch: int
    regroup: int
    steps: int
    seed: int
    per_token_s: float
    cores: tuple[int, ...]
    barrier: str
    job: str
    socket: str | None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a rank. wait: in next(). window: of its accelerator. done_at: on a clock that ranks share."""

    wait_s: float
    window_s: float
    done_at_s: float
    epoch: int
    ids: tuple[int, ...]


class Trained(msgspec.Struct, frozen=True):
    """All steps of a rank."""

    steps: tuple[Step, ...]
