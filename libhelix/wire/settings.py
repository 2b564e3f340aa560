"""What all ranks of a loader must agree on, and how two of them differ."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Text = Annotated[str, Meta(max_length=8192)]
Natural = Annotated[int, Meta(ge=0, lt=1 << 62)]
Positive = Annotated[int, Meta(ge=1, lt=1 << 62)]
Small = Annotated[int, Meta(ge=1, le=1 << 20)]
Window = Annotated[int, Meta(ge=1, le=1024)]


MAX_BITS_BYTES = 50_000
MOST_QUARANTINED = 4096
"""Left-over draws of a window, a bit each, that a message can carry."""


class Position(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """Where in the stream of micro-batches a batch stands; the order of positions is delivery order."""

    epoch: Natural
    step: Natural
    micro: Natural


class Base(msgspec.Struct, frozen=True, array_like=True, cache_hash=True, gc=False):
    """Where planning stands between two windows: the next step, the next draw of the epoch's order, and the
    draws before it that are still to come."""

    epoch: Natural
    step: Natural
    draw: Natural
    carried: Annotated[tuple[Natural, ...], Meta(max_length=1 << 20)] = ()


class PackedBase(msgspec.Struct, frozen=True, array_like=True):
    """A Base in little room: its carried draws are bits, from draw `first` on."""

    epoch: Natural
    step: Natural
    draw: Natural
    first: Natural
    bits: Annotated[bytes, Meta(max_length=MAX_BITS_BYTES)]

    @classmethod
    def of(cls, base: Base) -> PackedBase:
        """A base, packed."""
        first = min(base.carried, default=0)
        bits = bytearray((max(base.carried, default=first) - first) // 8 + 1 if base.carried else 0)
        for draw in base.carried:
            bits[(draw - first) >> 3] |= 1 << ((draw - first) & 7)
        return cls(base.epoch, base.step, base.draw, first, bytes(bits))

    def unpacked(self) -> Base:
        """The base."""
        carried = (
            self.first + 8 * at + bit
            for at, byte in enumerate(self.bits)
            if byte
            for bit in range(8)
            if byte >> bit & 1
        )
        return Base(self.epoch, self.step, self.draw, tuple(carried))


class Start(msgspec.Struct, frozen=True, array_like=True):
    """Where a consumer goes on: at a position of the windows that are planned from a base on."""

    base: Base
    at: Position

    def packed(self) -> PackedStart:
        """For a message."""
        return PackedStart(PackedBase.of(self.base), self.at)


class PackedStart(msgspec.Struct, frozen=True, array_like=True):
    """A Start as it travels."""

    base: PackedBase
    at: Position

    def unpacked(self) -> Start:
        """The start."""
        return Start(self.base.unpacked(), self.at)


class RecipeSpec(msgspec.Struct, frozen=True):
    """A recipe as workers find it: `module:qualname`, with plain parameters as JSON."""

    module: Name
    qualname: Name
    params: Annotated[str, Meta(max_length=16384)]

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"


class FixedBatch(msgspec.Struct, frozen=True, tag="fixed", forbid_unknown_fields=True):
    """Every micro-batch holds `samples` samples.

    per_step   samples of a step, whatever the number of ranks; fillers stand in the places that are left
    regroup    window of so many steps, in which samples of like cost come together; 1 leaves each step the
               samples that the order gives it, and only shares them out among ranks by cost
    max_bytes  caps the bytes of one batch and sizes the ring; None takes it from the shapes: exact where they
               are constant, else 1.5 times the largest batch of the first steps
    """

    samples: Small
    max_bytes: Positive | None = None
    per_step: Small | None = None
    regroup: Window = 1


class TokenBudget(msgspec.Struct, frozen=True, tag="tokens", forbid_unknown_fields=True):
    """Every micro-batch holds as many samples as fit `tokens`, the cost that recipes declare by that name.

    max_samples, max_bytes   further caps; max_bytes also sizes the ring
    per_step                 micro-batches with samples in a step, whatever the number of ranks
    regroup                  window of so many steps, in which samples are brought together so that ranks of a
                             step carry alike; 1 keeps each step to what the order gives it
    oversize                 what becomes of a sample that no micro-batch can hold: "error"; "skip" it; or
                             "shrink" it, as far as its recipe can (`Recipe.shrink`)
    """

    tokens: Positive
    max_samples: Small = 1 << 20
    max_bytes: Positive | None = None
    per_step: Small | None = None
    regroup: Window = 8
    oversize: Literal["error", "skip", "shrink"] = "error"


class Packed(msgspec.Struct, frozen=True, tag="packed", forbid_unknown_fields=True):
    """Every micro-batch is a pack of at most `length` tokens: samples one after the other in packed fields.

    pad_to       packed fields that count tokens are padded to a multiple of it, and those that count patches
                 to max_patches; pad_to=length gives every pack one shape
    max_patches  cap on the declared cost "patches"
    The rest as for TokenBudget.
    """

    length: Positive
    pad_to: Positive | None = None
    max_patches: Positive | None = None
    max_bytes: Positive | None = None
    per_step: Small | None = None
    regroup: Window = 8
    oversize: Literal["error", "skip", "shrink"] = "error"


class Buckets(msgspec.Struct, frozen=True, tag="buckets", forbid_unknown_fields=True):
    """Every micro-batch holds samples of one `group`, which `describe` gives, such as one size and length.

    A group whose samples have S tokens has batches of B = compute / S**power samples, one at least and
    `max_samples` at most. `same_kind="step"`: all ranks of a step have the same group.
    """

    compute: Positive
    power: Annotated[float, Meta(ge=0.0, le=4.0)] = 1.0
    max_samples: Small = 1 << 20
    max_bytes: Positive | None = None
    per_step: Small | None = None
    regroup: Window = 8
    same_kind: Literal["batch", "step"] = "batch"


Batching = FixedBatch | TokenBudget | Packed | Buckets


class BadBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bad samples that a job stands. Past it the loader raises TooManyBadSamples on every rank.

    count, rate  in an epoch: so many, or this share of its samples, whichever is more
    in_a_row     one after the other, with no good one between: storage or a shard has gone
    """

    count: Natural = 10
    rate: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.001
    in_a_row: Positive = 100

    def allowed(self, samples: int) -> int:
        """Bad samples allowed in an epoch of so many."""
        return max(self.count, int(self.rate * samples))


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """From place `first` of the stream of all epochs' draws on, sources are drawn by `weights`, one each."""

    first: Natural
    weights: Annotated[tuple[float, ...], Meta(max_length=4096)]


