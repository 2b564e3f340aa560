"""What the sides of `bench decode` are told, and what they answer."""

from __future__ import annotations

import msgspec

from bench.torch_loader import Sharing
from libhelix.recipes import Clip


class HelixSide(msgspec.Struct, frozen=True, kw_only=True, tag="helix"):
    """Make a DataHelix loader with a private daemon."""

    index: str
    recipe: Clip
    batch: int
    seed: int
    ring: int


class TorchSide(msgspec.Struct, frozen=True, kw_only=True, tag="torch"):
    """Make a DataLoader with workers."""

    index: str
    recipe: Clip
    batch: int
    seed: int
    workers: int
    prefetch: int
    sharing: Sharing


class Take(msgspec.Struct, frozen=True, kw_only=True, tag="take"):
    """Take batches, and drop them, until both have passed."""

    batches: int
    seconds: float


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What was taken; no samples: the loader was made."""

    samples: int
    wall_s: float


Request = HelixSide | TorchSide | Take
