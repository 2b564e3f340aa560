"""Several sources with weights, as a loader takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from libhelix.errors import UsageError


@dataclass(frozen=True)
class Mixture:
    """Sources (indexes, files or folders) with their weights: at every point of the order each source has had
    its share of the draws, to within one sample.

    epoch_samples   draws of an epoch; None: as many as all sources have samples. Sources go on where the
                    epoch before left them, so that none of their samples comes twice more than another
    schedule        other weights, from so many draws on, counted over all epochs: {0 is the start};
                    `Loader.set_weights` changes them while training
    """

    weights: Mapping[str | Path, float]
    epoch_samples: int | None = None
    schedule: Mapping[int, Mapping[str | Path, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.weights:
            raise UsageError("a mixture has no sources; give {source: weight}")
        for first, weights in self.schedule.items():
            self.each(weights, f"schedule[{first}]")

    def each(self, weights: Mapping[str | Path, float], where: str) -> tuple[float, ...]:
        """The weight of every source, 0 where none is given. Errors call the weights by `where`."""
        strange = [str(name) for name in weights if name not in self.weights]
        if strange:
            raise UsageError(
                f"{where} names {', '.join(strange)}, which the weights do not; all sources have to be there "
                "from the start, with weight 0 if need be"
            )
        return tuple(float(weights.get(one, 0.0)) for one in self.weights)
