"""Recipes of the benchmark: samples of several items, and samples of which all take the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import PurePath

import msgspec
import numpy as np

from libhelix.media.image_cost import decode_cost_us
from libhelix.recipe import (
    DTYPES,
    Descriptor,
    Field,
    Item,
    Pack,
    Pad,
    Part,
    Ragged,
    Recipe,
    Rng,
    Sample,
)
from libhelix.recipe import nbytes as bytes_of
from libhelix.recipes import Audio, Clip
from libhelix.recipes.frames import described, fill_frames
from libhelix.recipes.run import load_recipe
from libhelix.wire.settings import RecipeSpec

_SIDE = 28
"""Images become multiples of it, as Qwen-VL's patches of 14 merged two by two want."""
_TEXT_US = 60
SLACK = "slack"


@lru_cache(maxsize=64)
def loaded(spec: RecipeSpec) -> Recipe:
    """A recipe by name, one object in a process."""
    return load_recipe(spec)


class Omni(Recipe, frozen=True):
    """Samples of any items: `video` uint8 [frames, h, w, 3], `pixels` uint8 [28 x 28 squares, 2352] of all
    images, `audio` float32 [n], each packed over the batch, and empty where a sample has none.

    Frames are taken at `rate` a second, at most `max_frames`; images keep their size, in multiples of 28 and
    at most `max_side`. Tokens: 1 a square, as many a frame as the clip recipe says, 25 a second of sound,
    and one for 4 bytes of text.
    """

    rate: float = 2.0
    max_frames: int = 64
    size: tuple[int, int] = (112, 112)
    max_side: int = 1792
    sound_hz: int = 16_000

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """Parts are of the video; all else is decoded with the first."""
        clip = self._clip().describe(sample, rng) if sample.all("video") else None
        sound = self._sound().describe(sample, rng) if sample.all("audio") else None
        sizes = [self._fitted(item) for item in sample.all("image")]
        squares = sum(h * w for h, w in sizes) // _SIDE**2
        text = sum(item.size for item in sample.all("text")) // 4
        segment_us = list(clip.segment_us) if clip else [_TEXT_US]
        for item, size in zip(sample.all("image"), sizes):
            segment_us[0] += decode_cost_us(item, size, "stretch")
        segment_us[0] += sum(sound.segment_us) if sound else 0
        video = clip.fields[0].shape if clip else (0, *self.size, 3)
        heard = sound.fields[0].shape if sound else (0,)
        counted = [d.costs["tokens"] for d in (clip, sound) if d is not None]
        return Descriptor(
            fields=(
                Field("video", "uint8", video, Pack(), rows_per_unit=1),
                Field("pixels", "uint8", (squares, 3 * _SIDE**2), Pack()),
                Field("audio", "float32", heard, Pack()),
            ),
            units=clip.units if clip else 1,
            cuts=clip.cuts if clip else (),
            segment_us=tuple(segment_us),
            costs={"tokens": max(1, sum(counted) + squares + text)},
            draws=(clip, sound, tuple(sizes)),
            kind=clip.kind
            if clip
            else next((i.image.codec for i in sample.all("image") if i.image), "sound"),
        )

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """The part's frames; images and sound with the first part."""
        from libhelix.media.image import decode

        clip, sound, sizes = desc.draws
        if clip is not None:
            self._clip().fill(sample, clip, part, {"video": out["video"]})
        if not part.first:
            return
        if sound is not None:
            self._sound().fill(sample, sound, Part(0, 1, 1), {"audio": out["audio"]})
        at = 0
        for item, (h, w) in zip(sample.all("image"), sizes):
            rows = h * w // _SIDE**2
            # An image whose rows lie one after the other is decoded where it is to be.
            decode(item, out["pixels"][at : at + rows].reshape(h, w, 3, copy=False), fit="stretch")
            at += rows

    def _clip(self) -> Clip:
        return Clip(rate=self.rate, max_frames=self.max_frames, size=self.size, layout="pack")

    def _sound(self) -> Audio:
        return Audio(rate=self.sound_hz, layout="pack")

    def _fitted(self, item: Item) -> tuple[int, int]:
        assert item.image is not None, f"{PurePath(item.path).name} was indexed with its header"
        height, width = item.image.display_size
        scale = min(1.0, self.max_side / max(height, width))
        return _multiple(height * scale), _multiple(width * scale)


def _multiple(side: float) -> int:
    return max(_SIDE, round(side / _SIDE) * _SIDE)


class Moment(Recipe, frozen=True):
    """A moment of a longer film, which the name of the file gives: M-<start ms>-<length ms>-...

    `video` as the clip recipe's, packed, `rate` frames a second. What comes before is seeked over.
    """

    rate: float
    size: tuple[int, int]

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """The frames of the moment."""
        del rng
        info = sample.item("video").video
        assert info is not None, "films are indexed with their headers"
        _, start_ms, length_ms, *_ = PurePath(sample.key).name.split("-")
        first = min(int(start_ms) * info.fps / 1000, info.frames - 1)
        n = max(1, int(int(length_ms) * self.rate / 1000))
        step = info.fps / self.rate
        chosen = tuple(min(info.frames - 1, int(first + i * step)) for i in range(n))
        tokens = max(1, n * (self.size[0] // 16) * (self.size[1] // 16))
        return described(info, chosen, self.size, order="THWC", layout=Pack(), costs={"tokens": tokens})

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """Decode the part's frames."""
        fill_frames(sample, desc.draws, part, out["video"], "THWC", fit="crop", grey=0)


class Unpadded(Recipe, frozen=True):
    """Another recipe with padded fields as ragged ones: what is compared has no padding that one may save."""

    inner: RecipeSpec

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """As the inner recipe describes it."""
        desc = loaded(self.inner).describe(sample, rng)
        fields = [
            msgspec.structs.replace(f, layout=Ragged()) if isinstance(f.layout, Pad) else f
            for f in desc.fields
        ]
        return msgspec.structs.replace(desc, fields=tuple(fields))

    def fill(
        self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]
    ) -> Mapping[str, tuple[int, ...]] | None:
        """By the inner recipe."""
        return loaded(self.inner).fill(sample, desc, part, out)


class Level(Recipe, frozen=True):
    """Another recipe with `slack`, never written, that makes up for what a sample has less than `nbytes`:
    a ring then holds a number of batches, as a DataLoader does, not of bytes."""

    inner: RecipeSpec
    nbytes: int

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """As the inner recipe describes it, and the slack."""
        desc = loaded(self.inner).describe(sample, rng)
        slack = Field(SLACK, "uint8", (max(0, self.nbytes - field_bytes(desc)),), Pack())
        return msgspec.structs.replace(desc, fields=(*desc.fields, slack))

    def fill(
        self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]
    ) -> Mapping[str, tuple[int, ...]] | None:
        """By the inner recipe."""
        fields = {name: array for name, array in out.items() if name != SLACK}
        return loaded(self.inner).fill(sample, desc, part, fields)


def field_bytes(desc: Descriptor) -> int:
    """Bytes of the fields of a sample, one after the other."""
    assert all(f.dtype in DTYPES for f in desc.fields), "described fields are checked"
    return sum(bytes_of(f.dtype, f.shape) for f in desc.fields)
