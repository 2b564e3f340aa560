"""Conversations with pictures and videos, as Qwen2-VL, Qwen2.5-VL and Qwen3-VL take them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from msgspec.structs import force_setattr, replace

from libhelix.errors import RecipeError, UsageError
from libhelix.plan.counts.qwen import TEMPORAL, Model, Policy, factor
from libhelix.recipe import (
    Descriptor,
    Field,
    Item,
    Layout,
    Pack,
    Pad,
    Part,
    Recipe,
    Rng,
    Sample,
    merge_segments,
)
from libhelix.recipes.frames import check_count
from libhelix.recipes.text import IGNORED

if TYPE_CHECKING:
    from libhelix.media.checkpoint import Vision
    from libhelix.media.qwen import Inputs, Rules, Seen

_US_OPENING = 400
_BYTES_PER_US = 1
"""Of text, rendered and tokenized."""
_US_PER_MPX = {"jpeg": 2400, "png": 11_000, "webp": 5000, "gif": 5000, "bmp": 1500}
"""CPU microseconds to decode a million pixels of an image."""
_RESIZED_US_PER_MPX = {"exact": (6000, 10_000), "fast": (0, 6000)}
"""To resize a picture, by a million of its own pixels and of those it gets."""
_WRITTEN_US_PER_MPX = 1800
"""To write it in the order of patches."""
_DUMMY_PATCHES = 4
_SHARES = (0.75, 0.5, 0.375, 0.25, 0.1875, 0.125, 0.0625, 0.03125)
"""What `shrink` tries: of each picture's pixels, and of each video's frames."""


class QwenVL(Recipe, frozen=True):
    """A conversation, rendered by the chat template in the folder `checkpoint`, with its pictures and videos.

    input_ids, labels      int64 [n]; labels are the ids of what the assistant says, -100 elsewhere
    position_ids           int64 [4, n]: place in the sample, then time, height and width (M-RoPE)
    attention_mask         int64 [n], with layout "pad" only
    pixel_values, pixel_values_videos   uint8 [patches, 1176] (1536 for Qwen3-VL), in the processor's order
    image_grid_thw, video_grid_thw      int64 [pictures, 3]
    second_per_grid_ts     float32 [videos], for Qwen2.5-VL only
    dummy_pixel_values, dummy_grid_thw  with empty_vision="dummy": a smallest black picture for a sample that
                           has none, which no token stands for

    model         by the checkpoint's config.json, unless given
    policy        whose rules size and sample: see `libhelix.plan.counts.qwen`
    min_pixels, max_pixels, fps, min_frames, max_frames, video_min_pixels, video_max_pixels
                  by default the checkpoint's ("transformers") or those of the code ("qwen-vl-utils")
    layout        of the fields with tokens; all others are packed
    resize        "exact": as the processor, to one level of 255; "fast": see `libhelix.media.patches`

    A sample's line may say "fps", "nframes", "min_pixels", "max_pixels", "video_start" and "video_end" (in
    seconds), for all its media or in one's content element.

    Costs are tokens, targets and patches (of the vision tower; also declared as "encoder").
    """

    checkpoint: str
    model: Model | None = None
    policy: Policy = "transformers"
    min_pixels: int | None = None
    max_pixels: int | None = None
    fps: float | None = None
    min_frames: int | None = None
    max_frames: int | None = None
    video_min_pixels: int | None = None
    video_max_pixels: int | None = None
    layout: Literal["pack", "pad"] = "pack"
    empty_vision: Literal["none", "dummy"] = "none"
    resize: Literal["exact", "fast"] = "exact"

    def __post_init__(self) -> None:
        for name, allowed in (
            ("policy", get_args(Policy)), ("layout", ("pack", "pad")), ("empty_vision", ("none", "dummy")),
            ("resize", ("exact", "fast")), ("model", (None, *get_args(Model))),
        ):  # fmt: skip
            if getattr(self, name) not in allowed:
                raise UsageError(
                    f"QwenVL({name}={getattr(self, name)!r}) must be one of {', '.join(map(repr, allowed))}"
                )
        for name in (
            "min_pixels", "max_pixels", "min_frames", "max_frames", "video_min_pixels", "video_max_pixels"
        ):  # fmt: skip
            if getattr(self, name) is not None:
                check_count("QwenVL", name, getattr(self, name))
        if self.fps is not None and not 0 < self.fps <= 1000:
            raise UsageError(f"QwenVL(fps={self.fps}) must lie in (0, 1000] frames per second")
        # Workers start elsewhere.
        force_setattr(self, "checkpoint", os.path.abspath(self.checkpoint))
        if not os.path.isdir(self.checkpoint):
            raise UsageError(f"QwenVL(checkpoint={self.checkpoint!r}): no such folder")
        self._vision()

    def scale_and_shift(self) -> tuple[np.ndarray, np.ndarray]:
        """float32 [1176] (or [1536]) each: `pixel_values * scale + shift` is what the model takes."""
        vision = self._vision()
        of_channel = factor(vision.model) ** 2 // 4 * TEMPORAL
        std = np.repeat(np.asarray(vision.std, np.float64), of_channel)
        mean = np.repeat(np.asarray(vision.mean, np.float64), of_channel)
        return (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """All but the pixels is made here, and in `draws`."""
        del rng
        return self._described(sample, 1.0)

    def shrink(self, sample: Sample, rng: Rng, caps: Mapping[str, int]) -> Descriptor | None:
        """With fewer pixels in each picture and fewer frames in each video; the text stays."""
        del rng
        for share in _SHARES:
            desc = self._described(sample, share)
            if all(desc.costs.get(name, 0) <= cap for name, cap in caps.items()):
                return desc
        return None

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """Write the tokens and pictures with the first part, and the part's frame pairs of videos."""
        del sample
        found: Inputs = desc.draws
        if part.first:
            self._fill_tokens(found, out)
            self._fill_grids(found, out)
            self._fill_images(found, out["pixel_values"])
        self._fill_videos(found, part, out["pixel_values_videos"])

    def _described(self, sample: Sample, share: float) -> Descriptor:
        # Imported here: a trainer makes recipes and must not load FFmpeg for it.
        from libhelix.media.conversation import of_sample
        from libhelix.media.qwen import inputs

        template = _template(self.checkpoint)
        found = inputs(of_sample(sample), template, self._rules(share))
        n, targets = len(found.encoded.ids), int(found.encoded.targets.sum())
        patches = sum(one.counts.patches for one in found.seen)
        cuts, segment_us = self._segments(found, sum(i.size for i in sample.all("text")))
        return Descriptor(
            fields=tuple(self._fields(found, n, template.pad)),
            units=max(1, sum(one.counts.patches for one in found.seen if one.is_video)),
            cuts=cuts,
            segment_us=segment_us,
            costs={"tokens": n, "targets": targets, "patches": patches, "encoder": patches},
            draws=found,
            kind=_kind(found.seen),
            threads=any(one.is_video and not one.stills for one in found.seen),
        )

    def _fields(self, found: Inputs, n: int, pad: int) -> Iterator[Field]:
        images = [one for one in found.seen if not one.is_video]
        videos = [one for one in found.seen if one.is_video]
        vision = self._vision()
        width = 3 * TEMPORAL * (factor(vision.model) // 2) ** 2
        yield Field("input_ids", "int64", (n,), self._tokens(pad))
        yield Field("labels", "int64", (n,), self._tokens(IGNORED))
        yield Field("position_ids", "int64", (4, n), self._tokens(0, axis=1))
        if self.layout == "pad":
            yield Field("attention_mask", "int64", (n,), Pad(0))
        yield _packed("pixel_values", "uint8", sum(one.counts.patches for one in images), width)
        yield _packed("image_grid_thw", "int64", len(images), 3)
        # A unit is a patch, because all samples have to agree on its rows; cuts lie between frame pairs.
        frames = sum(one.counts.patches for one in videos)
        yield Field("pixel_values_videos", "uint8", (frames, width), Pack(), rows_per_unit=1)
        yield _packed("video_grid_thw", "int64", len(videos), 3)
        if vision.model == "qwen2.5-vl":
            yield _packed("second_per_grid_ts", "float32", len(videos))
        if self.empty_vision == "dummy":
            lacks = 0 if found.seen else 1
            yield _packed("dummy_pixel_values", "uint8", lacks * _DUMMY_PATCHES, width)
            yield _packed("dummy_grid_thw", "int64", lacks, 3)

    def _tokens(self, value: int, axis: int = 0) -> Layout:
        return Pack(axis, counts="tokens", value=value) if self.layout == "pack" else Pad(value)

    def _segments(self, found: Inputs, text_bytes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Cuts in patches of videos, and what is between them; all else is with the first segment."""
        first = _US_OPENING + text_bytes // _BYTES_PER_US
        cuts: list[int] = []
        segment_us: list[int] = []
        at = 0
        for one in found.seen:
            size = one.counts.height * one.counts.width
            if not one.is_video:
                first += self._image_us(one.item, size)
                continue
            of_pair = one.counts.patches // one.counts.grid[0]
            for a, us in self._groups(one, size):
                # A pair of two groups goes with the first: the second is decoded to its first frame twice.
                begin = at + -(-a // TEMPORAL) * of_pair
                if begin >= at + one.counts.patches or (cuts and begin == cuts[-1]):
                    segment_us[-1] += us
                    continue
                cuts.append(begin)
                segment_us.append(us)
            at += one.counts.patches
        if not cuts:
            return (), (first,)
        segment_us[0] += first
        return merge_segments(cuts[1:], segment_us)

    def _groups(self, one: Seen, size: int) -> Iterator[tuple[int, int]]:
        """(first, CPU microseconds) of the frames of a video that are decoded together."""
        from libhelix.media.video import decode_cost_us, group_cuts

        if one.item.video is None:
            for a in range(0, len(one.frames), TEMPORAL):
                mine = one.frames[a : a + TEMPORAL]
                yield a, sum(self._image_us(one.stills[frame], size) for frame in mine)
            return
        info = one.item.video
        of_frame = self._resize_us(info.width * info.height, size)
        bounds = (0, *group_cuts(info, one.frames), len(one.frames))
        for (a, b), us in zip(pairwise(bounds), decode_cost_us(info, one.frames, 0)):
            yield a, us + (b - a) * of_frame

    def _image_us(self, item: Item, size: int) -> int:
        assert item.image is not None, "it was sized by its header"
        own = item.image.width * item.image.height
        return own * _US_PER_MPX.get(item.image.codec, 5000) // 1_000_000 + self._resize_us(own, size)

    def _resize_us(self, own: int, size: int) -> int:
        read, made = _RESIZED_US_PER_MPX[self.resize]
        return (own * read + size * (made + _WRITTEN_US_PER_MPX)) // 1_000_000

    def _fill_tokens(self, found: Inputs, out: Mapping[str, np.ndarray]) -> None:
        from libhelix.media.qwen import positions

        ids, targets = found.encoded.ids, found.encoded.targets
        out["input_ids"][...] = ids
        out["labels"][...] = np.where(targets, ids, IGNORED)
        out["position_ids"][...] = positions(found, self._vision())
        if "attention_mask" in out:
            out["attention_mask"][...] = 1

    def _fill_grids(self, found: Inputs, out: Mapping[str, np.ndarray]) -> None:
        images = [one for one in found.seen if not one.is_video]
        videos = [one for one in found.seen if one.is_video]
        out["image_grid_thw"][...] = _grids(images)
        out["video_grid_thw"][...] = _grids(videos)
        if "second_per_grid_ts" in out:
            out["second_per_grid_ts"][...] = [one.seconds for one in videos]
        if "dummy_grid_thw" in out:
            out["dummy_grid_thw"][...] = (1, 2, 2)
            out["dummy_pixel_values"][...] = 0

    def _fill_images(self, found: Inputs, rows: np.ndarray) -> None:
        from libhelix.media.patches import write_image

        at = 0
        for one in found.seen:
            if not one.is_video:
                write_image(one.item, rows[at : at + one.counts.patches], self._shape(one), self.resize)
                at += one.counts.patches

    def _fill_videos(self, found: Inputs, part: Part, rows: np.ndarray) -> None:
        """`rows` are patches [part.begin, part.end) of all videos."""
        from libhelix.media.patches import write_frames, write_stills

        at = 0
        for one in found.seen:
            if not one.is_video:
                continue
            shape = self._shape(one)
            begin = max(at, part.begin)
            end = min(at + one.counts.patches, part.end)
            if begin < end:
                pairs = (begin - at) // shape.rows, (end - at) // shape.rows
                places = _places(one.frames, *pairs)
                mine = rows[begin - part.begin : end - part.begin]
                if one.stills:
                    write_stills(one.stills, places, mine, shape, self.resize)
                else:
                    write_frames(one.item, places, mine, shape, self.resize, part.threads)
            at += one.counts.patches

    def _shape(self, one: Seen) -> Any:
        from libhelix.media.patches import Shape

        return Shape(one.counts.height, one.counts.width, factor(self._vision().model) // 2)

    def _vision(self) -> Vision:
        from libhelix.media.checkpoint import vision

        return vision(self.checkpoint, self.model)

    def _rules(self, share: float) -> Rules:
        from libhelix.media.checkpoint import Limits
        from libhelix.media.qwen import Rules

        stored = self._vision()
        if self.policy == "qwen-vl-utils":  # has defaults of its own, whatever the checkpoint says
            plain = Limits()
            stored = replace(stored, image=plain, video=plain, fps=2.0, min_frames=4, max_frames=768)
        return Rules(
            model=stored.model,
            policy=self.policy,
            image=Limits(self.min_pixels or stored.image.least, self.max_pixels or stored.image.most),
            video=Limits(
                self.video_min_pixels or stored.video.least, self.video_max_pixels or stored.video.most
            ),
            fps=self.fps or stored.fps,
            min_frames=self.min_frames or stored.min_frames,
            max_frames=self.max_frames or stored.max_frames,
            cap_pixels_per_frame=stored.cap_pixels_per_frame,
            share=share,
        )


def _template(folder: str) -> Any:
    from libhelix.media.chat import chat_template

    try:
        return chat_template(folder)
    except UsageError as e:
        raise RecipeError(f"QwenVL: {e}") from e


def _packed(name: str, dtype: str, *shape: int) -> Field:
    return Field(name, dtype, shape, Pack())


def _grids(seen: Sequence[Seen]) -> np.ndarray:
    return np.asarray([one.counts.grid for one in seen], np.int64).reshape(-1, 3)


def _places(frames: Sequence[int], first: int, last: int) -> dict[int, list[int]]:
    """Where each frame stands in the frame pairs [first, last); an odd last one makes a pair with itself."""
    mine = frames[first * TEMPORAL : last * TEMPORAL]
    places: dict[int, list[int]] = {}
    for place, frame in enumerate([*mine, *mine[-1:]][: (last - first) * TEMPORAL]):
        places.setdefault(frame, []).append(place)
    return places


def _kind(seen: Sequence[Seen]) -> str:
    """What most of the work is corrected by: the codec of the first video, else of the first picture."""
    for one in seen:
        if one.item.video is not None:
            return one.item.video.codec
    codecs = [one.item.image.codec for one in seen if one.item.image is not None]
    return codecs[0] if codecs else "text"
