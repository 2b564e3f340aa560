"""Decoding an item completely, to see what training would meet: what is broken, odd or slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np

from libhelix.errors import MediaError
from libhelix.media import image, sampler
from libhelix.media.headers.image import profile_of
from libhelix.recipe import Item, VideoInfo

Grade = Literal["broken", "odd", "slow"]

SLOW_IMAGE_S = 0.25
SLOW_FRAME_S = 1.0
"""To decode up to one frame from its key frame."""
_SMALLEST_SIDE = 16
_WIDEST = 20
_GOOD_GROUP = 30
"""Frames between key frames: one a second, as a rule."""
_FPS = (1.0, 240.0)
_JSON_NAMES = ("json", "jsn", "conversations")


class Finding(msgspec.Struct, frozen=True):
    """What is to be said of an item, with the cure."""

    grade: Grade
    text: str


def examine(item: Item) -> list[Finding] | None:
    """What is to be said of an item after decoding all of it; None where its kind is not looked into."""
    look = _LOOKS.get(item.kind)
    if look is None:
        return None
    try:
        return look(item)
    except MediaError as e:
        return [Finding("broken", str(e).removeprefix(f"{item.path}: "))]


def _image(item: Item) -> list[Finding]:
    info = item.image
    if info is None:
        return [Finding("broken", "indexed without its header; run helixctl index --rebuild")]
    height, width = info.display_size
    began = time.thread_time()
    image.decode(item, np.empty((height, width, 3), dtype=np.uint8))
    took_s = time.thread_time() - began
    found = _shape(height, width)
    profile = profile_of(item)
    if profile:
        found.append(
            Finding(
                "odd", f"a colour profile ({profile}), which is not applied; convert it to sRGB if it matters"
            )
        )
    if took_s > SLOW_IMAGE_S:
        found.append(
            Finding(
                "slow",
                f"decoding takes {took_s:.2f} s ({info.codec}, {width}x{height}); scale it down first",
            )
        )
    return found


def _shape(height: int, width: int) -> list[Finding]:
    small, large = sorted((height, width))
    if small >= _SMALLEST_SIDE and large <= small * _WIDEST:
        return []
    return [Finding("odd", f"a picture of {width}x{height}; leave it out if that is not meant")]


def _video(item: Item) -> list[Finding]:
    info = item.video
    if info is None:
        return [Finding("broken", "indexed without its frames; run helixctl index --rebuild")]
    sizes: set[tuple[int, int]] = set()
    interlaced: list[int] = []

    def look(number: int, frame: Any) -> None:
        sizes.add((frame.width, frame.height))
        if frame.interlaced_frame:
            interlaced.append(number)

    began = time.thread_time()
    sampler.decode(item, range(info.frames), look)
    took_s = time.thread_time() - began
    found = _shape(*info.display_size)
    if len(sizes) > 1:
        many = ", ".join(f"{w}x{h}" for w, h in sorted(sizes))
        found.append(Finding("odd", f"its resolution changes ({many}); each frame is scaled by its own"))
    if interlaced:
        found.append(
            Finding(
                "odd",
                f"{len(interlaced)} of {info.frames} frames are interlaced, and given as they are woven; "
                f"ffmpeg -i {item.path!r} -vf bwdif OUT.mp4",
            )
        )
    if not _FPS[0] <= info.fps <= _FPS[1]:
        found.append(Finding("odd", f"{info.fps:.2f} frames per second; check how it was made"))
    found += _seeking(item.path, info, took_s)
    return found


def _seeking(path: str, info: VideoInfo, took_s: float) -> list[Finding]:
    if not info.seekable or info.ordered:
        if took_s < SLOW_FRAME_S:
            return []
        return [
            Finding(
                "slow",
                f"it cannot be sought, so that its last frame costs {took_s:.1f} s; "
                f"ffmpeg -i {path!r} -g {_GOOD_GROUP} OUT.mp4",
            )
        ]
    starts = [*info.key_frames, info.frames]
    longest = max((b - a for a, b in pairwise(starts)), default=info.frames)
    cost_s = longest * took_s / info.frames
    if cost_s < SLOW_FRAME_S:
        return []
    cure = f"ffmpeg -i {path!r} -g {_GOOD_GROUP} OUT.mp4" if longest > _GOOD_GROUP else "scale it down first"
    return [
        Finding(
            "slow",
            f"a frame costs up to {cost_s:.1f} s, with key frames {longest} frames apart; {cure}",
        )
    ]


def _text(item: Item) -> list[Finding]:
    with item.open() as file:
        content = file.read(item.size)
    try:
        text = content.decode()
    except UnicodeDecodeError as e:
        return [Finding("broken", f"not UTF-8 at byte {e.start}; write it as UTF-8")]
    if not text.strip():
        return [Finding("odd", "an empty text; leave it out if that is not meant")]
    if text.startswith("\ufeff"):
        return [Finding("odd", "begins with a byte order mark; write it as UTF-8 without one")]
    if item.name.rpartition(".")[2] in _JSON_NAMES:
        try:
            msgspec.json.decode(content)
        except msgspec.DecodeError as e:
            return [Finding("broken", f"no JSON ({e}); mend it")]
    return []


_LOOKS: dict[str, Callable[[Item], list[Finding]]] = {"image": _image, "video": _video, "text": _text}
