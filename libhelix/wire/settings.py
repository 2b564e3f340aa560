"""What all ranks of a loader must agree on, and how two of them differ."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Text = Annotated[str, Meta(max_length=8192)]
Natural = Annotated[int, Meta(ge=0, lt=1 << 62)]
Positive = Annotated[int, Meta(ge=1, lt=1 << 62)]
Small = Annotated[int, Meta(ge=1, le=1 << 20)]


class Position(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Where in the stream of micro-batches a batch stands; the order of positions is delivery order."""

    epoch: Natural
    step: Natural
    micro: Natural


class RecipeSpec(msgspec.Struct, frozen=True):
    """A recipe as workers find it: `module:qualname`, with plain parameters as JSON."""

    module: Name
    qualname: Name
    params: Annotated[str, Meta(max_length=16384)]

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"


class FixedBatch(msgspec.Struct, frozen=True, tag="fixed", forbid_unknown_fields=True):
    """Every micro-batch holds `samples` samples.

    `max_bytes` caps the bytes of one batch and sizes the ring; None takes it from the shapes: exact where
    they are constant, else 1.5 times the largest batch of the first steps.
    """

    samples: Small
    max_bytes: Positive | None = None


class Settings(msgspec.Struct, frozen=True):
    """One loader's settings. Ranks that differ in any of them are refused, both of them."""

    recipe: RecipeSpec
    index_fingerprint: Annotated[str, Meta(max_length=128)]
    index_samples: Natural
    batching: FixedBatch
    seed: Annotated[int, Meta(ge=-(1 << 62), lt=1 << 62)]
    shuffle: bool
    dp_size: Small
    replicas: Small
    micro_batches: Small
    ring: Small
    on_bad: Literal["mask", "raise"]


class IndexRef(msgspec.Struct, frozen=True):
    """Where workers find the index and the media below its root. Ranks may name different paths to it."""

    path: Annotated[str, Meta(max_length=4096)]
    root: Annotated[str, Meta(max_length=4096)]


def differences(ours: Settings, theirs: Settings) -> list[str]:
    """'recipe.size (224, 224) here, (256, 256) there' for every leaf in which two settings differ."""
    found: list[str] = []
    _compare("", _plain(ours), _plain(theirs), found)
    return found


def _plain(settings: Settings) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(settings)
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
