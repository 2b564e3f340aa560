"""Loaders over PyTorch datasets, whose code runs in the pool instead of in workers of their own."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from torch.utils.data import IterableDataset, default_collate, default_convert

from libhelix import place
from libhelix.batch import Batch
from libhelix.errors import HelixWarning, MediaError, UsageError
from libhelix.index.numbered import numbered
from libhelix.loader import Loader
from libhelix.plan.rows import MAX_BATCH_BYTES
from libhelix.plan.window import FILLER
from libhelix.recipe import MAX_FIELDS, Rng, Sample
from libhelix.recipes.chains import DatasetChain
from libhelix.recipes.dataset import (
    PAYLOAD,
    DatasetBatch,
    DatasetSample,
    FieldOf,
    OfOne,
    as_array,
    flattened,
    seeded,
)
from libhelix.recipes.parcel import opened
from libhelix.recipes.stored import found, stored
from libhelix.wire.settings import FixedBatch

INERT = {
    "num_workers": 0,
    "pin_memory": False,
    "pin_memory_device": "",
    "prefetch_factor": None,
    "persistent_workers": False,
    "timeout": 0,
    "multiprocessing_context": None,
    "generator": None,
    "in_order": True,
}
"""Arguments of a DataLoader that mean nothing here, and their defaults."""
REFUSED = {
    "sampler": "the loader shuffles (shuffle=, seed=) and shares samples out among ranks; leave it out",
    "batch_sampler": "the loader makes the batches; give batch_size=, or let collate_fn= join what it likes",
    "worker_init_fn": "workers are the daemon's; do it where the dataset is first used",
}
_TELLS_WITHIN = 4
"""Steps after which helixd has told all ranks that a sample failed, and more."""
ENDLESS = 4096
"""Batches of each stream in an epoch, by micro-batches, where samples have no end."""
PROBED = 2
"""Whole batches made beforehand to learn how large they are, where that is not said."""


class TorchLoader(Loader):
    """A Loader that gives what a DataLoader over the same dataset would give."""

    def __init__(self, source: str, rebuild: Callable[[Batch], Any], **options: Any) -> None:
        super().__init__(source, **options)
        self._rebuild = rebuild

    def __enter__(self) -> TorchLoader:
        return self

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__()

    def _next_batch(self, run: int) -> Any:
        batch = super()._next_batch(run)
        if self._settings.on_bad == "raise":
            self._raise_bad(batch, run)
        return self._rebuild(batch)

    def _raise_bad(self, batch: Batch, run: int) -> None:
        """Raise for a sample that failed now. helixd does so a step or two later, when all ranks know it."""
        bad = [r.id for r in batch.records if not r.valid and r.id != FILLER]
        for _ in range(_TELLS_WITHIN if bad else 0):
            super()._next_batch(run)
        if bad:
            raise MediaError(f"sample {bad[0]} failed, and the epoch ended before it was said why")


def over_dataset(
    dataset: Any,
    *,
    batch_size: int | None,
    collate_fn: Callable[[list[Any]], Any] | str | None,
    drop_last: bool,
    shuffle: bool,
    max_bytes: int | None,
    options: dict[str, Any],
) -> TorchLoader:
    """What Loader.from_torch returns."""
    shuffle = bool(shuffle)  # DataLoader's own default is None
    streams = options.get("num_workers", 0) or 1  # of each rank, where samples have no numbers
    importable = options.get("backend", "daemon") != "inline"
    iterable = isinstance(dataset, IterableDataset)
    name = stored(dataset, "dataset", importable=importable, copied=iterable)
    live = found(name, True)
    if isinstance(live, IterableDataset):
        options.pop("num_workers", None)
    _leave_aside(options)
    if isinstance(live, IterableDataset):
        return _over_streams(
            name,
            live,
            batch_size,
            collate_fn,
            drop_last=drop_last,
            shuffle=shuffle,
            max_bytes=max_bytes,
            importable=importable,
            streams=streams,
            options={"on_bad": "raise", **options},
        )
    samples = _length(live)
    if batch_size is not None and not 1 <= batch_size <= samples:
        raise UsageError(f"batch_size={batch_size}, and the dataset has {samples} samples; choose another")
    known_as = _known_as(name)
    options = {"on_bad": "raise", **options}
    if batch_size is not None and collate_fn in (None, default_collate):
        probe = _probed(live, options.get("seed", 0))
        fields = _fields_of(probe)
        if fields is not None:
            options["end"] = _end(samples, batch_size, drop_last, options)
            options |= {"recipe": DatasetSample(name, fields), "batching": FixedBatch(batch_size)}
            return TorchLoader(
                numbered(samples, known_as, "sample"), _Rebuilt(probe), shuffle=shuffle, **options
            )
    _check_whole(options, max_bytes)
    collate = _collating(collate_fn, batch_size, importable=importable)
    size = batch_size or 1
    batches = samples // size if drop_last else -(-samples // size)
    options["end"] = _end(batches, 1, drop_last, options)
    whole = DatasetBatch(name, samples, size, shuffle, collate, max_bytes or 0)
    if max_bytes is None:
        whole = _with_learned_size(whole, batches, options.get("seed", 0))
    options |= {"recipe": whole, "batching": FixedBatch(1), "shuffle": False}
    return TorchLoader(numbered(batches, known_as, "batch"), _whole, **options)


def _over_streams(
    name: str,
    live: Any,
    batch_size: int | None,
    collate_fn: Callable[[list[Any]], Any] | str | None,
    *,
    drop_last: bool,
    shuffle: bool,
    max_bytes: int | None,
    importable: bool,
    streams: int,
    options: dict[str, Any],
) -> TorchLoader:
    """A loader over a dataset that can only be iterated: `streams` of it for each rank."""
    if shuffle:
        raise UsageError("shuffle=: the dataset says in which order its samples come; shuffle there")
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"batch_size={batch_size} must be at least 1, or None for samples as they are")
    if streams < 1:
        raise UsageError(f"num_workers={streams}: each rank needs a stream; give 1 or more")
    _check_whole(options, max_bytes)
    where = _place(options)
    size, total = batch_size or 1, streams * where.size
    samples = _told_length(live)
    if samples is None and options.get("epochs", 1) is not None:
        raise UsageError(
            f"{type(live).__name__} does not say how long it is; give it __len__, or epochs=None: without "
            "end, and what is over begins anew"
        )
    per_epoch = 0 if samples is not None else ENDLESS * int(options.get("micro_batches", 1))
    batches = total * per_epoch if samples is None else _of_streams(samples, total, size, drop_last)
    if batches < 1:
        raise UsageError(
            f"{samples} samples in {total} streams make no batch of {size}; give a smaller num_workers= or "
            "batch_size="
        )
    collate = _collating(collate_fn, batch_size, importable=importable)
    recipe = DatasetChain(name, total, per_epoch, size, drop_last, collate, max_bytes or 0)
    seed = options.get("seed", 0)
    probed = min(PROBED, batches) if max_bytes is None else min(1, total - 1)
    sizes = [recipe.parcel(k, seed, 0).nbytes for k in range(probed)]
    if total > 1 and not recipe.asked():
        warnings.warn(
            f"{type(live).__name__} does not ask torch.utils.data.get_worker_info() which stream it is, and "
            f"gives all {total} the same samples",
            HelixWarning,
            stacklevel=4,
        )
    room = 2 * max(sizes) + (1 << 16) if max_bytes is None else max_bytes
    recipe = msgspec.structs.replace(recipe, max_bytes=room)  # what was gone through here goes with the other
    options["end"] = _end(batches, 1, drop_last, options)
    options |= {"recipe": recipe, "batching": FixedBatch(1), "shuffle": False}
    return TorchLoader(numbered(batches, _known_as(name), "batch"), _whole, **options)


def _of_streams(samples: int, streams: int, size: int, drop_last: bool) -> int:
    """Batches of streams that have every n-th sample each."""
    longer, least = samples % streams, samples // streams
    of = [n // size if drop_last else -(-n // size) for n in (least + 1, least)]
    return longer * of[0] + (streams - longer) * of[1]


def _collating(collate_fn: Any, batch_size: int | None, *, importable: bool) -> str:
    """The name of what makes a batch of samples; without batch_size, of a sample."""
    default = default_convert if batch_size is None else default_collate
    name = stored(default if collate_fn is None else collate_fn, "collate_fn", importable=importable)
    return stored(OfOne(name), "collate_fn", importable=importable) if batch_size is None else name


def _known_as(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def _check_whole(options: Mapping[str, Any], max_bytes: int | None) -> None:
    """Raise UsageError for what cannot be had of batches that are made whole."""
    if max_bytes is not None and not 1 <= max_bytes <= MAX_BATCH_BYTES:
        raise UsageError(f"max_bytes={max_bytes} must be from 1 to {MAX_BATCH_BYTES}")
    if options["on_bad"] != "raise":
        raise UsageError(f"on_bad={options['on_bad']!r}: a batch that is made whole has no samples to mask")
    if options.get("device") is not None:
        raise UsageError(
            "device=: a batch that is made whole is an object of yours, and not copied ahead; move it in the "
            "loop"
        )


def _leave_aside(options: dict[str, Any]) -> None:
    """Take a DataLoader's own arguments out; warn of what is without effect, refuse what would have one."""
    for name, cure in REFUSED.items():
        if options.pop(name, None) is not None:
            raise UsageError(f"{name}=: {cure}")
    without = [name for name, default in INERT.items() if options.pop(name, default) != default]
    if without:
        warnings.warn(
            f"{', '.join(without)}: without effect here; samples are made on the cores that the daemon owns, "
            "ring= says how many batches ahead, and seed= what is drawn",
            HelixWarning,
            stacklevel=4,
        )


