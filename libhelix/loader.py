"""The iterator of a training process."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import torch

from libhelix import place
from libhelix.batch import Batch
from libhelix.client import Client, ConnectionLost, client_for, service_socket
from libhelix.errors import DaemonUnreachable, RecipeNotImportable, Stalled, UsageError
from libhelix.index.cache import open_or_build
from libhelix.index.read import Index
from libhelix.lease import Arena, tensors
from libhelix.plan.steps import StepPlan
from libhelix.recipe import Recipe
from libhelix.session import Attachment
from libhelix.wire import codec
from libhelix.wire import messages as m
from libhelix.wire.layout import read_table
from libhelix.wire.settings import FixedBatch, IndexRef, Position, RecipeSpec, Settings

RECOVERIES = 3
"""Times that a loader looks for another daemon without having got a batch from the last."""


class HelixWarning(UserWarning):
    """Something that costs speed or samples, and does not stop the training."""


class Loader:
    """Batches of this rank, decoded by helixd.

    source         an index (.arrow), or media files and directories, which are indexed and cached
    recipe         how samples become tensors
    batching       FixedBatch(n): every batch has n samples
    seed, shuffle  the order of every epoch
    name           tells the loaders of a process apart ("train", "eval")
    epochs         how many epochs one iteration covers; None: without end
    dp_rank, dp_size    this data-parallel rank; by default what torch.distributed or the launcher says
    replica, replicas   processes that share this rank's batches (tensor or pipeline parallel)
    micro_batches  batches per rank and step (gradient accumulation)
    ring           batches of memory; by default two steps of micro-batches and one more
    on_bad         "mask" a sample that cannot be decoded, or "raise" on every rank at the same step
    job            what the ranks of a job have in common; by default what the launcher says
    timeout_s      how long `next()` waits before it raises Stalled

    Nothing starts before the first `next()`. Iterating again is the next epoch; `len` counts the batches of
    one iteration. Leave it with `close()` or `with`; a process that ends without leaks nothing.
    """

    def __init__(
        self,
        source: str | Path | Sequence[str | Path],
        *,
        recipe: Recipe,
        batching: FixedBatch,
        seed: int = 0,
        shuffle: bool = True,
        name: str = "train",
        epochs: int | None = 1,
        dp_rank: int | None = None,
        dp_size: int | None = None,
        replica: int = 0,
        replicas: int = 1,
        micro_batches: int = 1,
        ring: int | None = None,
        on_bad: Literal["mask", "raise"] = "mask",
        job: str | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        for label, value in (("replicas", replicas), ("micro_batches", micro_batches), ("ring", ring)):
            if value is not None and value < 1:
                raise UsageError(f"{label}={value} must be at least 1")
        if epochs is not None and epochs < 1:
            raise UsageError(f"epochs={epochs} must be at least 1, or None for a stream without end")
        if not 0 <= replica < replicas:
            raise UsageError(f"replica {replica} is not in [0, {replicas}), the processes of a rank")
        spec = recipe_spec(recipe)
        where = place.resolve(dp_rank, dp_size, replicas)
        self._index = open_or_build(source)
        self._settings = _checked(
            Settings(
                recipe=spec,
                index_fingerprint=self._index.fingerprint,
                index_samples=len(self._index),
                batching=batching,
                seed=seed,
                shuffle=shuffle,
                dp_size=where.size,
                replicas=replicas,
                micro_batches=micro_batches,
                ring=ring if ring is not None else 2 * micro_batches + 1,
                on_bad=on_bad,
            )
        )
        self._plan = StepPlan(self._settings)
        self.name = name
        self._rank, self._replica = where.rank, replica
        self._epochs = epochs
        self._job = place.job_name(job, where.size * replicas)
        self._timeout_s = timeout_s
        self._next = Position(0, 0, 0)
        self._run = 0
        self._closed = False
        self._warned_copy = False
        self._link: _Link | None = None
        self._max_bytes: int | None = None

    # ---- iterating ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches of one iteration: epochs x steps x micro-batches. TypeError where it has no end."""
        if self._epochs is None:
            raise TypeError("a loader with epochs=None has no length")
        return self._epochs * self._plan.steps_per_epoch * self._settings.micro_batches

    def __iter__(self) -> Iterator[Batch]:
        """The next epoch, or epochs; one that was left in the middle is not gone back to."""
        if self._next.step or self._next.micro:
            self.set_epoch(self._next.epoch + 1)
        self._run += 1
        return self._iterate(self._run)

    def _iterate(self, run: int) -> Iterator[Batch]:
        end = None if self._epochs is None else self._next.epoch + self._epochs
        while end is None or self._next.epoch < end:
            if run != self._run:
                raise UsageError(f"loader {self.name!r}: iterated again meanwhile; this iterator is over")
            yield self._next_batch()

    def set_epoch(self, epoch: int) -> None:
        """Go on at the start of an epoch; what was decoded ahead for another is dropped."""
        if epoch < 0:
            raise UsageError(f"epoch {epoch} is negative")
        start = Position(epoch, 0, 0)
        if start == self._next:
            return
        self._next = start
        link = self._link
        if link is not None and not link.client.lost:
            link.attachment.seek += 1
            with contextlib.suppress(ConnectionLost):
                for release in link.attachment.forget_ready():
                    link.client.send(release)
                link.client.send(m.Seek(link.attachment.loader, start, link.attachment.seek))

    def start(self) -> None:
        """Attach now, so that decoding begins before the first `next()`."""
        deadline = time.monotonic() + self._timeout_s
        self._attached(deadline)

    def _next_batch(self) -> Batch:
        began = time.monotonic()
        deadline = began + self._timeout_s
        recoveries = 0
        while True:
            link = self._attached(deadline)
            try:
                ready = self._wait_ready(link, deadline)
                waited_us = int((time.monotonic() - began) * 1e6)
                link.client.send(m.Took(link.attachment.loader, ready.at, waited_us))
                break
            except ConnectionLost:
                self._unlink()
                recoveries += 1
                if recoveries > RECOVERIES:
                    raise DaemonUnreachable(
                        f"loader {self.name!r}: helixd went away {recoveries} times without a batch; its "
                        "messages are on stderr of the trainers"
                    ) from None
                self._warn("helixd went away; another one takes over at the same position")
        batch = self._build(link, ready)
        self._next = self._plan.after(self._next)
        return batch

    def _wait_ready(self, link: _Link, deadline: float) -> m.Ready:
        attachment, found = link.attachment, []

        def take() -> bool:
            ready = attachment.take(self._next)
            if ready is not None:
                found.append(ready)
            return bool(found)

        try:
            if not link.client.wait(take, 0.0):
                link.client.send(m.Ask(attachment.loader, self._next))
                if not link.client.wait(take, max(0.0, deadline - time.monotonic())):
                    raise Stalled(
                        f"loader {self.name!r}: no batch for step {self._next.step} of epoch "
                        f"{self._next.epoch} within {self._timeout_s:.0f} s; helixd is alive and has not "
                        "finished it: is storage hanging, or a sample far longer than the rest?"
                    )
        finally:
            while attachment.warnings:
                self._warn(attachment.warnings.popleft())
        return found[0]

    # ---- attaching ---------------------------------------------------------------------------------

    def _attached(self, deadline: float) -> _Link:
        if self._closed:
            raise UsageError(f"loader {self.name!r} is closed")
        link = self._link
        if link is not None and link.client.pid != os.getpid():
            raise UsageError(
                f"loader {self.name!r} belongs to process {link.client.pid}; a forked child needs its own"
            )
        if link is not None and not link.client.lost:
            return link
        recoveries = 0
        while True:
            self._unlink()
            try:
                self._link = self._attach(deadline)
                return self._link
            except ConnectionLost:
                recoveries += 1
                if recoveries > RECOVERIES:
                    raise DaemonUnreachable(
                        f"loader {self.name!r}: helixd went away {recoveries} times while it was attached to"
                    ) from None

    def _attach(self, deadline: float) -> _Link:
        client = client_for(self._job, service_socket())
        link = _Link(self, client)
        self._link = link
        attachment = link.attachment
        client.send(
            m.Attach(
                loader=attachment.loader,
                name=self.name,
                dp_rank=self._rank,
                replica=self._replica,
                settings=self._settings,
                index=IndexRef(os.path.abspath(self._index.path), self._index.root),
                sys_path=_import_path(),
                start=self._next,
                max_bytes=self._max_bytes,
            )
        )

        def answered() -> bool:
            if attachment.failure is not None:
                raise attachment.error()
            return attachment.state == "serving"

        if not client.wait(answered, max(0.0, deadline - time.monotonic())):
            raise Stalled(
                f"loader {self.name!r}: not attached within {self._timeout_s:.0f} s; helixd answers, but the "
                "first samples are not described or the ring's memory is not there"
            )
        self._max_bytes = attachment.max_bytes
        return link

    def _unlink(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.finalizer()

    def close(self) -> None:
        """Leave the daemon. Batches that are still held stay valid. Never waits for long."""
        self._closed = True
        self._run += 1
        self._unlink()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- batches -----------------------------------------------------------------------------------

    def _build(self, link: _Link, ready: m.Ready) -> Batch:
        attachment, arena = link.attachment, link.arena
        assert arena is not None
        release = codec.encode(m.Release(attachment.loader, ready.generation))
        if attachment.may_hold(ready):
            attachment.held[ready.generation] = (ready.offset, ready.nbytes)
            give_back = partial(_give_back, link.client, attachment.held, ready.generation, release)
            extent = arena.lease(ready.offset, ready.nbytes, give_back)
        else:
            gc.collect()  # batches in reference cycles would be copied around for ever
            extent = arena.copy(ready.offset, ready.nbytes)
            link.client.release(release)
            self._warn_copy(attachment)
        return _batch(ready, attachment.schema, extent, self._index)

    def _warn_copy(self, attachment: Attachment) -> None:
        if self._warned_copy:
            return
        self._warned_copy = True
        held = len(attachment.held)
        self._warn(
            f"rank {self._rank} holds {held} batches of a ring of {self._settings.ring}: further ones are "
            f"private copies, which costs a copy each; set ring={2 * held + 1}, or let batches go"
        )

    def _warn(self, text: str) -> None:
        warnings.warn(f"loader {self.name!r}: {text}", HelixWarning, stacklevel=3)


class _Link:
    """A loader's attachment to one daemon, and its ring there. Detached when the loader is forgotten."""

    def __init__(self, loader: Loader, client: Client) -> None:
        self.client = client
        self.arena: Arena | None = None
        self.attachment = client.new_attachment(self._on_arena)
        self.finalizer = weakref.finalize(loader, client.detach, self.attachment)
        self.finalizer.atexit = False  # the daemon sees our end

    def _on_arena(self, descriptor: int) -> None:
        self.arena = Arena(descriptor, self.attachment.arena_bytes)


def _give_back(client: Client, held: dict[int, tuple[int, int]], generation: int, release: bytes) -> None:
    held.pop(generation, None)
    client.release(release)


def _batch(ready: m.Ready, schema: m.Schema, extent: memoryview, index: Index) -> Batch:
    at, size = ready.table
    begin = ready.offset
    records = read_table(schema, extent[at - begin : at - begin + size], ready.samples)
    fields, bounds = tensors(extent, ready, schema, records)
    ids = tuple(record.id for record in records)
    return Batch(
        fields,
        epoch=ready.at.epoch,
        step=ready.at.step,
        micro=ready.at.micro,
        ids=ids,
        valid=torch.tensor([record.valid for record in records]),
        shapes={
            spec.name: [record.true_shapes[i] for record in records]
            for i, spec in enumerate(schema)
            if spec.layout == "pad"
        },
        num_samples=ready.samples,
        global_samples=ready.global_samples,
        costs=ready.costs,
        global_costs=ready.global_costs,
        host=bounds,
        _keys=lambda: tuple(index[i].key for i in ids),
    )


def recipe_spec(recipe: Recipe) -> RecipeSpec:
    """How workers find a recipe. Raises UsageError, and RecipeNotImportable for one they cannot find."""
    if not isinstance(recipe, Recipe):
        raise UsageError(
            f"recipe={recipe!r} is no libhelix.Recipe; subclass it, or use one of libhelix.recipes"
        )
    cls = type(recipe)
    name = f"{cls.__module__}:{cls.__qualname__}"
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        raise RecipeNotImportable(f"{name}: workers import recipes by that name; move it to a module")
    found: object = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not cls:
        raise RecipeNotImportable(f"{name}: that name is {found!r}; workers would import the wrong one")
    try:
        params = msgspec.json.encode(recipe).decode()
    except (TypeError, msgspec.EncodeError) as e:
        raise UsageError(f"{name}: parameters must be plain values ({e})") from e
    return RecipeSpec(cls.__module__, cls.__qualname__, params)


def _checked(settings: Settings) -> Settings:
    """The settings, if they can be sent; their limits are those of the wire."""
    try:
        return msgspec.convert(msgspec.to_builtins(settings), Settings)
    except msgspec.ValidationError as e:
        raise UsageError(f"a setting is out of bounds: {e}") from e


def _import_path() -> tuple[str, ...]:
    """Where this process imports from, for workers to find the same modules."""
    return tuple(os.path.abspath(p) for p in sys.path if p == "" or os.path.exists(p))[:256]
