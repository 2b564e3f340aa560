"""What a recipe made of a sample, for people: pictures, sounds, texts, and numbers of all else."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from libhelix.ctl.output import visible
from libhelix.errors import HelixError
from libhelix.recipe import Descriptor, Item, Recipe, Sample, VideoInfo
from libhelix.recipes.run import load_recipe
from libhelix.recipes.together import Composed
from libhelix.recipes.trial import AsStored, Made, label

Array = np.ndarray[Any, np.dtype[Any]]

_LEAST_SIDE = 4
_LEAST_SAMPLES = 256
_MOST_CHANNELS = 64
_LEAST_RATE = 1000
_FEW = 12
_MOST_ITEMS = 8
_SOUND = re.compile("audio|sound|wave|speech", re.IGNORECASE)
_REPEATED = re.compile(r"(<[^<>]{1,40}>)(?: ?\1){3,}")
_IGNORED = -100


@dataclass(frozen=True)
class Pictures:
    """uint8 [h, w, 3], and what is written under each."""

    caption: str
    images: Sequence[Array]
    labels: Sequence[str]


@dataclass(frozen=True)
class Sound:
    """float32 [channels, n]; `stored` is the same as the recipe wrote it. No rate: it is not known."""

    caption: str
    samples: Array
    stored: Array
    rate: int | None


@dataclass(frozen=True)
class Words:
    """A text; empty where the caption says all."""

    caption: str
    text: str = ""


Shown = Pictures | Sound | Words


def parts_of(made: Made, recipe: Recipe) -> Iterator[Shown]:
    """A part for each field, in their order."""
    for at, field in enumerate(made.desc.fields):
        array = made.arrays[field.name]
        caption = f"{field.name}  {field.dtype} {list(array.shape)}"
        images = pictures(array)
        rate = _rate(recipe, field.name, made.sample)
        if images is not None:
            labels = _frame_labels(made, at, field.name, len(images))
            scaled = (
                "" if array.dtype == np.uint8 else f"  black is {array.min():.4g}, white {array.max():.4g}"
            )
            yield Pictures(caption + scaled, images, labels)
        elif _is_sound(field.name, array, rate, made.sample):
            yield _sound(caption, array, rate)
        else:
            yield _other(caption, field.name, array, recipe)


def texts_of(sample: Sample) -> Iterator[Words]:
    """The texts of a sample, as they are."""
    from libhelix.media import text

    for item in sample.all("text"):
        yield Words(label(item), text.read(item))


def title_of(sample: Sample) -> str:
    """Its key and number, and a line for each item, as its header has it."""
    lines = [f"{sample.key}  (#{sample.id})", *(f"{label(item)}: {_said(item)}" for item in sample.items)]
    more = f"\nand {len(lines) - 1 - _MOST_ITEMS} more items" if len(lines) - 1 > _MOST_ITEMS else ""
    return "\n".join(map(visible, lines[: 1 + _MOST_ITEMS])) + more


def _said(item: Item) -> str:
    if (v := item.video) is not None:
        height, width = v.display_size
        return f"{v.codec} {width}x{height}, {v.frames:,} frames, {v.fps:.2f} fps, {v.duration_s:.2f} s"
    if (i := item.image) is not None:
        height, width = i.display_size
        return f"{i.codec} {width}x{height}"
    if (a := item.audio) is not None:
        return f"{a.codec} {a.rate} Hz, {a.channels} channels, {a.duration_s:.2f} s"
    if (t := item.tensor) is not None:
        return f"{t.dtype} {list(t.shape)}"
    return f"{item.size:,} bytes"


# ---- pictures ------------------------------------------------------------------------------------------


def pictures(array: Array) -> list[Array] | None:
    """Pictures of three channels as uint8 [h, w, 3], scaled if they are not uint8; None for no pictures."""
    if array.ndim not in (3, 4) or array.dtype.kind not in "uf" or not array.size:
        return None
    if array.dtype.kind == "u" and array.dtype != np.uint8:
        return None
    stack = array if array.ndim == 4 else array[np.newaxis]
    if stack.shape[3] == 3 and min(stack.shape[1:3]) >= _LEAST_SIDE:
        last = stack
    elif stack.shape[1] == 3 and min(stack.shape[2:]) >= _LEAST_SIDE:
        last = np.moveaxis(stack, 1, 3)
    elif stack.shape[0] == 3 and min(stack.shape[2:]) >= _LEAST_SIDE and array.ndim == 4:
        last = np.moveaxis(stack, 0, 3)
    else:
        return None
    if last.dtype == np.uint8:
        return list(last)
    values = np.nan_to_num(last.astype(np.float32), posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    return list(((values - low) * (255 / max(high - low, 1e-9))).astype(np.uint8))


def _frame_labels(made: Made, at: int, name: str, n: int) -> list[str]:
    frames = _frames(_owner(made.desc, at).draws, n)
    video = _video(made.sample, name)
    if frames is None or video is None:
        return [""] * n if n > 1 else []
    return [f"{frame}  {_seconds(video, frame)}".rstrip() for frame in frames]


def _video(sample: Sample, name: str) -> VideoInfo | None:
    videos = sample.all("video")
    found: Item | None = next((item for item in videos if label(item) == name), None)
    found = found or (videos[0] if videos else None)
    return found.video if found is not None else None


def _seconds(video: VideoInfo, frame: int) -> str:
    if not 0 <= frame < video.frames:
        return ""
    num, den = video.time_base
    return f"{video.frame_pts(frame) * num / den:.2f} s"


def _owner(desc: Descriptor, at: int) -> Descriptor:
    """The descriptor that a recipe made of others took its field number `at` from; itself else."""
    inner = _descriptors(desc.draws)
    first = 0
    for one in inner:
        if at < first + len(one.fields):
            return _owner(one, at - first)
        first += len(one.fields)
    return desc


def _descriptors(draws: object) -> list[Descriptor]:
    if isinstance(draws, Descriptor):
        return [draws]
    return [one for one in draws if isinstance(one, Descriptor)] if isinstance(draws, tuple | list) else []


def _frames(draws: object, n: int) -> Sequence[int] | None:
    """The frames chosen, where draws hold as many numbers as there are pictures."""
    if not isinstance(draws, tuple | list):
        return None
    if len(draws) == n and all(type(one) is int for one in draws):
        return draws
    return next((found for one in draws if (found := _frames(one, n)) is not None), None)


# ---- sounds --------------------------------------------------------------------------------------------


def _is_sound(name: str, array: Array, rate: int | None, sample: Sample) -> bool:
    if array.dtype not in (np.float32, np.int16) or array.size < _LEAST_SAMPLES or not sample.all("audio"):
        return False
    flat = array.ndim == 1 or (array.ndim == 2 and min(array.shape) <= _MOST_CHANNELS)
    return flat and (rate is not None or _SOUND.search(name) is not None)


def _sound(caption: str, array: Array, rate: int | None) -> Sound:
    rows = array[np.newaxis] if array.ndim == 1 else array if array.shape[0] <= array.shape[1] else array.T
    samples = rows.astype(np.float32) / (32768 if rows.dtype == np.int16 else 1)
    peak = float(np.abs(samples).max())
    level = f"peak {20 * math.log10(peak):.1f} dB" if peak > 0 else "silent"
    length = f"{rate} Hz, {rows.shape[1] / rate:.2f} s" if rate else "a rate that its recipe does not tell"
    return Sound(f"{caption}  {length}, {level}", samples, rows, rate)


def _rate(recipe: Recipe, name: str, sample: Sample) -> int | None:
    """Of a field that is sound: what the recipe calls so."""
    if isinstance(recipe, AsStored):
        return next((i.audio.rate for i in sample.all("audio") if label(i) == name and i.audio), None)
    if isinstance(recipe, Composed):
        member = _member(recipe, name)
        return None if member is None else _rate(member, name, sample)
    for attribute in ("rate", "sample_rate"):
        rate = getattr(recipe, attribute, None)
        if isinstance(rate, int) and rate >= _LEAST_RATE:
            return rate
    return None


def _member(recipe: Composed, name: str) -> Recipe | None:
    """The recipe that gives a field: its keyword is its name, or begins it."""
    for keyword, spec in recipe.members.items():
        if name == keyword or name.startswith(f"{keyword}_"):
            return load_recipe(spec)
    return None


# ---- texts and numbers ---------------------------------------------------------------------------------


def _other(caption: str, name: str, array: Array, recipe: Recipe) -> Words:
    if name.endswith("labels") and array.dtype == np.int64 and array.ndim == 1:
        return Words(f"{caption}  {int((array != _IGNORED).sum()):,} are trained on")
    text = _decoded(name, array, recipe)
    return Words(caption, text) if text else Words(f"{caption}  {numbers(array)}")


def numbers(array: Array) -> str:
    """All of a few values; of more, how they are spread."""
    if not array.size:
        return "empty"
    if array.size <= _FEW:
        return ", ".join(f"{value:.6g}" if array.dtype.kind == "f" else str(value) for value in array.ravel())
    values = array.astype(np.float64)
    good = values[np.isfinite(values)]
    bad = f", {values.size - good.size:,} are NaN or infinite" if good.size < values.size else ""
    if not good.size:
        return f"none is finite{bad}"
    return f"min {good.min():.6g}, max {good.max():.6g}, mean {good.mean():.6g}{bad}"


def _tokenizer_of(recipe: Recipe) -> str | None:
    """The path of its `tokenizer`, or of the one in the folder of a model that is its `checkpoint`."""
    named, folder = (getattr(recipe, name, None) for name in ("tokenizer", "checkpoint"))
    if isinstance(named, str):
        return named
    return os.path.join(folder, "tokenizer.json") if isinstance(folder, str) else None


def _decoded(name: str, array: Array, recipe: Recipe) -> str:
    """Tokens as the text that they are, where the recipe names its tokenizer and can use it."""
    if not name.endswith("input_ids") or array.dtype.kind != "i" or array.ndim != 1:
        return ""
    if isinstance(recipe, Composed):
        member = _member(recipe, name)
        return "" if member is None else _decoded(name, array, member)
    path = _tokenizer_of(recipe)
    if path is None:
        return ""
    from libhelix.media.tokenizer import tokenizer

    try:
        text = tokenizer(path).decode(array.tolist())
    except (HelixError, OverflowError):
        return ""
    return _REPEATED.sub(lambda found: f"{found[1]} x {found[0].count(found[1])} ", text)
