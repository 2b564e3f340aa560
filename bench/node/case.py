"""What the processes of a run are told. It travels as JSON, so everything here is plain."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import msgspec

from libhelix.recipe import OPENING_US
from libhelix.wire.settings import RecipeSpec

Facts = dict[str, str]
"""What a node, once it runs, tells the ranks: addresses, paths."""


class Window(msgspec.Struct, frozen=True):
    """For how long an accelerator computes a batch: fixed + per token + per squared token of a sample.

    Seconds as they are slept: dilated already.
    """

    fixed_s: float
    per_token_s: float
    per_square_s: float

    def seconds(self, tokens: Sequence[int]) -> float:
        """Of a batch of samples with so many tokens."""
        squares = sum(t * t for t in tokens)
        return self.fixed_s + self.per_token_s * sum(tokens) + self.per_square_s * squares


class Emulation(msgspec.Struct, frozen=True):
    """`cores` that this machine does not have: decoding sleeps, for `dilation` times what it takes.

    scale: lengths and sizes of the files were divided; a sample takes so many times what its file took.
    dear: every so many samples one takes three times as long (0: none), as a source of dearer media.
    """

    cores: int
    dilation: float
    scale: float = 1.0
    dear: int = 0

    def full_us(self, sample: int, us: float) -> float:
        """What a sample takes whose file took `us`, not yet dilated. Opening a file takes no longer for a
        longer one."""
        opening = min(OPENING_US, us / 2)
        full = opening + (us - opening) * self.scale
        return full * (3 if self.dear and sample % self.dear == 0 else 1)


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Columns over the samples of an index; the place is the sample's id.

    tokens        what windows are computed from
    nbytes        of the decoded fields, as the recipe describes them
    declared_us   CPU time of decoding as describe predicts it
    recorded_us   as it was measured once on this machine; emulated decoding sleeps for it
    """

    tokens: tuple[int, ...]
    nbytes: tuple[int, ...]
    declared_us: tuple[int, ...]
    recorded_us: tuple[int, ...]


@functools.cache
def read_rows(path: str) -> Rows:
    """The rows of a file, once in a process."""
    return msgspec.json.decode(Path(path).read_bytes(), type=Rows)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A workload on a node. The same for all systems, and for all ranks.

    index, recipe     the samples, and how they are decoded: systems load this recipe and call its fill; in
                      the emulated tier it is emulate.Emulated, and sleeps
    rows              file of the `Rows`
    ranks, batch      accelerators of the node; samples that each takes in a micro-batch
    micro_batches     of a step; ranks wait for one another after the last
    cores             of this machine, that decoding is to be pinned to
    emulated          None: decoding is real
    lookahead         batches a rank may have at once, that which it computes on included
    lookahead_bytes   the same in bytes, of the largest samples: for systems that count so
    level_bytes       of a sample with which a ring counts batches (emulate.Level), not bytes
    steps, warm_up    that count; that come before and do not
    regroup           steps of a window of our plan
    skew              every rank streams samples of its own (`plans.shard`), those of the first being dear
    storage_s         a file's first byte takes so long; no CPU time (the recipe waits, not the system)
    """

    workload: str
    index: str
    recipe: RecipeSpec
    rows: str
    samples: int
    ranks: int
    batch: int
    micro_batches: int = 1
    cores: tuple[int, ...]
    emulated: Emulation | None = None
    lookahead: int
    lookahead_bytes: int
    level_bytes: int
    window: Window
    steps: int
    warm_up: int
    seed: int
    regroup: int = 8
    skew: bool = False
    storage_s: float = 0.0

    @property
    def decoders(self) -> int:
        """Cores that decode, real or emulated; no system has more decode processes, but for one a rank."""
        return self.emulated.cores if self.emulated else len(self.cores)

    @property
    def dilation(self) -> float:
        """By how much time is stretched; 1 in the real tier."""
        return self.emulated.dilation if self.emulated else 1.0

    def decode_s(self, sample: int, recorded_us: int) -> float:
        """CPU seconds that a sample takes, dilated."""
        us = self.emulated.full_us(sample, recorded_us) if self.emulated else recorded_us
        return us * 1e-6 * self.dilation

    @property
    def all_steps(self) -> int:
        """Steps of a run."""
        return self.warm_up + self.steps


class Variant(msgspec.Struct, frozen=True):
    """A setting that an expert would try; of all variants of a system the best is kept.

    `options` are the system's own.
    """

    name: str
    options: dict[str, int | float | str] = {}


class Train(msgspec.Struct, frozen=True, kw_only=True):
    """Told to a rank process: train a case once, from a variant of a system.

    barrier: the path of the socket at which ranks meet (bench/ablate/barrier.py). checksums: of the pixels,
    too, which takes time.
    """

    system: str
    case: Case
    variant: Variant
    rank: int
    facts: Facts
    barrier: str
    checksums: bool


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A micro-batch of a rank. Times are of the monotonic clock, which all processes share, and dilated.

    wait      in next()                          window   for which the accelerator was busy
    done_at   all ranks have come                ids      of the samples, in their order
    tokens    of the samples                     decode   CPU seconds that they were recorded with, dilated
    crcs      of every sample's values, in the order of `ids`; none without checksums
    """

    asked_at_s: float
    wait_s: float
    window_s: float
    done_at_s: float
    epoch: int
    ids: tuple[int, ...]
    tokens: int
    decode_s: float
    crcs: tuple[int, ...] = ()


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's answer. first_batch: from the request to the first batch, starting the system's parts in the
    rank included; seconds, dilated. `error`: what went wrong, and `steps` is what there was before."""

    steps: tuple[Step, ...]
    first_batch_s: float
    error: str = ""
