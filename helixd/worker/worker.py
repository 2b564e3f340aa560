"""A worker: describes samples, and fills their parts at their final address. One thread, one core."""

from __future__ import annotations

import importlib
import mmap
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from libhelix.errors import HelixError, IndexProblem, RecipeError, RecipeNotImportable
from libhelix.index import read
from libhelix.plan.layout import schema_of
from libhelix.recipe import Descriptor, Part, Recipe, Rng, Sample, check_descriptor
from libhelix.wire import channel, codec, segment
from libhelix.wire import messages as m
from libhelix.wire.layout import pack_record
from libhelix.wire.settings import RecipeSpec

KEPT_DESCRIPTORS = 16
MAX_ROWS_BYTES = 48 * 1024
Array = np.ndarray[Any, np.dtype[Any]]


def load_recipe(spec: RecipeSpec) -> Recipe:
    """The recipe of a `module:Class`. Raises RecipeNotImportable with the cause."""
    try:
        found: Any = importlib.import_module(spec.module)
        for name in spec.qualname.split("."):
            found = getattr(found, name)
    except BaseException as e:  # a user's module may do anything when imported
        if isinstance(e, KeyboardInterrupt):
            raise
        raise RecipeNotImportable(
            f"recipe {spec} cannot be imported in a worker: {type(e).__name__}: {e}; workers import it by "
            "that name, with the trainer's sys.path"
        ) from e
    if not (isinstance(found, type) and issubclass(found, Recipe)):
        raise RecipeNotImportable(f"recipe {spec} is {found!r}, not a subclass of libhelix.Recipe")
    try:
        recipe: Recipe = msgspec.json.decode(spec.params, type=found)
    except (msgspec.DecodeError, HelixError) as e:
        raise RecipeError(f"recipe {spec} does not take its own parameters back: {e}") from e
    return recipe


@dataclass
class _Loaded:
    """A stream's recipe and index, and the descriptors of the samples in work."""

    recipe: Recipe
    name: str
    index: read.Index
    seed: int
    kept: OrderedDict[tuple[int, int], tuple[Sample, Descriptor, m.Schema]] = field(
        default_factory=OrderedDict
    )

    def describe(self, epoch: int, number: int) -> tuple[Sample, Descriptor, m.Schema]:
        """A sample and what the recipe says of it."""
        key = (epoch, number)
        if key in self.kept:
            self.kept.move_to_end(key)
            return self.kept[key]
        sample = self.index[number]
        desc = check_descriptor(self.recipe.describe(sample, Rng(self.seed, epoch, number)), self.name)
        self.kept[key] = sample, desc, schema_of(desc)
        if len(self.kept) > KEPT_DESCRIPTORS:
            self.kept.popitem(last=False)
        return self.kept[key]


