"""What a loader reads: one index, or several with the settings that say how they are mixed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from libhelix.errors import UsageError
from libhelix.index.cache import open_or_build
from libhelix.index.join import Joined
from libhelix.index.read import Index
from libhelix.mixture import Mixture
from libhelix.recipe import Recipe
from libhelix.wire.checking import problem
from libhelix.wire.settings import Batching, FixedBatch, Segment, Settings

MAX_SETTINGS_BYTES = 40_000


def opened(source: str | Path | Sequence[str | Path] | Mixture) -> tuple[Joined, dict[str, Any]]:
    """The samples, and the settings that say how their sources are mixed."""
    if not isinstance(source, Mixture):
        return Joined([open_or_build(source)]), {}
    index = Joined([open_or_build(one) for one in source.weights])
    changes = sorted({0: source.weights, **source.schedule}.items())
    return index, {
        "sources": index.sizes,
        "schedule": tuple(Segment(first, source.each(w, f"schedule[{first}]")) for first, w in changes),
        "epoch_draws": source.epoch_samples,
    }


def check_length(settings: Settings, indexes: Sequence[Index]) -> None:
    """Raise UsageError where the settings do not fit a message; inline takes no more than a daemon does."""
    paths = sum(len(i.path) + len(i.root) for i in indexes)
    if len(msgspec.msgpack.encode(settings)) + paths > MAX_SETTINGS_BYTES:
        raise UsageError(
            f"{len(indexes)} sources and {len(settings.schedule)} weights of a schedule, to which "
            "set_weights adds, are too long for a message: join sources into one index, or shorten paths or "
            "the schedule"
        )


def chains_of(recipe: Recipe, batching: Batching, *, shuffle: bool, placement: str) -> int:
    """The chains of a recipe. Raises UsageError where its samples would not come in their order."""
    chains = recipe.chains()
    in_order = batching == FixedBatch(1, batching.max_bytes, batching.per_step) and not shuffle
    if chains and not (in_order and placement == "static"):
        raise UsageError(
            f"{type(recipe).__name__}: its samples can only be made in their order; give "
            'batching=hx.FixedBatch(1), shuffle=False and no placement="dynamic"'
        )
    return chains


def checked(settings: Settings) -> Settings:
    """The settings, if they can be sent; their limits are those of the wire."""
    try:
        return msgspec.convert(msgspec.to_builtins(settings), Settings)
    except msgspec.ValidationError as e:
        # "Expected `int` >= 1 - at `$.batching.samples`"
        name = str(e).rpartition("$.")[2].rstrip("`").partition("[")[0]
        outer, _, field = name.rpartition(".")
        of = operator.attrgetter(outer)(settings) if outer else settings
        raise UsageError(f"{name}={getattr(of, field)!r}: {problem(e, type(of), field)}") from e