def _length(dataset: Any) -> int:
    if not hasattr(dataset, "__getitem__"):
        if hasattr(dataset, "batch_sampler"):
            raise UsageError(
                "from_torch wants the dataset of a DataLoader, not that itself: give its .dataset"
            )
        raise UsageError(
            f"{type(dataset).__name__} is no dataset: it has no __getitem__, and is no "
            "torch.utils.data.IterableDataset"
        )
    length = _told_length(dataset)
    if length is None:
        raise UsageError(f"{type(dataset).__name__} does not say how long it is; give it __len__")
    return length


def _told_length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _end(units: int, size: int, drop_last: bool, options: Mapping[str, Any]) -> str:
    """What becomes of the rest of an epoch. Raises UsageError where some ranks would have nothing."""
    if drop_last:
        return "drop"
    where = _place(options)
    ranks, micro = where.size, int(options.get("micro_batches", 1))
    if ranks * micro > 1 and units % (size * ranks * micro):
        raise UsageError(
            f"{units} do not divide into steps of {size} x {ranks} ranks x {micro} micro-batches, and some "
            "would have none in the last; give drop_last=True, which leaves out the rest of an epoch"
        )
    return "pad"


def _place(options: Mapping[str, Any]) -> place.Place:
    rank, of, mesh = (options.get(name) for name in ("dp_rank", "dp_size", "mesh"))
    return place.resolve(rank, of, options.get("replica", 0), options.get("replicas", 1), mesh)


