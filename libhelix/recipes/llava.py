"""LLaVA-OneVision: conversations with a picture in crops, with several pictures, and with videos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import force_setattr, replace

from libhelix.errors import UsageError
from libhelix.plan.counts import llava
from libhelix.plan.counts.llava import CROP_PIXELS, CROP_TOKENS, MOST_SIDE
from libhelix.plan.frames import llava_video
from libhelix.recipe import Descriptor, Field, Item, Pack, Part, Recipe, Rng, Sample
from libhelix.recipes.folder import check_checkpoint, check_side, mean_and_std, processor_of, scale_and_shift
from libhelix.recipes.frames import check_count
from libhelix.recipes.pieces import Piece, Resize, film_of, image_of, segments, write_rows
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

_MARKS = {"image": "<image>", "video": "<video>"}
_SIDES = [side * CROP_PIXELS for side in range(1, MOST_SIDE + 1)]
_GRIDS = [[height, width] for height in _SIDES for width in _SIDES]
"""(height, width) of the grids of crops, in pixels."""


class LlavaOneVision(Recipe, frozen=True):
    """A conversation for LLaVA-OneVision of transformers, in the words of a checkpoint's chat template.

    input_ids, labels     int64 [tokens]; labels are -100 but for what the assistant says
    position_ids          int64 [tokens], where packed; else attention_mask
    pixel_values          uint8 [crops, 3, 384, 384], packed: of a lone picture the whole and its crops, of
                          several one each, padded to a square
    image_sizes           int64 [pictures, 2], packed: (height, width)
    batch_num_images      int64 []: pictures of the sample
    pixel_values_videos   uint8 [frames, 3, 384, 384], packed
    num_frames            int64 [videos], packed: frames of each
    `scale_and_shift` makes the model's floats of the pixels.

    max_crops             anyres_max_<max_crops>: what a lone picture's crops are reduced to
    rate, max_frames, force   frames of a video, as LLaVA-Video takes them: every round(fps / rate)-th; of
                          more than max_frames, or of all if `force`, that many from the first to the last
    resize                "exact": Pillow's BICUBIC, as published; "fast": see `libhelix.media.tiles`

    Costs: tokens, targets, tiles: crops and frames.
    """

    checkpoint: str
    max_crops: int = 9
    rate: float = 1.0
    max_frames: int | None = 32
    force: bool = False
    resize: Resize = "exact"
    layout: TextLayout = "pack"

    def __post_init__(self) -> None:
        force_setattr(self, "checkpoint", check_checkpoint("LlavaOneVision", self.checkpoint))
        check_side("LlavaOneVision", self.checkpoint, CROP_PIXELS)
        grids = processor_of(self.checkpoint).get("image_grid_pinpoints", _GRIDS)
        if sorted(grids) != _GRIDS:
            raise UsageError(
                f"LlavaOneVision(checkpoint={self.checkpoint!r}): has other image_grid_pinpoints than 1x1 to "
                f"{MOST_SIDE}x{MOST_SIDE} crops, which LLaVA-OneVision has; it is another model's checkpoint"
            )
        check_choice("LlavaOneVision", "resize", self.resize, ("exact", "fast"))
        check_choice("LlavaOneVision", "layout", self.layout, ("pack", "pad"))
        check_count("LlavaOneVision", "max_crops", self.max_crops)
        if self.max_frames is not None:
            check_count("LlavaOneVision", "max_frames", self.max_frames)
        elif self.force:
            raise UsageError("LlavaOneVision(force=True) needs max_frames=, the number of frames")
        if not 0 < self.rate <= 1000:
            raise UsageError(f"LlavaOneVision(rate={self.rate}) must lie in (0, 1000] frames per second")

    def scale_and_shift(self) -> tuple[np.ndarray, np.ndarray]:
        """float32 [3, 1, 1] each: `pixel_values * scale + shift` is what the model takes."""
        return scale_and_shift(self.checkpoint)

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """The tokens, and which crops and frames there will be."""
        del rng  # placed by rule, nothing is drawn
        with of_the_recipe("LlavaOneVision"):
            told = script(self.checkpoint, sample, _MARKS)
            alone = sum(slot.kind == "image" for slot in told.slots) == 1
            pieces = tuple(self._piece(slot.item, alone) for slot in told.slots)
            said, fields = told.read([self._expansion(p, alone) for p in pieces], self.layout)
        drawn = _Drawn(
            said,
            tuple(piece for piece in pieces if not piece.frames),
            tuple(piece for piece in pieces if piece.frames),
        )
        cuts, us = segments(drawn.videos, CROP_PIXELS, self.resize)
        first = (
            us[0]
            + text_us(sample)
            + sum(sum(segments([one], CROP_PIXELS, self.resize)[1]) for one in drawn.pictures)
        )
        return Descriptor(
            fields=(*fields, *_fields(drawn)),
            units=max(1, sum(piece.rows for piece in drawn.videos)),
            cuts=cuts,
            segment_us=(first, *us[1:]),
            costs={**said.costs, "tiles": sum(piece.rows for piece in pieces)},
            draws=drawn,
            kind=max(pieces, key=lambda piece: piece.rows).codec if pieces else "text",
            threads=bool(drawn.videos),
        )

    def shrink(self, sample: Sample, rng: Rng, caps: Mapping[str, int]) -> Descriptor | None:
        """With fewer tokens of a lone picture and fewer frames of each video; the text stays."""
        full = self.describe(sample, rng)
        crops = self.max_crops
        frames = max((piece.rows for piece in full.draws.videos), default=1)
        while crops > 1 or frames > 1:
            crops, frames = max(1, crops * 3 // 4), max(1, frames * 3 // 4)
            desc = replace(self, max_crops=crops, max_frames=frames).describe(sample, rng)
            if all(desc.costs.get(name, 0) <= cap for name, cap in caps.items()):
                return desc
        return None

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """Decode the part's frames; with the first part write the tokens and the pictures."""
        del sample
        drawn: _Drawn = desc.draws
        if part.first:
            write_text(drawn.said, out)
            self._write_pictures(drawn.pictures, out)
            out["batch_num_images"][...] = len(drawn.pictures)
            out["num_frames"][...] = [piece.rows for piece in drawn.videos]
        write_rows(drawn.videos, part, out["pixel_values_videos"], self.resize)

    def _piece(self, item: Item, alone: bool) -> Piece:
        if item.kind == "video":
            info = film_of(item)
            chosen = llava_video(
                info.frames, info.fps, rate=self.rate, bound=self.max_frames, force=self.force
            )
            return Piece(item, len(chosen), frames=chosen)
        counts = llava.anyres(*image_of(item), max_crops=self.max_crops)
        if not alone:
            return Piece(item, 1)
        return Piece(item, counts.crops, grid=(counts.columns, counts.rows))

    def _expansion(self, piece: Piece, alone: bool) -> Expansion:
        if piece.frames:
            return ((_MARKS["video"], llava.video_tokens(piece.rows)),)
        tokens = CROP_TOKENS + 1
        if alone:
            tokens = llava.anyres(*image_of(piece.item), max_crops=self.max_crops).tokens
        return ((_MARKS["image"], tokens),)

    def _write_pictures(self, pictures: tuple[Piece, ...], out: Mapping[str, np.ndarray]) -> None:
        from libhelix.media import tiles

        at = 0
        for number, piece in enumerate(pictures):
            picture = tiles.picture_of(piece.item)
            rows = out["pixel_values"][at : at + piece.rows]
            if len(pictures) == 1:
                tiles.anyres(picture, piece.grid[1], piece.grid[0], rows, self.resize)
            else:
                tiles.square(picture, self._background(), rows[0], self.resize)
            out["image_sizes"][number] = picture.shape[:2]
            at += piece.rows

    def _background(self) -> tuple[int, int, int]:
        """The colour around pictures, as the processor makes it of the mean."""
        with of_the_recipe("LlavaOneVision"):
            red, green, blue = (int(value * 255) for value in mean_and_std(self.checkpoint)[0])
        return red, green, blue


class _Drawn(NamedTuple):
    said: Spoken
    pictures: tuple[Piece, ...]
    videos: tuple[Piece, ...]


def _fields(drawn: _Drawn) -> tuple[Field, ...]:
    crops, frames = (sum(piece.rows for piece in pieces) for pieces in drawn[1:])
    square = (3, CROP_PIXELS, CROP_PIXELS)
    return (
        Field("pixel_values", "uint8", (crops, *square), Pack()),
        Field("image_sizes", "int64", (len(drawn.pictures), 2), Pack()),
        Field("batch_num_images", "int64", ()),
        Field("pixel_values_videos", "uint8", (frames, *square), Pack(), rows_per_unit=1),
        Field("num_frames", "int64", (len(drawn.videos),), Pack()),
    )
