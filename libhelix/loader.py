"""The iterator of a training process."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from libhelix import place
from libhelix._version import __version__
from libhelix.accelerator import TorchAccelerator, resolved
from libhelix.bad_samples import note
from libhelix.batch import Batch, Dealt
from libhelix.device import OnDevice
from libhelix.errors import HelixWarning, IndexProblem, Oversize, RecipeNotImportable, UsageError
from libhelix.index.quarantine import quarantined
from libhelix.inline import Inline
from libhelix.meeting import meeting_of
from libhelix.mixture import Mixture
from libhelix.plan.forecast import steps_of
from libhelix.plan.interleave import parts_of
from libhelix.plan.journal import Journal
from libhelix.plan.planner import MAX_EPOCH, Planner
from libhelix.plan.progress import Progress
from libhelix.plan.state import decoded, restore, state_of
from libhelix.recipe import Recipe
from libhelix.recipes.rows import stored_rows
from libhelix.served import Served
from libhelix.session import named, naming
from libhelix.sources import chains_of, check_length, checked, opened
from libhelix.wire import messages as m
from libhelix.wire.settings import (
    BadBudget,
    Base,
    Batching,
    Position,
    RecipeSpec,
    Segment,
    Settings,
    Start,
)

if TYPE_CHECKING:
    from libhelix.torch_loader import TorchLoader


class Loader:
    """Batches of this rank, decoded by helixd.

    source         an index (.arrow), or files, folders, patterns, tars, JSONL (docs/formats.md), which are
                   indexed and cached; or a Mixture of these, with weights
    recipe         how samples become tensors
    batching       FixedBatch(n): every batch has n samples; TokenBudget(tokens): as many as fit;
                   Packed(length): packs of one length; Buckets(compute): samples of one group, as many as
                   their size allows
    seed, shuffle  the order of every epoch; shuffle_block keeps so many neighbours together
    name           tells the loaders of a process apart ("train", "eval")
    epochs         how many epochs one iteration covers; None: without end
    dp_rank, dp_size    this data-parallel rank; by default what torch.distributed or the launcher says
    replica, replicas   processes that share this rank's batches (tensor or pipeline parallel)
    mesh           the whole DeviceMesh, which says all four: ranks along dimensions named dp, dp_replicate,
                   dp_shard, data or fsdp have batches of their own, those along tp, pp, cp or sp share them
    micro_batches  batches per rank and step (gradient accumulation)
    ring           batches of memory; by default two steps of micro-batches and one more
    end            "drop" the samples that complete no step at the end of an epoch, or "pad" the last step
                   with masked fillers (id -1), so that each sample comes once, unless the batching skips it
    on_bad         "mask" a sample that cannot be decoded; "replace" it by another of its window that fits,
                   or mask it where none does; or "raise" on every rank at the same step
    bad_budget     how many bad samples are masked or replaced before the loader fails: BadBudget(count=10,
                   rate=0.001, in_a_row=100)
    backend        "daemon", or "inline": decode here when asked, for notebooks and unit tests
    device         "auto", or a device of torch: batches come as its tensors, copied ahead on another
                   stream (docs/devices.md); None: host tensors. device_prefetch: batches copied ahead
    to_device      by field, what is made of its tensor on the device: {"video": device.Normalize(...)}; on
                   the CPU where "auto" finds no accelerator, or device="cpu"
    placement      "static", or "dynamic": with ranks on several nodes, a node that decodes slowly is given
                   the samples of a step that are lighter to decode, ranks' declared costs as before
    job            what the ranks of a job have in common; by default what the launcher says
    timeout_s      how long `next()` waits before it raises Stalled

    Nothing starts before the first `next()`. Iterating again is the next epoch; `len` counts the batches of
    one iteration. Leave it with `close()` or `with`; a process that ends without leaks nothing.
    """

    def __init__(
        self,
        source: str | Path | Sequence[str | Path] | Mixture,
        *,
        recipe: Recipe,
        batching: Batching,
        seed: int = 0,
        shuffle: bool = True,
        shuffle_block: int = 1,
        name: str = "train",
        epochs: int | None = 1,
        dp_rank: int | None = None,
        dp_size: int | None = None,
        replica: int = 0,
        replicas: int = 1,
        mesh: Any = None,
        micro_batches: int = 1,
        ring: int | None = None,
        on_bad: Literal["mask", "replace", "raise"] = "mask",
        bad_budget: BadBudget = BadBudget(),  # noqa: B008 - frozen
        end: Literal["drop", "pad"] = "drop",
        backend: Literal["daemon", "inline"] = "daemon",
        device: Any = None,
        device_prefetch: int = 2,
        to_device: Mapping[str, Callable[[Any], Any]] | None = None,
        placement: Literal["static", "dynamic"] = "static",
        job: str | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        if backend not in ("daemon", "inline"):
            raise UsageError(f'backend={backend!r}; use "daemon" or "inline"')
        if epochs is not None and epochs < 1:
            raise UsageError(f"epochs={epochs} must be at least 1, or None for a stream without end")
        if not isinstance(batching, Batching):
            raise UsageError(
                f"batching={batching!r} is none of FixedBatch, TokenBudget, Packed and Buckets; "
                "write batching=hx.FixedBatch(8)"
            )
        if not 0 <= device_prefetch <= 64:
            raise UsageError(f"device_prefetch={device_prefetch} must lie in [0, 64]")
        if to_device is not None and device is None:
            raise UsageError('to_device= works on device tensors; give device="auto" as well')
        if end not in ("drop", "pad"):
            raise UsageError(f'end={end!r}; use "drop" or "pad"')
        if on_bad not in ("mask", "replace", "raise"):
            raise UsageError(f'on_bad={on_bad!r}; use "mask", "replace" or "raise"')
        if placement not in ("static", "dynamic"):
            raise UsageError(f'placement={placement!r}; use "static" or "dynamic"')
        if not isinstance(bad_budget, BadBudget):
            raise UsageError(f"bad_budget={bad_budget!r}; write bad_budget=hx.BadBudget(count=100)")
        spec = recipe_spec(recipe, importable=backend == "daemon")
        if not 1 <= len(name) <= 256:
            raise UsageError(f"name={name!r} must have 1 to 256 characters")
        where = place.resolve(dp_rank, dp_size, replica, replicas, mesh)
        self._rank = where.rank
        self._unchecked = where if dp_rank is None and mesh is None else None
        self._mixture = source if isinstance(source, Mixture) else None
        index, mixed = opened(source)
        self._index = index
        self._recipe = recipe
        self._settings = checked(
            Settings(
                recipe=spec,
                index_fingerprint=index.fingerprint,
                index_samples=len(index),
                batching=batching,
                seed=seed,
                shuffle=shuffle,
                dp_size=where.size,
                replicas=where.replicas,
                micro_batches=micro_batches,
                ring=2 * micro_batches + 1 if ring is None else ring,
                on_bad=on_bad,
                bad_budget=bad_budget,
                end=end,
                shuffle_block=shuffle_block,
                quarantine=quarantined(index),
                placement=placement,
                chains=chains_of(recipe, batching, shuffle=shuffle, placement=placement),
                **mixed,
            )
        )
        check_length(self._settings, index.indexes)
        self.name = name
        for one in index.indexes:
            if one.refused and one.sources != (one.path,):  # nobody was told: it was indexed here
                self._warn_left_out(one.refused, one.sources)
        self._journal = Journal(self._settings.schedule)
        self._planner = Planner(self._settings)
        self._progress = Progress(self._planner)
        self._epochs = epochs
        self._steps: dict[int, int] = {}
        self._first_epoch = 0
        self._restored = False
        self._run = 0
        self._closed = False
        self._told_unnoted = False
        self._source: Served | Inline | OnDevice
        host: Served | Inline
        if backend == "inline":
            host = Inline(
                rank=where.rank,
                settings=self._settings,
                index=index,
                recipe=recipe,
                warn=self._warn,
                note=self._note,
            )
        else:
            host = Served(
                name=name,
                job=place.job_name(job, where.size * where.replicas),
                rank=where.rank,
                replica=where.replica,
                settings=self._settings,
                index=index,
                timeout_s=timeout_s,
                warn=self._warn,
                note=self._note,
                meeting=meeting_of(name, where.rank, self._settings, timeout_s, warn=self._warn),
            )
        self._served = host if isinstance(host, Served) else None
        self._source = host
        found = resolved(device) if device is not None else None
        self._on_host = dict(to_device or {}) if found is None else {}
        if found is not None:
            self._source = OnDevice(
                host, TorchAccelerator(found), device_prefetch, to_device or {}, timeout_s
            )

    @classmethod
    def from_torch(
        cls,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        *,
        collate_fn: Callable[[list[Any]], Any] | str | None = None,
        drop_last: bool = False,
        max_bytes: int | None = None,
        **options: Any,
    ) -> TorchLoader:
        """What `DataLoader(dataset, batch_size, shuffle, ...)` gives, made in the pool; `options` as above.

        dataset      picklable, with __getitem__ and __len__; or an IterableDataset, of which each rank reads
                     num_workers= streams; or "module:function", the name of its maker
        collate_fn   joins the samples of a batch, in the pool, whole; without one, values are stacked
        max_bytes    of a batch that collate_fn makes; by default twice the larger of the first two

        A DataLoader's other arguments are accepted: those without effect are warned about, those that would
        have another are refused. `on_bad` is "raise" by default. docs/recipes.md has the rules.
        """
        from libhelix.torch_loader import over_dataset

        return over_dataset(
            dataset,
            batch_size=batch_size,
            collate_fn=collate_fn,
            drop_last=drop_last,
            shuffle=shuffle,
            max_bytes=max_bytes,
            options=options,
        )

    # ---- iterating ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches of one iteration, from its beginning: steps x micro-batches of all its epochs.

        TypeError where it has no end, and where steps depend on samples that have no rows beside the index.
        """
        if self._epochs is None:
            raise TypeError("a loader with epochs=None has no length")
        first, at = self._first_epoch, self._progress.at.epoch
        if at >= first + self._epochs:  # one has ended; it is the next that is asked about
            first = at
        return self._settings.micro_batches * sum(
            self._steps_of(epoch) for epoch in range(first, first + self._epochs)
        )

    @property
    def epochs(self) -> int | None:
        """How many epochs one iteration covers; None: without end."""
        return self._epochs

    @property
    def ranks(self) -> int:
        """How many processes have this loader: data-parallel ranks, and replicas of each."""
        return self._settings.dp_size * self._settings.replicas

    @property
    def equal_epochs(self) -> bool:
        """Whether all epochs have as many steps, whatever their samples are."""
        return self._planner.steps_per_epoch is not None

    def _steps_of(self, epoch: int) -> int:
        """Steps of an epoch, planned from stored rows where they depend on its samples."""
        if self._planner.steps_per_epoch is not None:
            return self._planner.steps_per_epoch
        if epoch not in self._steps:
            try:
                rows = stored_rows(
                    self._index.indexes,
                    self._recipe,
                    seed=self._settings.seed,
                    epoch=epoch,
                    mixed=bool(self._settings.sources),
                    batching=self._settings.batching,
                )
            except IndexProblem as e:
                raise TypeError(str(e)) from e
            try:
                self._steps[epoch] = steps_of(self._planner, epoch, rows)
            except Oversize as e:
                raise naming(e, lambda i: self._index[i].key) from e
        return self._steps[epoch]

    def __iter__(self) -> Iterator[Batch]:
        """The next epoch, or epochs; one that was left in the middle is gone back to only after a restore."""
        if not self._restored:
            at = self._progress.at
            if at.step or at.micro:
                self._go_to(_epoch_start(at.epoch + 1))
            self._first_epoch = self._progress.at.epoch
        self._run += 1
        return _Iteration(self, self._run)

    def _next_batch(self, run: int) -> Batch:
        if self._closed:
            raise UsageError(f"loader {self.name!r} is closed")
        if run != self._run:
            raise UsageError(
                f"loader {self.name!r}: iterated again or restored meanwhile, and this iterator is over; "
                "take a new one: iter(loader)"
            )
        if self._epochs is not None and self._progress.at.epoch >= self._first_epoch + self._epochs:
            raise StopIteration
        self._check_place()
        batch, following, window = self._source.next(self._progress.start)
        try:
            for name, transform in self._on_host.items():
                batch[name] = _transformed(batch, name, transform)
        except BaseException:
            self._source.seek(self._progress.start)  # the next call gives the same batch
            raise
        batch._dealt = Dealt(self._rank, self._settings.dp_size, self._planner.multiples)
        self._restored = False  # only now: some trainers call iter() twice before they take one
        self._progress.took(following, window)
        return batch

    def _check_place(self) -> None:
        """Once, when batches are wanted: torch.distributed may have been initialised since."""
        if self._unchecked is not None:
            amiss = place.check_still(self._unchecked)
            self._unchecked = None
            if amiss is not None:
                self._warn(amiss)

    def set_epoch(self, epoch: int) -> None:
        """Go on at the start of an epoch; what was decoded ahead for another is dropped.

        The epoch that a restored state stands in is gone on with where it stands.
        """
        if not 0 <= epoch < MAX_EPOCH:
            raise UsageError(f"epoch {epoch} must lie in [0, {MAX_EPOCH})")
        if self._restored and epoch == self._progress.at.epoch:
            return
        self._restored = False
        self._first_epoch = epoch
        self._go_to(_epoch_start(epoch))

    def _go_to(self, start: Start) -> None:
        if start != self._progress.start:
            self._progress.go_to(start)
            self._source.seek(start)

    @property
    def device_tier(self) -> str | None:
        """How batches reach the device: "registered" (it reads the ring), "staged" (through pinned memory) or
        "plain"; None for host tensors, and before the first batch."""
        return self._source.tier if isinstance(self._source, OnDevice) else None

    def start(self) -> None:
        """Attach now, so that decoding begins before the first `next()`."""
        if self._closed:
            raise UsageError(f"loader {self.name!r} is closed")
        self._check_place()
        self._source.start(self._progress.start)

    def compute(self) -> AbstractContextManager[None]:
        """Say what of a step is computing: `with loader.compute(): loss.backward()`.

        Not needed; without it the time between two `next()` counts, and what ranks wait for one another is
        told apart by their costs. It helps where steps also do other things, such as evaluating.
        """
        return self._source.computing()

    def set_weights(self, weights: Mapping[str | Path, float]) -> None:
        """Mix by other weights from here on: {source: weight}, 0 for sources that are left out.

        What is left of the window in progress comes as it was planned; the weights hold from the first draw
        after it to the next change, by another call or by the mixture's own `schedule`, whose later entries
        stay. Every rank and replica calls it in the same step with the same weights, once all have the batch
        of that step: after the backward pass is a good time. States have it, so that resuming gives exactly
        the rest. What was decoded ahead is dropped: it costs the wait of a start.
        Raises UsageError for sources that the mixture does not have, and weights that mean nothing.
        """
        if self._closed:
            raise UsageError(f"loader {self.name!r} is closed")
        if self._mixture is None:
            raise UsageError(f"loader {self.name!r} has no sources to weigh; make it with hx.Mixture(...)")
        each = self._mixture.each(weights, "set_weights")
        parts_of(each, "set_weights")
        untaken = self._progress.untaken()
        if untaken is None:
            raise UsageError(
                "set_weights: the state was saved inside a step, and does not say where its window ends; "
                "take a batch first"
            )
        first = self._progress.at.epoch * self._planner.draws + untaken
        self._go_on_with(self._journal.entered(Segment(first, each)))

    def _go_on_with(self, journal: Journal) -> None:
        """Mix as a journal says. Its windows up to here are those that there are."""
        if journal == self._journal:
            return
        self._change(schedule=journal.in_force)
        self._journal = journal

    def _change(self, **changed: Any) -> None:
        """Go on with other settings from here."""
        settings = msgspec.structs.replace(self._settings, **changed)
        check_length(settings, self._index.indexes)
        planner = Planner(settings)
        self._settings, self._planner = settings, planner
        self._progress.planner = planner
        self._steps.clear()
        self._source.go_on_with(settings)

    # ---- state -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where this loader stands: after the last batch that `next()` returned.

        Local, the same on all ranks, plain JSON types; valid at any time, also before the first batch.
        """
        max_bytes = self._served.max_bytes if self._served is not None else None
        progress, first = self._progress, self._first_epoch
        return state_of(self._settings, progress, self._journal, first, __version__, max_bytes)

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on where a state stands: the next iteration is the rest of the one it was saved in.

        An iterator taken before is over: its `next()` raises UsageError.
        Raises ResumeMismatch for a state of other data, order or, unless `strict=False`, another recipe.
        """
        began, planner = decoded(state), self._planner
        if not began.between_epochs and began.quarantine != self._settings.quarantine:
            # An epoch is ended as it was begun.
            with contextlib.suppress(UsageError):  # of other data: which, restoring says
                planner = Planner(msgspec.structs.replace(self._settings, quarantine=began.quarantine))
        restored = restore(state, planner, self._journal.schedule, strict)
        if planner is not self._planner:
            self._change(quarantine=began.quarantine)
        self._go_on_with(restored.journal)
        self._run += 1
        if self._served is not None and restored.max_bytes is not None:
            self._served.max_bytes = restored.max_bytes
        if restored.start != self._progress.start:
            self._source.seek(restored.start)
        self._progress.restored(restored.start, restored.rest, restored.left_out, restored.left_out_before)
        self._first_epoch = restored.first_epoch
        # An iteration that had ended is not gone back to: the next one begins.
        over = self._epochs is not None and self._progress.at.epoch >= self._first_epoch + self._epochs
        self._restored = not over

    def planned_as(self, quarantine: Sequence[int]) -> Inline:
        """The batches of any position, planned with the samples in quarantine that a state had."""
        if not isinstance(self._source, Inline):
            raise UsageError('only a loader with backend="inline" goes where it likes')
        if tuple(quarantine) != self._settings.quarantine:
            self._change(quarantine=tuple(quarantine))
        return self._source

    # ---- leaving -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the daemon. Batches that are still held stay valid. Never waits for long."""
        self._closed = True
        self._source.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise UsageError(
            f"loader {self.name!r} cannot be copied or sent to another process: it has a place at a daemon; "
            "make one there, and give it state_dict() to go on where this one stands"
        )

    def _note(self, bad: m.Bad) -> None:
        """A sample is bad: warn of it, and keep it in the user's list. Where it is an error it says so."""
        sample = self._index[bad.sample]
        if bad.note:
            try:
                note(self._index.source_of(bad.sample), sample, bad, self.name)
            except OSError as e:
                if not self._told_unnoted:
                    self._warn(
                        f"bad samples are not noted: {e}; set HELIX_CACHE to a folder that is writable and "
                        "has room"
                    )
                self._told_unnoted = True
        what = {"mask": "a sample is masked", "replace": "a bad sample is replaced, or masked if none fits"}
        if self._settings.on_bad != "raise":
            self._warn(named(f"{what[self._settings.on_bad]}: {bad.text}", bad.sample, lambda _: sample.key))

    def _warn_left_out(self, count: int, sources: Sequence[str]) -> None:
        what = f"{count:,} files or parts" if count > 1 else "a file or part"
        names = " ".join(map(str, sources))
        self._warn(
            f"{what} of {names} cannot be used and left out; helixctl index {names} -o x.arrow names them"
        )

    def _warn(self, text: str) -> None:
        warnings.warn(f"loader {self.name!r}: {text}", HelixWarning, stacklevel=_outside())


