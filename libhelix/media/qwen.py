"""A conversation as the inputs of a Qwen-VL model: what each picture and video becomes, and all tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from libhelix.errors import MediaError, RecipeError, UsageError
from libhelix.media.chat import ChatTemplate, Encoded, Expansion
from libhelix.media.checkpoint import Limits, Vision
from libhelix.media.conversation import Conversation, Slot
from libhelix.plan import mrope
from libhelix.plan.counts import qwen as counts
from libhelix.plan.counts.qwen import MERGE, TEMPORAL, Model, Policy, VisionCounts
from libhelix.recipe import Item

MARKS: Mapping[str, str] = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
_BEGIN, _END = "<|vision_start|>", "<|vision_end|>"
_SETTINGS = ("fps", "nframes", "min_pixels", "max_pixels", "video_start", "video_end")


class Rules(msgspec.Struct, frozen=True):
    """How pictures and videos are sized and sampled.

    `share`: of the pixels of a picture, and of the frames and then the pixels of a video, that it would have
    otherwise; below 1 it makes a sample smaller.
    """

    model: Model
    policy: Policy
    image: Limits
    video: Limits
    fps: float
    min_frames: int
    max_frames: int
    cap_pixels_per_frame: bool
    share: float = 1.0


class Seen(NamedTuple):
    """A picture, or a video with the `frames` of it that are taken; `seconds` from one frame pair to the
    next. `stills`: all its frames, where these are images."""

    item: Item
    counts: VisionCounts
    expansion: Expansion
    frames: tuple[int, ...] = ()
    seconds: float = 0.0
    stills: tuple[Item, ...] = ()

    @property
    def is_video(self) -> bool:
        """Whether it has frames."""
        return bool(self.frames)


class Inputs(NamedTuple):
    """`seen` in the order of the text."""

    seen: tuple[Seen, ...]
    encoded: Encoded


def inputs(talk: Conversation, template: ChatTemplate, rules: Rules) -> Inputs:
    """All that the model reads of a conversation but pixels.

    Raises MediaError where the sample is at fault, RecipeError where the recipe or its checkpoint is.
    """
    try:
        written = template.write(talk, MARKS)
    except UsageError as e:
        raise RecipeError(str(e)) from e
    seen = tuple(_seen(slot, rules, talk.where) for slot in written.slots)
    try:
        return Inputs(seen, template.encode(written, [one.expansion for one in seen]))
    except UsageError as e:
        raise RecipeError(str(e)) from e


def positions(found: Inputs, vision: Vision) -> mrope.Ints:
    """M-RoPE positions, [4, n], as `libhelix.plan.mrope` counts them."""
    blocks = []
    for run in found.encoded.runs:
        one = found.seen[run.slot]
        times, rows, columns = one.counts.grid
        interval = 1.0
        if one.is_video and vision.model == "qwen3-vl":
            times = 1  # a run for every frame pair, with its time before it
        elif one.is_video and vision.model == "qwen2.5-vl":
            interval = float(np.float32(vision.tokens_per_second) * np.float32(one.seconds))
        blocks.append(mrope.Vision(run.begin, times, rows // MERGE, columns // MERGE, interval))
    return mrope.positions(len(found.encoded.ids), blocks)


def _seen(slot: Slot, rules: Rules, where: str) -> Seen:
    try:
        return _image(slot, rules) if slot.kind == "image" else _video(slot, rules)
    except MediaError as e:
        raise MediaError(f"{where}: {slot.item.path}: {e}") from e
    except UsageError as e:
        own = [name for name in _SETTINGS if slot.number(name) is not None]
        if own:
            raise MediaError(f"{where}: {slot.item.path}: with its own {', '.join(own)}: {e}") from e
        raise RecipeError(f"QwenVL: {slot.item.path}: {e}") from e


def _image(slot: Slot, rules: Rules) -> Seen:
    info = slot.item.image
    if info is None:
        raise MediaError("indexed without an image header; run helixctl index again")
    limits = _limits(slot, rules.image)
    found = counts.image(
        *info.display_size,
        model=rules.model,
        policy=rules.policy,
        min_pixels=limits.least,
        max_pixels=limits.most,
    )
    if rules.share < 1:
        found = _smaller(info.display_size, found, rules, rules.share)
    return Seen(slot.item, found, [(MARKS["image"], found.tokens)])


def _video(slot: Slot, rules: Rules) -> Seen:
    if slot.frames:
        return _stills(slot, rules)
    info = slot.item.video
    if info is None:
        raise MediaError("indexed without a demux scan; run helixctl index again")
    first, total = counts.clip_range(
        info.frames, info.fps, slot.number("video_start"), slot.number("video_end")
    )
    own_rate, own_frames = slot.number("fps"), slot.number("nframes", 1)
    n = counts.frame_count(
        total,
        info.fps,
        frames=None if own_frames is None else int(own_frames),
        rate=rules.fps if own_rate is None else own_rate,
        min_frames=rules.min_frames,
        max_frames=rules.max_frames,
        model=rules.model,
        policy=rules.policy,
    )
    return _filmed(slot, rules, info.display_size, info.fps, (first, total, n))


def _stills(slot: Slot, rules: Rules) -> Seen:
    """A list of images as the processor of transformers takes it: all of them, so many a second."""
    if rules.policy != "transformers":
        raise MediaError(
            "its video is a list of pictures, which qwen-vl-utils resizes twice and this recipe does not; "
            'take policy="transformers", or make a film of them (ffmpeg -framerate 2 -i %03d.jpg film.mp4) '
            "and name that"
        )
    for name in ("nframes", "video_start", "video_end"):
        if slot.number(name) is not None:
            raise MediaError(
                f"its video is a list of pictures, of which all are taken; list fewer, not {name!r}"
            )
    sizes = {item.path: item.image.display_size for item in slot.frames if item.image is not None}
    first = sizes.get(slot.item.path)
    if first is None:
        raise MediaError("indexed without an image header; run helixctl index again")
    for path, size in sizes.items():
        if size != first:
            raise MediaError(
                f"a frame of {first[1]}x{first[0]} pixels in one video with {path} of {size[1]}x{size[0]}; "
                "make them alike, or leave the sample out"
            )
    n, own_rate = len(slot.frames), slot.number("fps")
    rate = rules.fps if own_rate is None else own_rate
    return _filmed(slot, rules, first, rate, (0, n, n))


def _filmed(slot: Slot, rules: Rules, size: tuple[int, int], fps: float, clip: tuple[int, int, int]) -> Seen:
    """Of a video's frames at `fps`: `clip` is the first, how many follow from it, and how many are taken."""
    first, total, n = clip
    limits = _limits(slot, rules.video)
    frames = _frames(first, total, n, rules)
    found = counts.video(
        *size,
        len(frames),
        model=rules.model,
        policy=rules.policy,
        min_pixels=limits.least,
        max_pixels=limits.most,
        cap_pixels_per_frame=rules.cap_pixels_per_frame and rules.policy == "transformers",
    )
    if rules.share < 1:
        fewer = min(n, max(TEMPORAL, int(n * rules.share) // TEMPORAL * TEMPORAL))
        frames = _frames(first, total, fewer, rules)
        found = _smaller(size, found, rules, min(1.0, rules.share * n / fewer), fewer)
    seconds = TEMPORAL / (len(frames) / total * fps)
    expansion = _expansion(found, frames, fps, rules.model)
    return Seen(slot.item, found, expansion, frames, seconds, slot.frames)


def _frames(first: int, total: int, n: int, rules: Rules) -> tuple[int, ...]:
    """Which frames of a clip are taken, by their numbers in the video."""
    if rules.policy == "qwen-vl-utils":
        return counts.frame_indices(total, n, first=first, model=rules.model, policy=rules.policy)
    # The processor samples whole videos: a clip is taken as one.
    chosen = counts.frame_indices(total, n, model=rules.model, policy=rules.policy)
    return tuple(first + at for at in chosen)


def _smaller(
    size: tuple[int, int], had: VisionCounts, rules: Rules, share: float, frames: int = 0
) -> VisionCounts:
    """A picture, or a video of so many frames, with at most that share of the pixels that each had."""
    f = counts.factor(rules.model)
    most = max(f * f, int(had.height * had.width * share))
    if not frames:
        return counts.image(*size, model=rules.model, policy=rules.policy, min_pixels=f * f, max_pixels=most)
    if rules.model == "qwen3-vl" and rules.policy == "transformers":
        most *= frames  # there it counts the pixels of all
    return counts.video(
        *size, frames, model=rules.model, policy=rules.policy, min_pixels=f * f, max_pixels=most
    )


def _expansion(found: VisionCounts, frames: Sequence[int], fps: float, model: Model) -> Expansion:
    """What stands for a video: its tokens, or for Qwen3-VL those of each frame pair behind their time.

    The pair of marks that the template writes around a video stays around all of it, as in transformers from
    5.12 on.
    """
    if model != "qwen3-vl":
        return [(MARKS["video"], found.tokens)]
    of_pair = found.tokens // found.grid[0]
    pieces: list[tuple[str, int]] = []
    for time in counts.timestamp_texts(frames, fps):
        pieces += [(time, 1), (_BEGIN, 1), (MARKS["video"], of_pair), (_END, 1)]
    return pieces


def _limits(slot: Slot, limits: Limits) -> Limits:
    least, most = slot.number("min_pixels", 1), slot.number("max_pixels", 1)
    return Limits(limits.least if least is None else int(least), limits.most if most is None else int(most))
