"""InternVL: conversations with pictures as dynamic tiles, and with videos of a tile a frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np

from libhelix.errors import UsageError
from libhelix.plan.counts import internvl
from libhelix.plan.counts.internvl import TILE_PIXELS, TILE_TOKENS
from libhelix.recipe import Descriptor, Field, Item, Pack, Part, Recipe, Rng, Sample, VideoInfo
from libhelix.recipes.folder import check_checkpoint, check_side, scale_and_shift
from libhelix.recipes.frames import check_count
from libhelix.recipes.pieces import Piece, Resize, film_of, image_of, random_frames, segments, write_rows
from libhelix.recipes.talk import (
    Spoken,
    TextLayout,
    check_choice,
    of_the_recipe,
    script,
    text_us,
    write_text,
)

if TYPE_CHECKING:
    from libhelix.media.chat import Expansion

_BEGIN, _CONTEXT, _END = "<img>", "<IMG_CONTEXT>", "</img>"
_MARKS = {"image": _CONTEXT, "video": "<video>"}
_LABEL = {"internvl-chat": "Frame-{}: ", "transformers": "Frame{}: "}
_DUMMY = 255


class InternVL(Recipe, frozen=True):
    """A conversation for InternVL 2.5 and later, in the words of a checkpoint's chat template.

    input_ids, labels    int64 [tokens]; labels are -100 but for what the assistant says
    position_ids         int64 [tokens], where packed; else attention_mask
    pixel_values         uint8 [tiles, 3, 448, 448], packed; the model's floats by `scale_and_shift`
    image_flags          int64 [tiles], packed: 1, and 0 for a tile that stands for no picture

    policy        "internvl-chat": as the published training code. Several pictures share `max_tiles`, and
                  frames are called "Frame-1: ". "transformers": as its processor. Each picture has
                  `max_tiles`, and frames are called "Frame1: "
    frames        of a video: one of each stretch at random ("rand") or its middle ("middle"), of as many
                  stretches as are drawn from min_frames to max_frames; "fps": `rate` a second, the first
                  max_frames; "processor": max_frames as transformers spaces them
    empty_vision  "dummy": a conversation without pictures brings a white tile with flag 0, so that the vision
                  tower runs on every rank
    resize        "exact": Pillow's BICUBIC, as published; "fast": see `libhelix.media.tiles`

    Costs: tokens, targets, tiles.
    """

    checkpoint: str
    policy: Literal["internvl-chat", "transformers"] = "internvl-chat"
    min_tiles: int = 1
    max_tiles: int = 12
    frames: Literal["rand", "middle", "fps", "processor"] = "rand"
    rate: float | None = None
    min_frames: int = 8
    max_frames: int = 32
    empty_vision: Literal["none", "dummy"] = "none"
    resize: Resize = "exact"
    layout: TextLayout = "pack"

    def __post_init__(self) -> None:
        checkpoint = check_checkpoint("InternVL", self.checkpoint)
        check_side("InternVL", checkpoint, TILE_PIXELS)
        msgspec.structs.force_setattr(self, "checkpoint", checkpoint)
        check_choice("InternVL", "policy", self.policy, tuple(_LABEL))
        check_choice("InternVL", "frames", self.frames, ("rand", "middle", "fps", "processor"))
        check_choice("InternVL", "empty_vision", self.empty_vision, ("none", "dummy"))
        check_choice("InternVL", "resize", self.resize, ("exact", "fast"))
        check_choice("InternVL", "layout", self.layout, ("pack", "pad"))
        for name in ("min_tiles", "max_tiles", "min_frames", "max_frames"):
            check_count("InternVL", name, getattr(self, name))
        if self.min_tiles > self.max_tiles or self.min_frames > self.max_frames:
            raise UsageError("InternVL(min_tiles=, min_frames=) must not exceed max_tiles=, max_frames=")
        if (self.frames == "fps") != (self.rate is not None):
            raise UsageError('InternVL(frames="fps") and rate= go together, such as rate=1.0')
        if self.rate is not None and not 0 < self.rate <= 1000:
            raise UsageError(f"InternVL(rate={self.rate}) must lie in (0, 1000] frames per second")

    def scale_and_shift(self) -> tuple[np.ndarray, np.ndarray]:
        """float32 [3, 1, 1] each: `pixel_values * scale + shift` is what the model takes."""
        return scale_and_shift(self.checkpoint)

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """The tokens, and which tiles and frames there will be."""
        with of_the_recipe("InternVL"):
            told = script(self.checkpoint, sample, _MARKS)
            several = sum(slot.kind == "image" for slot in told.slots)
            pieces = tuple(self._piece(slot.item, several, rng) for slot in told.slots)
            said, fields = told.read([self._expansion(p) for p in pieces], self.layout)
        shown = sum(piece.rows for piece in pieces)
        tiles = shown or int(self.empty_vision == "dummy")
        cuts, us = segments(pieces, TILE_PIXELS, self.resize)
        return Descriptor(
            fields=(
                *fields,
                Field("pixel_values", "uint8", (tiles, 3, TILE_PIXELS, TILE_PIXELS), Pack(), rows_per_unit=1),
                Field("image_flags", "int64", (tiles,), Pack()),
            ),
            units=max(1, tiles),
            cuts=cuts,
            segment_us=(us[0] + text_us(sample), *us[1:]),
            costs={**said.costs, "tiles": tiles},
            draws=_Drawn(said, pieces),
            kind=max(pieces, key=lambda piece: piece.rows).codec if pieces else "text",
            threads=any(piece.frames for piece in pieces),
        )

    def shrink(self, sample: Sample, rng: Rng, caps: Mapping[str, int]) -> Descriptor | None:
        """With fewer tiles of each picture and fewer frames of each video; the text stays."""
        seed = rng.bits()
        tiles, frames = self.max_tiles, self.max_frames
        while tiles > 1 or frames > 1:
            tiles, frames = max(1, tiles * 3 // 4), max(1, frames * 3 // 4)
            smaller = msgspec.structs.replace(
                self,
                max_tiles=tiles,
                min_tiles=min(tiles, self.min_tiles),
                max_frames=frames,
                min_frames=min(frames, self.min_frames),
            )
            desc = smaller.describe(sample, Rng(seed, 0, 0))
            if all(desc.costs.get(name, 0) <= cap for name, cap in caps.items()):
                return desc
        return None

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """Decode the part's tiles, and with the first part write the tokens."""
        del sample
        drawn: _Drawn = desc.draws
        if part.first:
            write_text(drawn.said, out)
            out["image_flags"][...] = int(bool(drawn.pieces))
        if drawn.pieces:
            write_rows(drawn.pieces, part, out["pixel_values"], self.resize)
        else:
            out["pixel_values"][...] = _DUMMY

    def _piece(self, item: Item, pictures: int, rng: Rng) -> Piece:
        if item.kind == "video":
            chosen = self._chosen(film_of(item), rng)
            return Piece(item, len(chosen), frames=chosen)
        most = self.max_tiles
        if self.policy == "internvl-chat":
            most = max(1, most // pictures)
        size = image_of(item)
        # No grid has min_tiles of fewer: the published code goes on with one tile.
        least, most = (1, 1) if self.min_tiles > most else (self.min_tiles, most)
        counts = internvl.image(*size, min_tiles=least, max_tiles=most)
        return Piece(item, counts.tiles, grid=(counts.columns, counts.rows))

    def _chosen(self, info: VideoInfo, rng: Rng) -> tuple[int, ...]:
        if self.rate is not None:
            return internvl.frames_at_rate(info.frames, info.fps, self.rate, self.max_frames)
        if self.frames == "processor":
            return internvl.transformers_frames(info.frames, min(self.max_frames, info.frames))
        count = rng.integers(self.min_frames, self.max_frames + 1)
        if self.frames == "middle":
            return internvl.middle_frames(info.frames, count)
        return random_frames(info.frames, count, rng)

    def _expansion(self, piece: Piece) -> Expansion:
        if not piece.frames:
            return ((_BEGIN, 1), (_CONTEXT, piece.rows * TILE_TOKENS), (_END, 1))
        found: list[tuple[str, int]] = []
        for number in range(1, piece.rows + 1):
            label = _LABEL[self.policy].format(number)
            opening = f"{_END}\n{label}{_BEGIN}" if found else f"{label}{_BEGIN}"
            found += [(opening, 1), (_CONTEXT, TILE_TOKENS)]
        return (*found, (_END, 1))


class _Drawn(NamedTuple):
    said: Spoken
    pieces: tuple[Piece, ...]