class _Iteration:
    """One iteration of a loader. Not a generator: after an error that is survived, `next` tries again."""

    def __init__(self, loader: Loader, run: int) -> None:
        self._loader = loader
        self._run = run

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Batch:
        return self._loader._next_batch(self._run)


def _transformed(batch: Batch, name: str, transform: Callable[[Any], Any]) -> Any:
    """A field of a host batch as `to_device` wants it. Raises UsageError for one that there is not."""
    if name not in batch:
        raise UsageError(f"to_device={[name]}: the recipe has the fields {sorted(batch)}")
    value = batch[name]
    return [transform(one) for one in value] if isinstance(value, list) else transform(value)


def _epoch_start(epoch: int) -> Start:
    return Start(Base(epoch, 0, 0), Position(epoch, 0, 0))


def _outside() -> int:
    """The stack level of the first caller outside this package, for warnings to point at."""
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("libhelix."):
        frame, level = frame.f_back, level + 1  # type: ignore[assignment]  # None ends the loop
    return level


def recipe_spec(recipe: Recipe, *, importable: bool) -> RecipeSpec:
    """A recipe by name and parameters. Raises UsageError for what is none; if it has to be `importable`,
    RecipeNotImportable for one that workers cannot find by that name."""
    if not isinstance(recipe, Recipe):
        raise UsageError(
            f"recipe={recipe!r} is no libhelix.Recipe; use one of libhelix.recipes, or subclass it"
        )
    cls = type(recipe)
    name = f"{cls.__module__}:{cls.__qualname__}"
    if importable:
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
