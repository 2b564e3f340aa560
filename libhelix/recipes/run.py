"""Running a recipe: samples to rows, parts of samples to their places in an extent.

Workers do this for helixd, and the inline backend does it in the trainer: the same code, so the same tensors.
"""

from __future__ import annotations

import errno
import importlib
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from libhelix.errors import HelixError, HelixWarning, MediaError, RecipeError, RecipeNotImportable
from libhelix.index.join import Joined
from libhelix.index.read import Index
from libhelix.plan.caps import exceeded
from libhelix.plan.layout import schema_of
from libhelix.recipe import Descriptor, Part, Recipe, Rng, Sample, check_descriptor
from libhelix.wire import codec
from libhelix.wire import messages as m
from libhelix.wire.layout import pack_record, record_bytes
from libhelix.wire.settings import RecipeSpec

KEPT_DESCRIPTORS = 16
MOST_READ_AGAIN = 256 << 20
"""Of a file that could not be decoded, to see whether it can be read."""
_CURE = "; see to its disk or mount"
_STORAGE_FAILS = {errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.EREMOTEIO, errno.ETIMEDOUT}
Array = np.ndarray[Any, np.dtype[Any]]
Memory = Any
"""A writable buffer: an mmap, a memoryview, a bytearray."""


def imported(module: str, qualname: str) -> Any:
    """What a `module:name` is. Raises RecipeNotImportable with the cause."""
    name = f"{module}:{qualname}"
    try:
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except BaseException as e:  # a user's module may do anything when imported
        if isinstance(e, KeyboardInterrupt):
            raise
        raise RecipeNotImportable(
            f"recipe {name} cannot be imported in a worker: {type(e).__name__}: {e}; workers import it by "
            "that name, with the trainer's sys.path"
        ) from e
    return found


def recipe_class(module: str, qualname: str) -> type[Recipe]:
    """The class of a `module:Class`. Raises RecipeNotImportable with the cause."""
    name = f"{module}:{qualname}"
    found = imported(module, qualname)
    if not (isinstance(found, type) and issubclass(found, Recipe)):
        raise RecipeNotImportable(f"recipe {name} is {found!r}, not a subclass of libhelix.Recipe")
    return found


def load_recipe(spec: RecipeSpec) -> Recipe:
    """The recipe of a spec. Raises RecipeNotImportable, and RecipeError for one that is not itself again."""
    found = recipe_class(spec.module, spec.qualname)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HelixWarning)  # whoever made the recipe has been told
            recipe: Recipe = msgspec.json.decode(spec.params, type=found)
    except (msgspec.DecodeError, HelixError) as e:
        raise RecipeError(f"recipe {spec} does not take its own parameters back: {e}") from e
    return recipe


@dataclass
class Loaded:
    """A loader's recipe and index, and the descriptors of the samples in work.

    `caps`: declared costs above these are what the recipe is asked to shrink.
    """

    recipe: Recipe
    name: str
    index: Index | Joined
    seed: int
    caps: Mapping[str, int] = field(default_factory=dict)
    kept: OrderedDict[tuple[int, int, int], tuple[Sample, Descriptor, m.Schema]] = field(
        default_factory=OrderedDict
    )

    def describe(self, epoch: int, number: int, occurrence: int) -> tuple[Sample, Descriptor, m.Schema]:
        """A sample and what the recipe says of it."""
        key = (epoch, number, occurrence)
        if key in self.kept:
            self.kept.move_to_end(key)
            return self.kept[key]
        sample = self.index[number]
        draws = (self.seed, epoch, number, occurrence)
        desc = check_descriptor(self.recipe.describe(sample, Rng(*draws)), self.name)
        if exceeded(desc.costs, self.caps):
            shrunk = self.recipe.shrink(sample, Rng(*draws), self.caps)
            # One that is still too large is none: planning says of the original that it cannot be shrunk.
            if shrunk is not None and not exceeded(check_descriptor(shrunk, self.name).costs, self.caps):
                desc = shrunk
        self.kept[key] = sample, desc, schema_of(desc)
        if len(self.kept) > KEPT_DESCRIPTORS:
            self.kept.popitem(last=False)
        return self.kept[key]


def describe_row(loaded: Loaded, epoch: int, number: int, occurrence: int = 0) -> tuple[m.Row, m.Schema]:
    """The row of a sample and its schema; a bad sample's row says why and has no schema.

    Raises RecipeError where the recipe itself is wrong.
    """
    try:
        _, desc, schema = loaded.describe(epoch, number, occurrence)
    except RecipeError:
        raise
    except Exception as e:  # noqa: BLE001  # a recipe may raise anything; it concerns this sample
        return m.Row(number, (), {}, 1, (), (0,), error=error_text(loaded, number, e)), ()
    row = m.Row(
        id=number,
        shapes=tuple(tuple(int(n) for n in f.shape) for f in desc.fields),
        costs=dict(desc.costs),
        units=desc.units,
        cuts=tuple(desc.cuts),
        segment_us=tuple(desc.segment_us),
        group=desc.group,
        occurrence=occurrence,
        kind=desc.kind or loaded.name[:64],
        threads=desc.threads,
    )
    return row, schema


def _storage_says(sample: Sample) -> str | None:
    """Why the files of a sample cannot be read, where that is so: decoders take what they do not get for
    damage."""
    for item in sample.items:
        try:
            with item.open() as file:
                left = min(item.size, MOST_READ_AGAIN)
                while left > 0 and (got := len(file.read(min(left, 1 << 20)))):
                    left -= got
        except MediaError:
            continue  # it is gone or another one: that is not it
        except OSError as e:
            if e.errno in _STORAGE_FAILS:
                return f"{item.path}: {e.strerror}{_CURE}"
    return None


