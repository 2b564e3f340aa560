"""What the trainer of `bench overhead` is told, and what it answers."""

from __future__ import annotations

import msgspec

from libhelix.recipes import Clip, Image


class ClipRecipe(msgspec.Struct, frozen=True, tag="clip"):
    """Decode video."""

    recipe: Clip


class ImageRecipe(msgspec.Struct, frozen=True, tag="image"):
    """Decode images."""

    recipe: Image


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin"):
    """Make a loader of rank 0 of `dp_size`, in a job of its own."""

    index: str
    job: str
    decode: ClipRecipe | ImageRecipe
    batch: int
    regroup: int = 1
    dp_size: int = 1
    micro_batches: int = 1
    ring: int | None = None


class Take(msgspec.Struct, frozen=True, kw_only=True, tag="take"):
    """Take batches for `seconds`, one every `period_s` where they are there by then."""

    seconds: float
    period_s: float


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What was taken. next_cpu_s, release_cpu_s: CPU time in next(), and in letting a batch go.

    decode_cpu_s: CPU time of the workers in decoding these batches, as helixd counts it.
    """

    batches: int = 0
    samples: int = 0
    wall_s: float = 0.0
    next_cpu_s: float = 0.0
    release_cpu_s: float = 0.0
    decode_cpu_s: float = 0.0


Request = Begin | Take
