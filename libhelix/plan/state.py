"""Where a loader stands, as a few plain values: the same on every rank, restored without reading media."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from libhelix.errors import ResumeMismatch, UsageError
from libhelix.plan.journal import Journal, Schedule
from libhelix.plan.planner import Planner
from libhelix.plan.progress import Progress
from libhelix.wire.settings import (
    Base,
    Batching,
    FixedBatch,
    Natural,
    PackedBase,
    Position,
    Positive,
    RecipeSpec,
    Segment,
    Settings,
    Start,
)

FORMAT = 3


class SavedBase(msgspec.Struct, frozen=True):
    """A Base: the draws before `draw` that are still to come are bits, from draw `first` on, in base64."""

    epoch: Natural
    step: Natural
    draw: Natural
    first: Natural = 0
    bits: str = ""

    @classmethod
    def of(cls, base: Base) -> SavedBase:
        """A base, saved."""
        packed = PackedBase.of(base)
        return cls(base.epoch, base.step, base.draw, packed.first, base64.b64encode(packed.bits).decode())

    def restored(self) -> Base:
        """The base. Raises UsageError where the bits are damaged."""
        try:
            bits = base64.b64decode(self.bits, validate=True)
        except ValueError as e:
            raise UsageError(f"the state is damaged: {e}; pass what state_dict() returned") from e
        return PackedBase(self.epoch, self.step, self.draw, self.first, bits).unpacked()


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The batch that comes next, the window that it is in, the epoch that the iteration began with, and what
    all of them belong to.

    `rest` is where planning goes on with other ranks; None inside a step, which cannot be divided anew.
    `schedule` has the weights that the loader was made with, `journal` those that were set since.
    `left_out` says what epochs did not deliver, `left_out_before` how many samples earlier ones did not.
    `max_bytes` is the largest batch that the ring was made for, once that is known.
    """

    format: Annotated[int, Meta(ge=1)]
    version: str
    epoch: Natural
    step: Natural
    micro: Natural
    first_epoch: Natural
    base: SavedBase
    rest: SavedBase | None
    left_out: tuple[SavedBase, ...]
    left_out_before: Natural
    index: str
    samples: Natural
    sources: tuple[Natural, ...]
    schedule: tuple[Segment, ...]
    epoch_draws: Positive
    shuffle_block: Positive
    recipe: RecipeSpec
    batching: Batching
    end: str
    seed: int
    shuffle: bool
    dp_size: Positive
    micro_batches: Positive
    max_bytes: Positive | None = None
    journal: tuple[Segment, ...] = ()
    quarantine: tuple[Natural, ...] = ()

    @property
    def between_epochs(self) -> bool:
        """Whether nothing of its epoch was delivered: another quarantine may begin with it."""
        return self.step == self.micro == 0

    @property
    def weights(self) -> Journal:
        """How sources are mixed."""
        return Journal(self.schedule, self.journal)


class Restored(NamedTuple):
    """Where a loader goes on."""

    start: Start
    first_epoch: int
    max_bytes: int | None
    rest: Base | None
    left_out: list[Base]
    left_out_before: int
    journal: Journal


def state_of(
    settings: Settings,
    progress: Progress,
    journal: Journal,
    first_epoch: int,
    version: str,
    max_bytes: int | None,
) -> dict[str, Any]:
    """A loader's state as plain JSON types. `settings.schedule` is what is in force, by the journal."""
    rest = progress.rest()
    state = State(
        format=FORMAT,
        version=version,
        epoch=progress.at.epoch,
        step=progress.at.step,
        micro=progress.at.micro,
        first_epoch=first_epoch,
        base=SavedBase.of(progress.base),
        rest=SavedBase.of(rest) if rest is not None else None,
        left_out=tuple(SavedBase.of(base) for base in progress.left_out),
        left_out_before=progress.left_out_before,
        index=settings.index_fingerprint,
        samples=settings.index_samples,
        sources=settings.sources,
        schedule=journal.schedule,
        epoch_draws=progress.planner.draws,
        shuffle_block=settings.shuffle_block,
        recipe=settings.recipe,
        batching=settings.batching,
        end=settings.end,
        seed=settings.seed,
        shuffle=settings.shuffle,
        dp_size=settings.dp_size,
        micro_batches=settings.micro_batches,
        max_bytes=max_bytes,
        journal=journal.entries,
        quarantine=settings.quarantine,
    )
    plain: dict[str, Any] = msgspec.to_builtins(state)
    return plain