class Settings(msgspec.Struct, frozen=True):
    """One loader's settings. Ranks that differ in any of them are refused, both of them."""

    recipe: RecipeSpec
    index_fingerprint: Annotated[str, Meta(max_length=128)]
    index_samples: Natural
    batching: Batching
    seed: Annotated[int, Meta(ge=-(1 << 62), lt=1 << 62)]
    shuffle: bool
    dp_size: Small
    replicas: Small
    micro_batches: Small
    ring: Small
    on_bad: Literal["mask", "replace", "raise"]
    bad_budget: BadBudget = BadBudget()
    end: Literal["drop", "pad"] = "drop"
    sources: Annotated[tuple[Natural, ...], Meta(max_length=4096)] = ()
    """Samples of each source, one after the other; none said: all are one source."""
    schedule: Annotated[tuple[Segment, ...], Meta(max_length=4096)] = ()
    epoch_draws: Positive | None = None
    shuffle_block: Positive = 1
    quarantine: Annotated[tuple[Natural, ...], Meta(max_length=MOST_QUARANTINED)] = ()
    """Samples that are not drawn, rising."""
    placement: Literal["static", "dynamic"] = "static"
    """Whether measured load may change which rank of a step has which of its samples."""
    chains: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    """Samples with equal numbers modulo `chains` are made by one worker, in order; 0: by any, in any."""


class IndexRef(msgspec.Struct, frozen=True):
    """Where workers find the index and the media below its root. Ranks may name different paths to it."""

    path: Annotated[str, Meta(max_length=4096)]
    root: Annotated[str, Meta(max_length=4096)]


def differences(ours: Settings, theirs: Settings) -> list[str]:
    """'recipe.size (224, 224) here, (256, 256) there' for every leaf in which two settings differ."""
    found: list[str] = []
    _compare("", _plain(ours), _plain(theirs), found)
    return found


def fingerprint(settings: Settings) -> int:
    """A number that two settings share where they do not differ, and hardly otherwise."""
    digest = hashlib.blake2b(msgspec.json.encode(_plain(settings), order="sorted"), digest_size=7)
    return int.from_bytes(digest.digest(), "big")


def _plain(settings: Settings) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    # Each change of the weights apart: a long schedule differs in few of them.
    plain |= {f"weights from draw {first} on": weights for first, weights in plain.pop("schedule")}
    try:
        plain["recipe"]["params"] = msgspec.json.decode(settings.recipe.params)
    except msgspec.DecodeError:
        pass  # compared as the text that it is
    return plain


def _compare(path: str, a: Any, b: Any, found: list[str]) -> None:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            _compare(f"{path}.{key}" if path else str(key), a.get(key), b.get(key), found)
    elif a != b:
        found.append(f"{path} {a!r} there, {b!r} here")
