"""Windows one after the other: which draws each takes, and its steps once their rows are known.

base --open--> Opening --put(row) until it is complete--> plan --> Window --> its `after` is the next base
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from libhelix.errors import Oversize, UsageError
from libhelix.plan import window as w
from libhelix.plan.caps import bucket_size, cost_caps, most_samples, multiples, row_bytes, shrink_caps
from libhelix.plan.mixture import Mixture, order_of
from libhelix.plan.opening import ONE, Opening
from libhelix.plan.placement import place
from libhelix.recipe import nbytes
from libhelix.wire.layout import aligned, record_bytes
from libhelix.wire.messages import FieldSpec, Row
from libhelix.wire.settings import (
    Base,
    Buckets,
    FixedBatch,
    Packed,
    Position,
    Settings,
    Start,
    TokenBudget,
)

MAX_SAMPLES_PER_STEP = 1 << 20
MAX_EPOCH = 1 << 20
_CHUNK, _CHUNKS = 1024, 64
_KEY = 0x57494E444F57


@dataclass(frozen=True)
class Window:
    """Planned steps: `steps[k][micro][rank]` are draws. The first has the number `base.step`."""

    base: Base
    end: int
    """The first draw that no window up to this one has taken."""
    steps: tuple[w.Step, ...]
    after: Base
    dropped: w.Micro
    skipped: w.Micro = ()
    """Those of them that no micro-batch can hold."""

    @property
    def end_position(self) -> Position:
        """The last of its positions."""
        return Position(self.base.epoch, self.base.step + len(self.steps) - 1, len(self.steps[0]) - 1)

    def following(self, at: Position) -> Position:
        """The position that follows one of this window."""
        if at.micro + 1 < len(self.steps[0]):
            return Position(at.epoch, at.step, at.micro + 1)
        if at.step < self.end_position.step:
            return Position(at.epoch, at.step + 1, 0)
        return Position(self.after.epoch, self.after.step, 0)

    def positions(self) -> Iterator[Position]:
        """Its micro-batches, in the order of delivery."""
        for k, step in enumerate(self.steps):
            yield from (Position(self.base.epoch, self.base.step + k, j) for j in range(len(step)))

    def draws(self) -> list[int]:
        """All draws in it, step after step."""
        return [d for step in self.steps for micro in step for rank in micro for d in rank if d != w.FILLER]


class Planner:
    """The plan of a loader. Raises UsageError for settings that give no step."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        batching = settings.batching
        sizes = settings.sources or (settings.index_samples,)
        self._chunks: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.schema: Sequence[FieldSpec] = ()
        """Of the rows, once one is known; caps in bytes need it."""
        self.order = self._order() if sum(sizes) > len(settings.quarantine) else None
        self.draws = self.order.epoch_draws if self.order is not None else 0
        self._caps: tuple[tuple[str, int], ...] = ()
        self._byte_cap: tuple[tuple[str, int], ...] = ()
        self._least_share = 0
        self.waits = isinstance(batching, Buckets) and batching.same_kind == "step"
        """Whether samples wait until their group makes a step."""
        self.by_group = isinstance(batching, Buckets)
        """Whether all samples of a micro-batch are of one group."""
        if isinstance(batching, TokenBudget | Packed):
            self._caps = tuple(cost_caps(batching).items())
            self._least_share = ONE // most_samples(batching)
            if batching.max_bytes is not None:
                self._byte_cap = (("bytes", batching.max_bytes),)
        self._counts = [name for name, _ in self._caps]
        """Costs that a row has to declare."""
        if isinstance(batching, Buckets) and batching.power > 0:
            self._counts.append("tokens")
        self.multiples = multiples(batching)
        places = settings.dp_size * settings.micro_batches
        self.fixed = batching if isinstance(batching, FixedBatch) else None
        if self.fixed is not None:
            self.bins = places
            self.per_step = self.fixed.per_step or places * self.fixed.samples
            room = places * self.fixed.samples
            if self.per_step > room:
                raise UsageError(
                    f"per_step={self.per_step} samples do not fit {settings.dp_size} ranks x "
                    f"{settings.micro_batches} micro-batches x {self.fixed.samples}; raise one of these"
                )
            if self.fixed.per_step and self.fixed.regroup > 1:
                raise UsageError(
                    "FixedBatch(per_step=, regroup=): a step cannot be both independent of the ranks and "
                    "chosen for them; leave one out"
                )
            least = self.per_step
        else:
            self.bins = batching.per_step or places
            if self.bins > places:
                raise UsageError(
                    f"per_step={self.bins} micro-batches do not fit {settings.dp_size} ranks x "
                    f"{settings.micro_batches} micro-batches; raise one of these"
                )
            self.per_step = least = self.bins
            if isinstance(batching, Packed) and batching.pad_to and batching.length % batching.pad_to:
                raise UsageError(
                    f"Packed(length={batching.length}, pad_to={batching.pad_to}): padding could exceed the "
                    "length; make it a multiple of pad_to"
                )
        self.geometry = w.Geometry(settings.dp_size, settings.micro_batches, self.bins)
        self.least = 1 if settings.end == "pad" else least
        """The fewest samples that make a step."""
        if self.per_step > MAX_SAMPLES_PER_STEP:
            raise UsageError(f"a step of {self.per_step} samples; at most {MAX_SAMPLES_PER_STEP} are planned")
        if self.draws < self.least:
            raise UsageError(
                f"the data set has {self.draws} samples and one step takes {least} "
                f"({settings.dp_size} ranks x {settings.micro_batches} micro-batches"
                + (f" x {self.fixed.samples} samples" if self.fixed is not None else ", a sample each")
                + '); use a smaller batch, more data or end="pad"'
            )

    # ---- order -------------------------------------------------------------------------------------

    def _order(self) -> Mixture:
        s = self.settings
        return order_of(
            s.index_samples,
            s.sources,
            s.schedule,
            s.seed,
            shuffle=s.shuffle,
            block=s.shuffle_block,
            epoch_draws=s.epoch_draws,
            without=s.quarantine,
        )

    def ids(self, epoch: int, draws: Sequence[int]) -> list[int]:
        """The samples of draws."""
        return self.drawn(epoch, draws)[0]

    def drawn(self, epoch: int, draws: Sequence[int]) -> tuple[list[int], list[int]]:
        """The samples of draws, and how often each was drawn before."""
        chunks = {number: self._chunk(epoch, number) for number in {d // _CHUNK for d in draws}}
        found = [chunks[d // _CHUNK][d % _CHUNK] for d in draws]
        return [sample for sample, _ in found], [before for _, before in found]

    def _chunk(self, epoch: int, number: int) -> list[tuple[int, int]]:
        # Draws are asked for one window at a time, and looking up a few costs as much as a thousand.
        key = (epoch, number)
        if key not in self._chunks:
            assert self.order is not None, "no step without samples"
            if len(self._chunks) >= _CHUNKS:
                del self._chunks[next(iter(self._chunks))]
            at = np.arange(number * _CHUNK, min((number + 1) * _CHUNK, self.draws), dtype=np.int64)
            ids, occurrences = self.order.draws(epoch, at)
            before = occurrences.tolist() if self.settings.sources else [0] * len(at)  # once in each epoch
            self._chunks[key] = list(zip(ids.tolist(), before))
        return self._chunks[key]

    # ---- counting ----------------------------------------------------------------------------------

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps of an epoch that starts at its beginning; None where they depend on the samples."""
        if self.fixed is None:
            return None
        if self.settings.end == "pad":
            return -(-self.draws // self.per_step)
        return self.draws // self.per_step

    def counted(self, base: Base) -> bool:
        """Whether windows follow from counting: one step each, and nothing left over."""
        return self.fixed is not None and self.fixed.regroup == 1 and not base.carried

    def settled(self, start: Start) -> Start | None:
        """A start as near to its position as counting allows; None where there is no such position."""
        base, at = start.base, start.at
        if (
            base.epoch >= MAX_EPOCH
            or at.epoch != base.epoch
            or at.step < base.step
            or at.micro >= self.settings.micro_batches
        ):
            return None
        bounds = (-1, *base.carried, base.draw, self.draws + 1)
        if any(a >= b for a, b in pairwise(bounds)):
            return None
        if self.counted(base):
            base = Base(base.epoch, at.step, base.draw + (at.step - base.step) * self.per_step)
        return Start(base, at) if self.settle(base) == base else None

    # ---- windows -----------------------------------------------------------------------------------

    def open(self, base: Base) -> Opening:
        """Begin a window."""
        return Opening(self, base)

    def share(self, row: Row) -> int:
        """How much of a micro-batch a row takes, at most `ONE`."""
        batching, share = self.settings.batching, self._least_share
        if isinstance(batching, Buckets):
            return -(-ONE // bucket_size(batching, row, self.schema))
        for name, cap in self._caps:
            if (of_cap := row.costs.get(name, 0) * ONE // cap) > share:
                share = of_cap
        if self._byte_cap and row.shapes:
            share = max(share, row_bytes(self.schema, row) * ONE // self._byte_cap[0][1])
        return share if share <= ONE else 0  # one that no micro-batch can hold is skipped

    def misfit(self, schema: Sequence[FieldSpec]) -> str | None:
        """Why fields of this schema cannot be batched so; None where they can."""
        batching = self.settings.batching
        if not isinstance(batching, Packed) or batching.pad_to is None:
            return None
        if any(spec.counts == "tokens" for spec in schema):
            return None
        return (
            "Packed(pad_to=) pads packed fields that count tokens, and none does; give one the layout "
            'Pack(counts="tokens"), or leave pad_to out'
        )

    def lacks(self, row: Row) -> str | None:
        """What a row does not declare and the batching counts; None where it has all."""
        batching = self.settings.batching
        for name in self._counts:
            if name not in row.costs:
                has = ", ".join(row.costs) or "none"
                return (
                    f"sample {row.id} declares no cost {name!r}, which {type(batching).__name__} counts; it "
                    f"declares {has}"
                )
        return None

    def plan(self, opening: Opening) -> Window:
        """The steps of a complete opening. Raises Oversize where a sample fits no micro-batch."""
        base, batching = opening.base, self.settings.batching
        taken = opening.taken
        rows = [opening.rows[d] for d in taken]
        draws, carried = np.asarray(taken, dtype=np.int64), len(base.carried)
        names = dict.fromkeys(("tokens", "encoder", *(name for name, _ in self._caps)))
        costs = {name: _column(rows, name) for name in names}
        if self._byte_cap:
            costs["bytes"] = np.asarray([row_bytes(self.schema, row) for row in rows], dtype=np.int64)
        over = self._oversize(draws, rows, costs)
        skipped = draws[over].tolist()
        if skipped:
            carried -= int(over[:carried].sum())
            rows = [row for row, out in zip(rows, over.tolist()) if not out]
            draws, costs = draws[~over], {name: column[~over] for name, column in costs.items()}
            if not len(draws) and opening.last and not base.draw:
                raise Oversize(
                    f"all {len(taken)} samples are larger than a micro-batch, such as sample "
                    f"{opening.rows[taken[0]].id}; raise its caps",
                    opening.rows[taken[0]].id,
                )
        ending = w.Ending(opening.last, self.settings.end == "pad")
        key = (self.settings.seed ^ _KEY, base.epoch << 32 ^ base.step)
        room = [max(1, cap - self._padding(rows)) for _, cap in self._byte_cap]
        if room:
            costs["bytes"] = np.minimum(self._padded_bytes(rows), room[0])
        items = w.Items(
            draws,
            _weights(costs["tokens"], costs["encoder"]),
            self._sizes(costs, len(rows)),
            [row.group for row in rows] if isinstance(batching, Buckets) else (),
            carried,
        )
        if self.settings.chains:
            planned = w.plan_in_order(items, self.per_step, self.geometry, ending)
        elif isinstance(batching, FixedBatch):
            planned = w.plan_fixed(items, batching.samples, self.per_step, self.geometry, ending, key)
        elif isinstance(batching, TokenBudget | Packed):
            caps = w.Caps(most_samples(batching), (*(cap for _, cap in self._caps), *room))
            planned = w.plan_capped(items, caps, opening.steps, self.geometry, ending, key)
        else:
            sizes = [bucket_size(batching, row, self.schema) for row in rows]
            planned = w.plan_buckets(items, sizes, batching.same_kind == "step", self.geometry, ending, key)
        return self._window(opening, planned, tuple(skipped))

    def _window(self, opening: Opening, planned: w.Planned, skipped: w.Micro) -> Window:
        base, rest, steps = opening.base, planned.left, planned.steps
        if opening.placement is not None:
            steps = place(steps, opening.rows, opening.placement)
        dropped = (*skipped, *planned.dropped)
        behind = self.draws - opening.end
        if opening.last or len(rest) + behind < self.least:
            beyond = range(opening.end, self.draws)
            return Window(
                base,
                self.draws,
                steps,
                Base(base.epoch + 1, 0, 0),
                (*dropped, *rest, *beyond),
                skipped,
            )
        after = Base(base.epoch, base.step + len(steps), opening.end, tuple(sorted(rest)))
        return Window(base, opening.end, steps, after, dropped, skipped)

    def rest_of(self, window: Window, done: int) -> Base:
        """Where planning goes on after `done` steps of a window, for whatever geometry comes then."""
        if done == len(window.steps):
            return window.after
        ahead = [d for step in window.steps[done:] for micro in step for rank in micro for d in rank]
        # What the old geometry had to leave out may have a place in the new one.
        left = window.after.carried if window.after.epoch == window.base.epoch else ()
        carried = sorted(d for d in (*ahead, *left, *window.dropped) if d != w.FILLER)
        return Base(window.base.epoch, window.base.step + done, window.end, tuple(carried))

    def settle(self, base: Base) -> Base:
        """A base that has a step; the next epoch's, where too little of this one is left."""
        left = len(base.carried) + self.draws - base.draw
        return base if left >= self.least else Base(base.epoch + 1, 0, 0)

    def _oversize(self, draws: w.Ints, rows: Sequence[Row], costs: Mapping[str, w.Ints]) -> NDArray[np.bool_]:
        """Which rows no micro-batch can hold. Raises Oversize where that is an error."""
        batching, over = self.settings.batching, np.zeros(len(rows), dtype=np.bool_)
        for name, cap in (*self._caps, *self._byte_cap):
            found = np.flatnonzero(costs[name] > cap)
            if len(found) and isinstance(batching, TokenBudget | Packed) and batching.oversize != "skip":
                cost, _, i = max(zip(costs[name][found].tolist(), draws[found].tolist(), found.tolist()))
                why, cure = "", 'oversize="skip"'
                if name in shrink_caps(batching):
                    why = f", and recipe {self.settings.recipe} cannot shrink these"
                elif name in cost_caps(batching):
                    cure += ' or "shrink"'
                text = (
                    f"{len(found)} of {len(rows)} samples of a window exceed {cap} {name}, the largest, "
                    f"sample {rows[i].id}, has {cost}{why}; raise that cap, or choose {cure}; helixctl "
                    "describe names all"
                )
                raise Oversize(text, rows[i].id)
            over[found] = True
        return over

    def _padded_bytes(self, rows: Sequence[Row]) -> w.Ints:
        """What rows take in a batch at most: where fields are padded, what the window's largest takes."""
        found = np.full(len(rows), record_bytes(self.schema), dtype=np.int64)
        shaped = np.asarray([bool(row.shapes) for row in rows])  # stored rows of bad samples have no shapes
        known = [row.shapes for row in rows if row.shapes]
        for spec, shapes in zip(self.schema, zip(*known)):
            if spec.layout == "pad":
                found[shaped] += aligned(nbytes(spec.dtype, tuple(map(max, zip(*shapes)))))
            else:
                found[shaped] += np.asarray([aligned(nbytes(spec.dtype, s)) for s in shapes], dtype=np.int64)
        return found

    def _padding(self, rows: Sequence[Row]) -> int:
        """Bytes that packed fields are padded by at most."""
        found = 0
        shapes = next((row.shapes for row in rows if row.shapes), ())
        for spec, shape in zip(self.schema, shapes):
            multiple = self.multiples.get(spec.counts, 1) if spec.counts else 1
            one = (*shape[: spec.axis], 1, *shape[spec.axis + 1 :])
            found += (multiple - 1) * nbytes(spec.dtype, one)
        return found

    def _sizes(self, costs: Mapping[str, w.Ints], n: int) -> w.Ints:
        columns = [costs[name] for name, _ in (*self._caps, *self._byte_cap)]
        return np.stack(columns, axis=1) if columns else np.zeros((n, 0), dtype=np.int64)


def _column(rows: Sequence[Row], name: str) -> w.Ints:
    return np.asarray([row.costs.get(name, 0) for row in rows], dtype=np.int64)


def _weights(tokens: w.Ints, encoder: w.Ints) -> w.Ints:
    """What ranks are balanced by: tokens, and beside them what encoders take, each relative to its mean."""
    if not tokens.any():
        tokens = encoder
    elif encoder.any():
        # Sums and quotients of float64 are the same everywhere, and do not overflow as products of costs may.
        n = float(len(tokens) << 16)
        relative = tokens / float(tokens.sum()) + encoder / float(encoder.sum())
        tokens = np.floor(relative * n).astype(np.int64)
    weights: w.Ints = np.maximum(tokens, 1)
    return weights


def windows_from(
    planner: Planner, base: Base, describe: Callable[[int, int], Row], schema: Sequence[FieldSpec] = ()
) -> Iterator[Window]:
    """Windows from a base to the end of its epoch, where `describe(epoch, sample)` gives rows at once."""
    planner.schema = schema
    rows: Mapping[int, Row] = {}
    epoch = base.epoch
    while base.epoch == epoch:
        opening = planner.open(base)
        while wanted := opening.wants():
            for draw, sample in zip(wanted, planner.ids(epoch, wanted)):
                opening.put(draw, rows.get(draw) or describe(epoch, sample))
        described = dict(opening.rows)
        opening.replace_bad()
        window = planner.plan(opening)
        rows = described | {draw: row for draw, row in rows.items() if draw >= opening.end}
        yield window
        base = window.after


def epoch_windows(
    planner: Planner, base: Base, describe: Callable[[int, int], Row], schema: Sequence[FieldSpec] = ()
) -> list[Window]:
    """All of them."""
    return list(windows_from(planner, base, describe, schema))