def restore(saved: Mapping[str, Any], planner: Planner, schedule: Schedule, strict: bool) -> Restored:
    """Where a loader goes on, if the state is one of its data and order; `schedule` is its mixture's own.

    Weights that were set while training are the state's. Other ranks or micro-batches go on with what is
    left, each sample once. Raises UsageError for what is no state, ResumeMismatch for one of another data set
    or version, one saved inside a step that the new ranks divide otherwise, and, if `strict`, one of another
    recipe or batching.
    """
    state = decoded(saved)
    settings, journal = planner.settings, Journal(schedule, state.journal)
    if state.between_epochs and state.quarantine != settings.quarantine:
        state = _begun_with(state, settings.quarantine, planner.draws)
    order = {
        "index": (state.index, settings.index_fingerprint),
        "samples": (state.samples, settings.index_samples),
        "quarantine": (state.quarantine, settings.quarantine),
        "seed": (state.seed, settings.seed),
        "shuffle": (state.shuffle, settings.shuffle),
        "shuffle_block": (state.shuffle_block, settings.shuffle_block),
        "sources": (state.sources, settings.sources),
        "weights": (_plain(state.schedule), _plain(schedule)),
        "samples of an epoch": (state.epoch_draws, planner.draws),
    }
    content = _content_differences(state, settings)
    different = [f"{name} {a!r} -> {b!r}" for name, (a, b) in order.items() if a != b]
    if different or (strict and content):
        cure = "restore with the settings that it was saved with"
        if not different:
            cure += ", or pass strict=False to go on with the new ones"
        raise ResumeMismatch(f"{'; '.join(different + content)}: {cure}")
    left_out = [saved_.restored() for saved_ in state.left_out]
    rest = state.rest.restored() if state.rest is not None else None
    for base in (*left_out, *((rest,) if rest is not None else ())):
        if base.draw > planner.draws or any(d >= planner.draws for d in base.carried):
            raise UsageError(f"the state is damaged: draw {base.draw} of {planner.draws} in an epoch")
    if state.micro and settings.placement == "dynamic":
        raise ResumeMismatch(
            f"the state was saved inside a step (micro-batch {state.micro}), and "
            'placement="dynamic" may deal the rest of it out to other ranks now: save after a whole step'
        )
    geometry = (state.dp_size, state.micro_batches) == (settings.dp_size, settings.micro_batches)
    if geometry and state.batching == settings.batching and state.end == settings.end:
        start = planner.settled(Start(state.base.restored(), Position(state.epoch, state.step, state.micro)))
        if start is None:
            raise UsageError(f"the state is damaged: no step {state.step} in epoch {state.epoch}")
        return Restored(
            start, state.first_epoch, state.max_bytes, rest, left_out, state.left_out_before, journal
        )
    if rest is None:
        raise ResumeMismatch(
            f"ranks {state.dp_size} -> {settings.dp_size}, micro-batches {state.micro_batches} -> "
            f"{settings.micro_batches}, and the state was saved inside a step (micro-batch {state.micro}), "
            "which cannot be divided anew: save after a whole step, or restore with the same ranks"
        )
    base = planner.settle(rest)
    if base != rest and rest.step:
        left_out.append(rest)
    start = planner.settled(Start(base, Position(base.epoch, base.step, 0)))
    if start is None:
        raise UsageError(f"the state is damaged: {state.rest} is no place in an epoch")
    max_bytes = state.max_bytes if state.batching == settings.batching else None
    return Restored(start, state.first_epoch, max_bytes, None, left_out, state.left_out_before, journal)


def _begun_with(state: State, quarantine: tuple[int, ...], draws: int) -> State:
    """A state from between two epochs, with another quarantine from here on. What earlier epochs left out is
    kept as a number: their draws mean other samples now."""
    before = state.left_out_before
    for base in (saved.restored() for saved in state.left_out):
        before += len(base.carried) + state.epoch_draws - base.draw
    return msgspec.structs.replace(
        state, quarantine=quarantine, epoch_draws=draws, left_out=(), left_out_before=before
    )


def _plain(schedule: Schedule) -> dict[int, tuple[float, ...]]:
    return {segment.first: segment.weights for segment in schedule}


def decoded(saved: Mapping[str, Any]) -> State:
    """What state_dict() returned. Raises UsageError for what is none, ResumeMismatch for other versions."""
    found = saved.get("format") if isinstance(saved, Mapping) else None
    if not isinstance(found, int):
        raise UsageError("that is no state of a loader; pass what state_dict() returned")
    if found != FORMAT:
        cure = "update datahelix" if found > FORMAT else "restore it with the version that saved it"
        raise ResumeMismatch(f"the state has format {found}, this version reads {FORMAT}; {cure}")
    try:
        state = msgspec.convert(saved, State)
        msgspec.json.decode(state.recipe.params, type=dict[str, Any])
        return state
    except msgspec.DecodeError as e:
        raise UsageError(f"the state is damaged: {e}; pass what state_dict() returned") from e


def _content_differences(state: State, settings: Settings) -> list[str]:
    """What the samples are made into, and how they make steps; ranks are not among it."""
    found = []
    if str(state.recipe) != str(settings.recipe):
        found.append(f"recipe {state.recipe} -> {settings.recipe}")
    else:
        a, b = msgspec.json.decode(state.recipe.params), msgspec.json.decode(settings.recipe.params)
        found += _differences("recipe", a, b)
    ours, theirs = msgspec.to_builtins(state.batching), msgspec.to_builtins(settings.batching)
    if isinstance(state.batching, FixedBatch) and isinstance(settings.batching, FixedBatch):
        places = state.dp_size * state.micro_batches, settings.dp_size * settings.micro_batches
        if state.batching.samples * places[0] == settings.batching.samples * places[1]:
            ours["samples"] = theirs["samples"]  # the same steps, shared out otherwise
    found += _differences("batching", ours, theirs)
    if state.end != settings.end:
        found.append(f"end {state.end!r} -> {settings.end!r}")
    return found


def _differences(what: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    return [
        f"{what}.{name} {a.get(name)!r} -> {b.get(name)!r}"
        for name in sorted({*a, *b})
        if a.get(name) != b.get(name)
    ]