class Worker:
    """Serves one helixd over its own socket until that closes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._streams: dict[int, _Loaded] = {}
        self._arenas: dict[int, mmap.mmap] = {}

    def run(self) -> None:
        """Until helixd is gone."""
        self._sock.setblocking(True)
        try:
            while (received := channel.receive(self._sock)) is not None:
                data, descriptors = received
                self._handle(codec.to_worker(data), descriptors)
                channel.close_all(descriptors)
        except (BrokenPipeError, ConnectionResetError):
            return  # helixd is gone, and with it the reason to work

    def _send(self, message: m.FromWorker) -> None:
        channel.send(self._sock, codec.encode(message))

    def _handle(self, message: m.ToWorker, descriptors: list[int]) -> None:
        match message:
            case m.Setup():
                self._setup(message)
            case m.MapArena(arena, nbytes):
                self._arenas[arena] = segment.attach(descriptors.pop(), nbytes)
            case m.UnmapArena(arena):
                self._arenas.pop(arena, None)
            case m.Drop(stream):
                self._streams.pop(stream, None)
            case m.Describe():
                self._describe(message)
            case m.Fill() | m.Mask():
                self._work(message)

    def _setup(self, setup: m.Setup) -> None:
        sys.path.extend(p for p in setup.sys_path if p not in sys.path)
        try:
            recipe = load_recipe(setup.settings.recipe)
            index = read.Index.open(setup.index.path, root=setup.index.root)
            if index.fingerprint != setup.settings.index_fingerprint:
                raise IndexProblem(f"{index.path}: rebuilt since the loader opened it; start the job again")
        except HelixError as e:
            self._send(m.SetupFailed(setup.stream, e.code, codec.short(str(e))))
            return
        name = setup.settings.recipe.qualname
        self._streams[setup.stream] = _Loaded(recipe, name, index, setup.settings.seed)
        self._send(m.SetupDone(setup.stream))

    # ---- describe ----------------------------------------------------------------------------------

    def _describe(self, task: m.Describe) -> None:
        loaded = self._streams.get(task.stream)
        if loaded is None:
            self._send(m.TaskFailed(task.task, True, "recipe", "the recipe is not loaded"))
            return
        schema: m.Schema = ()
        rows: list[m.Row] = []
        room = MAX_ROWS_BYTES
        for number in task.ids:
            try:
                row, its_schema = _row(loaded, task.epoch, number)
            except RecipeError as e:
                self._send(m.TaskFailed(task.task, True, e.code, codec.short(str(e))))
                return
            if schema and its_schema and its_schema != schema:
                self._send(m.Described(task.task, schema, tuple(rows), last=False))
                rows, room = [], MAX_ROWS_BYTES
            schema = its_schema or schema
            room -= len(msgspec.msgpack.encode(row))
            if room < 0:
                self._send(m.Described(task.task, schema, tuple(rows), last=False))
                rows, room = [], MAX_ROWS_BYTES
            rows.append(row)
        self._send(m.Described(task.task, schema, tuple(rows), last=True))

    # ---- fill --------------------------------------------------------------------------------------

    def _work(self, task: m.Fill | m.Mask) -> None:
        began = time.thread_time()
        loaded = self._streams.get(task.stream)
        try:
            if loaded is None:
                raise RecipeError("the recipe is not loaded")
            arena = self._arenas[task.arena]
            if isinstance(task, m.Fill):
                _fill(loaded, task, arena)
            else:
                _mask(task, arena)
        except Exception as e:  # noqa: BLE001  # a recipe may raise anything; it concerns this sample
            fatal = isinstance(e, RecipeError)
            code = e.code if isinstance(e, HelixError) else "media"
            self._send(m.TaskFailed(task.task, fatal, code, _text(loaded, task.id, e), _cpu_us(began)))
        else:
            self._send(m.Filled(task.task, _cpu_us(began)))


def _cpu_us(began: float) -> int:
    return max(0, int((time.thread_time() - began) * 1e6))


def _text(loaded: _Loaded | None, number: int, error: Exception) -> str:
    if isinstance(error, RecipeError) or loaded is None:
        return codec.short(str(error))
    try:
        key = loaded.index[number].key
    except HelixError:
        key = f"sample {number}"
    if isinstance(error, HelixError):
        text = str(error)
        return codec.short(text if key in text else f"{key}: {text}")
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f" ({frame.tb_frame.f_code.co_filename}:{frame.tb_lineno})" if frame is not None else ""
    return codec.short(f"{key}: {loaded.name} raised {type(error).__name__}: {error}{where}")


def _row(loaded: _Loaded, epoch: int, number: int) -> tuple[m.Row, m.Schema]:
    try:
        _, desc, schema = loaded.describe(epoch, number)
    except RecipeError:
        raise
    except Exception as e:  # noqa: BLE001  # a recipe may raise anything; it concerns this sample
        return m.Row(number, (), {}, 1, (), (0,), _text(loaded, number, e)), ()
    row = m.Row(
        id=number,
        shapes=tuple(tuple(int(n) for n in f.shape) for f in desc.fields),
        costs=dict(desc.costs),
        units=desc.units,
        cuts=tuple(desc.cuts),
        segment_us=tuple(desc.segment_us),
    )
    return row, schema


def _slot(arena: mmap.mmap, field_: m.FieldSpec, place: m.Place) -> Array:
    dtype = "uint16" if field_.dtype == "bfloat16" else field_.dtype
    slot: Array = np.ndarray(
        place.slot, dtype=dtype, buffer=arena, offset=place.offset, strides=place.strides
    )
    return slot


def _fill(loaded: _Loaded, task: m.Fill, arena: mmap.mmap) -> None:
    sample, desc, schema = loaded.describe(task.epoch, task.id)
    if tuple(p.shape for p in task.places) != tuple(tuple(f.shape) for f in desc.fields):
        raise RecipeError(
            f"{loaded.name}.describe gave other shapes for {sample.key} than before; it must depend on the "
            "sample and the rng only"
        )
    part = Part(task.begin, task.end, desc.units)
    slots = [_slot(arena, f, p) for f, p in zip(schema, task.places)]
    out: dict[str, Array] = {}
    for spec, slot, place in zip(schema, slots, task.places):
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
    shapes = _true_shapes(loaded.name, schema, task.places, true)
    for spec, slot, shape in zip(schema, slots, shapes):
        if spec.layout == "pad":
            pad_around(slot, shape, spec.pad_value)
    planned = [p.shape for p in task.places]
    _write_record(arena, task.record, pack_record(schema, task.id, True, planned, shapes))


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


def _mask(task: m.Mask, arena: mmap.mmap) -> None:
    for spec, place in zip(task.schema, task.places):
        _slot(arena, spec, place)[...] = spec.pad_value if spec.layout == "pad" else 0
    shapes = [p.shape for p in task.places]
    _write_record(arena, task.record, pack_record(task.schema, task.id, False, shapes, shapes))


def _write_record(arena: mmap.mmap, at: int, record: bytes) -> None:
    arena[at : at + len(record)] = record
