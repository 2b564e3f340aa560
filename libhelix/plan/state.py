"""Where a loader stands, as a few plain values: the same on every rank, restored without reading media."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from libhelix.errors import ResumeMismatch, UsageError
from libhelix.plan.steps import StepPlan
from libhelix.wire.settings import FixedBatch, Natural, Position, Positive, RecipeSpec, Settings

FORMAT = 1


class State(msgspec.Struct, frozen=True):
    """The batch that comes next, the epoch that the iteration began with, and what both belong to.

    `max_bytes` is the largest batch that the ring was made for, once that is known.
    """

    format: Annotated[int, Meta(ge=1)]
    version: str
    epoch: Natural
    step: Natural
    micro: Natural
    first_epoch: Natural
    index: str
    samples: Natural
    recipe: RecipeSpec
    batching: FixedBatch
    seed: int
    shuffle: bool
    samples_per_step: Positive
    micro_batches: Positive
    max_bytes: Positive | None = None

    @property
    def position(self) -> Position:
        """The batch that comes next."""
        return Position(self.epoch, self.step, self.micro)


def state_of(
    settings: Settings, at: Position, first_epoch: int, version: str, max_bytes: int | None
) -> dict[str, Any]:
    """A loader's state as plain JSON types."""
    plan = StepPlan(settings)
    state = State(
        format=FORMAT,
        version=version,
        epoch=at.epoch,
        step=at.step,
        micro=at.micro,
        first_epoch=first_epoch,
        index=settings.index_fingerprint,
        samples=settings.index_samples,
        recipe=settings.recipe,
        batching=settings.batching,
        seed=settings.seed,
        shuffle=settings.shuffle,
        samples_per_step=plan.samples_per_step,
        micro_batches=settings.micro_batches,
        max_bytes=max_bytes,
    )
    plain: dict[str, Any] = msgspec.to_builtins(state)
    return plain


def restore(saved: Mapping[str, Any], settings: Settings, strict: bool) -> State:
    """The state, if it is one of this loader's data, order and recipe.

    Raises UsageError for what is no state, ResumeMismatch for one of another data set or a newer version,
    and, if `strict`, of another recipe. What decides which samples a step has must always be the same.
    """
    found = saved.get("format") if isinstance(saved, Mapping) else None
    if not isinstance(found, int):
        raise UsageError("that is no state of a loader; pass what state_dict() returned")
    if found > FORMAT:
        raise ResumeMismatch(f"the state has format {found}, this version reads {FORMAT}; update datahelix")
    try:
        state = msgspec.convert(saved, State)
    except msgspec.ValidationError as e:
        raise UsageError(f"the state is damaged: {e}; pass what state_dict() returned") from e
    order = {
        "index": (state.index, settings.index_fingerprint),
        "samples": (state.samples, settings.index_samples),
        "seed": (state.seed, settings.seed),
        "shuffle": (state.shuffle, settings.shuffle),
        "samples per step": (state.samples_per_step, StepPlan(settings).samples_per_step),
        "micro_batches": (state.micro_batches, settings.micro_batches),
    }
    content = _recipe_differences(state.recipe, settings.recipe) if strict else []
    different = [f"{name} {a!r} -> {b!r}" for name, (a, b) in order.items() if a != b] + content
    if different:
        cure = "restore with the settings that it was saved with"
        if content and len(content) == len(different):
            cure += ", or pass strict=False to go on with the new recipe"
        raise ResumeMismatch(f"{'; '.join(different)}: {cure}")
    if not StepPlan(settings).holds(state.position):
        raise UsageError(f"the state is damaged: no step {state.step} in an epoch")
    return state


def _recipe_differences(ours: RecipeSpec, theirs: RecipeSpec) -> list[str]:
    if str(ours) != str(theirs):
        return [f"recipe {ours} -> {theirs}"]
    a, b = msgspec.json.decode(ours.params), msgspec.json.decode(theirs.params)
    return [
        f"recipe.{name} {a.get(name)!r} -> {b.get(name)!r}"
        for name in sorted({*a, *b})
        if a.get(name) != b.get(name)
    ]