def _probed(dataset: Any, seed: int) -> Any:
    with seeded(Rng(seed, 0, 0).bits()):
        return dataset[0]


def _fields_of(sample: Any) -> tuple[FieldOf, ...] | None:
    """The fields of a sample; None where it has values that are no arrays, or more than a sample may have."""
    fields = []
    for name, leaf in flattened(sample):
        value = as_array(leaf)
        if value is None:
            return None
        fields.append(FieldOf(name, value[0], tuple(value[1].shape)))
    return tuple(fields) if 1 <= len(fields) <= MAX_FIELDS else None


def _with_learned_size(recipe: DatasetBatch, batches: int, seed: int) -> DatasetBatch:
    """With room for twice the largest of the first batches."""
    largest = 0
    for k in range(min(PROBED, batches)):
        desc = recipe.describe(Sample(k, str(k), ()), Rng(seed, 0, k))
        largest = max(largest, recipe.parcel(desc).nbytes)
    return DatasetBatch(
        recipe.dataset, recipe.samples, recipe.size, recipe.shuffle, recipe.collate, 2 * largest + (1 << 16)
    )


def _whole(batch: Batch) -> Any:
    return opened(batch[PAYLOAD][0])


class _Rebuilt:
    """Puts the fields of a batch back into the structure of a sample, as default_collate does."""

    def __init__(self, probe: Any) -> None:
        self._probe = _without_values(probe)

    def __call__(self, batch: Batch) -> Any:
        if batch.fillers:
            for name, value in batch.items():
                batch[name] = value[: batch.num_samples]
        if isinstance(self._probe, Mapping) and list(self._probe) == list(batch):
            return batch
        return self._put(self._probe, "", batch)

    def _put(self, probe: Any, name: str, batch: Batch) -> Any:
        dot = f"{name}." if name else ""
        if isinstance(probe, Mapping):
            return {key: self._put(inner, f"{dot}{key}", batch) for key, inner in probe.items()}
        if isinstance(probe, list | tuple):
            inside = [self._put(inner, f"{dot}{i}", batch) for i, inner in enumerate(probe)]
            return type(probe)(*inside) if hasattr(probe, "_fields") else inside
        return batch[name or "sample"]


def _without_values(sample: Any) -> Any:
    if isinstance(sample, Mapping):
        return {key: _without_values(inner) for key, inner in sample.items()}
    if isinstance(sample, Sequence) and not isinstance(sample, str | bytes):
        inside = [_without_values(inner) for inner in sample]
        return type(sample)(*inside) if hasattr(sample, "_fields") else inside
    return None