def error_text(loaded: Loaded | None, number: int, error: Exception) -> str:
    if isinstance(error, RecipeError) or loaded is None:
        return codec.short(str(error))
    try:
        sample = loaded.index[number]
        key, found = sample.key, isinstance(error, MediaError) and _storage_says(sample)
    except HelixError:
        key, found = f"sample {number}", None
    if isinstance(error, HelixError):
        text = found or str(error)
        return codec.short(text if key in text else f"{key}: {text}")
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f" ({frame.tb_frame.f_code.co_filename}:{frame.tb_lineno})" if frame is not None else ""
    cure = _CURE if getattr(error, "errno", None) in _STORAGE_FAILS else ""
    return codec.short(f"{key}: {loaded.name} raised {type(error).__name__}: {error}{where}{cure}")


def _slot(arena: Memory, field_: m.FieldSpec, place: m.Place) -> Array:
    dtype = "uint16" if field_.dtype == "bfloat16" else field_.dtype
    slot: Array = np.ndarray(
        place.slot, dtype=dtype, buffer=arena, offset=place.offset, strides=place.strides
    )
    return slot


def fill(loaded: Loaded, epoch: int, piece: m.Piece, arena: Memory, threads: int = 1) -> None:
    """Fill a part of a sample, and with its first unit everything that is written once."""
    sample, desc, schema = loaded.describe(epoch, piece.id, piece.occurrence)
    if not all(_fits(spec, p.shape, f.shape) for spec, p, f in zip(schema, piece.places, desc.fields)):
        raise RecipeError(
            f"{loaded.name}.describe gave other shapes for {sample.key} than before; it must depend on the "
            "sample and the rng only"
        )
    part = Part(piece.begin, piece.end, desc.units, threads)
    slots = [_slot(arena, f, p) for f, p in zip(schema, piece.places)]
    out: dict[str, Array] = {}
    for spec, slot, place in zip(schema, slots, piece.places):
        inside: tuple[Any, ...] = (*(slice(0, n) for n in place.shape), ...)
        whole = slot[inside]  # a view, of scalars too
        k = spec.rows_per_unit
        if k:
            out[spec.name] = whole[part.begin * k : part.end * k]
        elif part.first:
            out[spec.name] = whole
    true = loaded.recipe.fill(sample, desc, part, out) or {}
    if not part.first:
        return
    shapes = _true_shapes(loaded.name, schema, piece.places, true)
    for spec, slot, shape in zip(schema, slots, shapes):
        if spec.layout in ("pad", "pack"):
            pad_around(slot, shape, _pad_value(spec))
    planned = [p.shape for p in piece.places]
    _write_record(arena, piece.record, pack_record(schema, piece.id, True, planned, shapes))


def _fits(spec: m.FieldSpec, planned: Sequence[int], described: Sequence[int]) -> bool:
    if spec.layout == "pack" and planned[spec.axis] == 0:
        return described[spec.axis] == 0  # nothing: its other axes are its neighbours'
    return tuple(planned) == tuple(described)


def _true_shapes(
    recipe: str, schema: m.Schema, places: Sequence[m.Place], true: Mapping[str, tuple[int, ...]]
) -> list[tuple[int, ...]]:
    shapes = []
    for spec, place in zip(schema, places):
        shape = place.shape
        if spec.bounded:
            if spec.name not in true:
                raise RecipeError(f"{recipe}.fill must return the true shape of bounded field {spec.name!r}")
            shape = tuple(int(n) for n in true[spec.name])
            if len(shape) != len(place.shape) or any(not 0 <= a <= b for a, b in zip(shape, place.shape)):
                raise RecipeError(
                    f"{recipe}.fill returned shape {shape} for {spec.name!r}, whose bound is {place.shape}"
                )
        shapes.append(shape)
    return shapes


def pad_around(slot: Array, shape: Sequence[int], value: float) -> None:
    """Write the pad value into all of the slot that lies outside [0, shape)."""
    for axis, n in enumerate(shape):
        before = tuple(slice(0, k) for k in shape[:axis])
        outside = (*before, slice(n, None))
        slot[outside] = value


def _pad_value(field_: m.FieldSpec) -> float:
    """What is written: for bfloat16, whose slot is uint16, the bits of the nearest one."""
    if field_.dtype != "bfloat16":
        return field_.pad_value
    bits = int(np.float32(field_.pad_value).view(np.uint32))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 if field_.pad_value == field_.pad_value else 0x7FC0


def mask(task: m.Mask, arena: Memory) -> None:
    """Give a bad sample's slots the pad value, and say so in its record."""
    for spec, place in zip(task.schema, task.places):
        _slot(arena, spec, place)[...] = _pad_value(spec)
    shapes = [p.shape for p in task.places]
    _write_record(arena, task.record, pack_record(task.schema, task.id, False, shapes, shapes))


def copy(task: m.Copy, source: Memory, target: Memory) -> None:
    """Copy a sample whose slots are all written, into slots of the same shapes and at least its size."""
    for spec, here, there in zip(task.schema, task.source.places, task.target.places, strict=True):
        slot = _slot(target, spec, there)
        if here.shape == there.shape:  # else there is nothing of it, and its other axes are its neighbours'
            inside: tuple[Any, ...] = (*(slice(0, n) for n in there.shape), ...)
            slot[inside] = _slot(source, spec, here)[inside]
        if spec.layout in ("pad", "pack"):
            pad_around(slot, there.shape, _pad_value(spec))
    record, at = record_bytes(task.schema), task.source.record
    _write_record(target, task.target.record, bytes(source[at : at + record]))


def _write_record(arena: Memory, at: int, record: bytes) -> None:
    arena[at : at + len(record)] = record
