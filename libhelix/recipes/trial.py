"""One sample through a recipe, as training would have it: for looking at it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from libhelix.errors import MediaError, RecipeError
from libhelix.index.read import Index
from libhelix.plan.layout import lay_out
from libhelix.recipe import Descriptor, Item, Part, Recipe, Rng, Sample
from libhelix.recipes.audio import Audio
from libhelix.recipes.clip import Clip
from libhelix.recipes.image import Image
from libhelix.recipes.run import Loaded, describe_row, error_text, fill
from libhelix.recipes.tensor import Tensor
from libhelix.wire import messages as m
from libhelix.wire.layout import aligned, read_table

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Made:
    """What a recipe made of a sample: its descriptor, and arrays by field. bfloat16 is given as float32; the
    dtypes that fields have are in `desc`. `cpu_s` is what filling them took."""

    sample: Sample
    desc: Descriptor
    arrays: Mapping[str, Array]
    cpu_s: float


def trial(index: Index, number: int, recipe: Recipe, *, seed: int = 0, epoch: int = 0) -> Made:
    """Describe and fill a sample, with the draws of this seed and epoch.

    Raises MediaError where that fails, RecipeError where the recipe is wrong.
    """
    loaded = Loaded(recipe, type(recipe).__qualname__, index, seed)
    row, schema = describe_row(loaded, epoch, number)
    if row.error:
        raise MediaError(row.error)
    layout = lay_out(schema, [row])
    memory = memoryview(bytearray(aligned(layout.nbytes)))
    places = layout.places[0]
    began = time.thread_time()
    try:
        fill(loaded, epoch, m.Piece(number, 0, 0, row.units, layout.records[0], places), memory)
    except RecipeError:
        raise
    except Exception as e:  # a recipe may raise anything; it concerns this sample
        raise MediaError(error_text(loaded, number, e)) from e
    took_s = time.thread_time() - began
    at, nbytes = layout.table
    (record,) = read_table(schema, memory[at : at + nbytes], 1)
    arrays = {
        spec.name: _array(memory, spec, place, shape)
        for spec, place, shape in zip(schema, places, record.true_shapes)
    }
    sample, desc, _ = loaded.describe(epoch, number, 0)
    return Made(sample, desc, arrays, took_s)


def _array(memory: memoryview, spec: m.FieldSpec, place: m.Place, shape: Sequence[int]) -> Array:
    bfloat = spec.dtype == "bfloat16"
    raw: Array = np.ndarray(
        tuple(shape), "uint16" if bfloat else spec.dtype, memory, place.offset, place.strides
    )
    return (raw.astype(np.uint32) << 16).view(np.float32) if bfloat else raw


# ---- without a recipe ----------------------------------------------------------------------------------

_FRAMES = 16
_LONGEST_SIDE = 256
_SECONDS = 60.0
_MOST_ITEMS = 32


class AsStored(Recipe, frozen=True):
    """A field for every item of a sample but texts, called by its kind and name: 16 frames of a video and
    pictures in their own aspect ratio, at most 256 pixels long; at most a minute of sound, mono or stereo, at
    its rate; arrays as they are."""

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """The items' own descriptors are in `draws`."""
        members = [(item, recipe) for item in sample.items[:_MOST_ITEMS] if (recipe := _for(item))]
        if not members:
            raise MediaError(f"{sample.key}: has no pictures, sound or arrays; give a recipe")
        descs = tuple(recipe.describe(_alone(sample, item), rng) for item, recipe in members)
        return Descriptor(
            fields=tuple(
                replace(field, name=label(item), rows_per_unit=0)
                for (item, _), desc in zip(members, descs)
                for field in desc.fields
            ),
            segment_us=(sum(sum(desc.segment_us) for desc in descs),),
            draws=descs,
        )

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """Fill every item's field."""
        members = [(item, recipe) for item in sample.items[:_MOST_ITEMS] if (recipe := _for(item))]
        for (item, recipe), inner in zip(members, desc.draws):
            whole = Part(0, inner.units, inner.units, part.threads)
            recipe.fill(_alone(sample, item), inner, whole, {inner.fields[0].name: out[label(item)]})


def label(item: Item) -> str:
    """What an item is called: its kind, and its name if it has one."""
    return f"{item.kind} {item.name}".strip()


def _alone(sample: Sample, item: Item) -> Sample:
    return replace(sample, items=(item,))


def _for(item: Item) -> Recipe | None:
    if item.video is not None:
        frames = min(_FRAMES, item.video.frames)
        return Clip(frames=frames, size=_fitting(*item.video.display_size))
    if item.image is not None:
        return Image(size=_fitting(*item.image.display_size))
    if item.audio is not None:
        seconds = _SECONDS if item.audio.duration_s > _SECONDS else None
        channels = item.audio.channels if item.audio.channels <= 2 else 1
        return Audio(rate=item.audio.rate, channels=channels, seconds=seconds)
    return Tensor() if item.tensor is not None else None


def _fitting(height: int, width: int) -> tuple[int, int]:
    scale = min(1.0, _LONGEST_SIDE / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def has_more_than_text(sample: Sample) -> bool:
    """Whether `AsStored` finds anything in it."""
    return any(_for(item) for item in sample.items[:_MOST_ITEMS])
