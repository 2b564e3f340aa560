"""What a training process imports. Lazy, so that daemon and workers can use the parts without torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from libhelix._version import __version__

if TYPE_CHECKING:
    from libhelix import recipes
    from libhelix.batch import Batch
    from libhelix.errors import (
        Conflict,
        DaemonUnreachable,
        HelixError,
        HelixWarning,
        IndexProblem,
        MediaError,
        OutOfSharedMemory,
        Oversize,
        ProtocolError,
        QuotaExceeded,
        RecipeError,
        RecipeNotImportable,
        ResumeMismatch,
        RingFull,
        Stalled,
        TooManyBadSamples,
        UsageError,
        WorkerHostLost,
    )
    from libhelix.loader import Loader
    from libhelix.mixture import Mixture
    from libhelix.rebalancing import rebalance
    from libhelix.recipe import (
        Descriptor,
        Field,
        Item,
        Pack,
        Pad,
        Part,
        Ragged,
        Recipe,
        Rng,
        Sample,
        Stack,
    )
    from libhelix.replaying import replay
    from libhelix.wire.settings import BadBudget, Buckets, FixedBatch, Packed, TokenBudget

__all__ = [
    "BadBudget",
    "Batch",
    "Buckets",
    "Conflict",
    "DaemonUnreachable",
    "Descriptor",
    "Field",
    "FixedBatch",
    "HelixError",
    "HelixWarning",
    "IndexProblem",
    "Item",
    "Loader",
    "MediaError",
    "Mixture",
    "OutOfSharedMemory",
    "Oversize",
    "Pack",
    "Packed",
    "Pad",
    "Part",
    "ProtocolError",
    "QuotaExceeded",
    "Ragged",
    "Recipe",
    "RecipeError",
    "RecipeNotImportable",
    "ResumeMismatch",
    "RingFull",
    "Rng",
    "Sample",
    "Stack",
    "Stalled",
    "TokenBudget",
    "TooManyBadSamples",
    "UsageError",
    "WorkerHostLost",
    "__version__",
    "rebalance",
    "recipes",
    "replay",
]

_ERRORS = (
    "Conflict",
    "DaemonUnreachable",
    "HelixError",
    "IndexProblem",
    "MediaError",
    "OutOfSharedMemory",
    "Oversize",
    "ProtocolError",
    "QuotaExceeded",
    "RecipeError",
    "RecipeNotImportable",
    "ResumeMismatch",
    "RingFull",
    "Stalled",
    "TooManyBadSamples",
    "UsageError",
    "WorkerHostLost",
)
_HOMES = {
    "BadBudget": "libhelix.wire.settings",
    "Batch": "libhelix.batch",
    "Buckets": "libhelix.wire.settings",
    "FixedBatch": "libhelix.wire.settings",
    "Packed": "libhelix.wire.settings",
    "TokenBudget": "libhelix.wire.settings",
    "HelixWarning": "libhelix.errors",
    "Loader": "libhelix.loader",
    "Mixture": "libhelix.mixture",
    "rebalance": "libhelix.rebalancing",
    "replay": "libhelix.replaying",
    **dict.fromkeys(_ERRORS, "libhelix.errors"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'libhelix' has no attribute {name!r}")
    if name == "recipes":
        return importlib.import_module("libhelix.recipes")
    return getattr(importlib.import_module(_HOMES.get(name, "libhelix.recipe")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
