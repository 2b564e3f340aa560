"""Decoding an item completely, to see what training would meet: what is broken, odd or slow."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from libhelix.errors import MediaError
from libhelix.media import examine_array, examine_sound, image, sampler
from libhelix.media import text as texts
from libhelix.media.finding import AGAIN, Finding
from libhelix.media.headers.image import profile_of
from libhelix.recipe import Item, VideoInfo

SLOW_IMAGE_S = 0.25
SLOW_FRAME_S = 1.0
"""To decode up to one frame from its key frame."""
_SMALLEST_SIDE = 16
_WIDEST = 20
_GOOD_GROUP = 30
"""Frames between key frames: one a second, as a rule."""
_FPS = (1.0, 240.0)
_ONE_KEY_FRAME_S = 10.0
"""From this length on, a single key frame is worth a word."""
_APART_S, _APART_SHARE = 1.0, 0.1
"""By which pictures and sound of a video may differ in length."""
_JSON_NAMES = ("json", "jsn", "conversations")


def examine(item: Item) -> list[Finding] | None:
    """What is to be said of an item after decoding all of it; None where its kind is not looked into."""
    look = _LOOKS.get(item.kind)
    if look is None:
        return None
    try:
        return look(item)
    except MediaError as e:
        return [Finding("broken", str(e).removeprefix(f"{item.path}: "))]


def between(items: Sequence[Item]) -> Iterator[tuple[Item, Finding]]:
    """What is to be said of items of one sample beside each other: pictures and sound of one length."""
    for shown in items:
        for heard in items:
            video, sound = shown.video, heard.audio
            one_file = (shown.path, shown.offset, shown.size) == (heard.path, heard.offset, heard.size)
            if video is None or sound is None or not one_file:
                continue
            shorter, longer = sorted((video.duration_s, sound.duration_s))
            if longer - shorter > max(_APART_S, _APART_SHARE * longer):
                text = (
                    f"its sound lasts {sound.duration_s:.1f} s, its pictures {video.duration_s:.1f} s; "
                    f"cut both there: ffmpeg -i {heard.path!r} -t {shorter:.3f} OUT.mp4"
                )
                yield heard, Finding("odd", text)


def _image(item: Item) -> list[Finding]:
    info = item.image
    if info is None:
        return [Finding("broken", f"indexed without its header; {AGAIN}")]
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
        return [Finding("broken", f"indexed without its frames; {AGAIN}")]
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
        return _one_key_frame(path, info)
    cure = f"ffmpeg -i {path!r} -g {_GOOD_GROUP} OUT.mp4" if longest > _GOOD_GROUP else "scale it down first"
    return [
        Finding(
            "slow",
            f"a frame costs up to {cost_s:.1f} s, with key frames {longest} frames apart; {cure}",
        )
    ]


def _one_key_frame(path: str, info: VideoInfo) -> list[Finding]:
    if len(info.key_frames) > 1 or info.duration_s < _ONE_KEY_FRAME_S or info.frames < 2:
        return []
    return [
        Finding(
            "odd",
            f"its first frame of {info.frames} is its only key frame, so that nothing is decoded without all "
            f"before it, nor by several cores; ffmpeg -i {path!r} -g {_GOOD_GROUP} OUT.mp4",
        )
    ]


_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)


def _text(item: Item) -> list[Finding]:
    content = texts.read(item)
    halves = False
    if item.name.rpartition(".")[2] in _JSON_NAMES:
        texts.decode_json(content, item.path)
        halves = texts.with_whole_escapes(content.encode()) != content.encode()
    with item.open() as file:
        raw = file.read(item.size)
    found = []
    if not content.strip():
        found.append(Finding("odd", "an empty text; leave it out if that is not meant"))
    if raw.startswith(codecs.BOM_UTF8):
        found.append(Finding("odd", "begins with a byte order mark; write it as UTF-8 without one"))
    if raw.startswith(_WIDE_MARKS):
        found.append(Finding("odd", "UTF-16 or UTF-32, which other tools may not read; write it as UTF-8"))
    if "\ufffd" in content or halves:
        found.append(
            Finding("odd", "holds U+FFFD, or half a surrogate pair, which becomes that: something was lost")
        )
    return found


_LOOKS: dict[str, Callable[[Item], list[Finding]]] = {
    "image": _image,
    "video": _video,
    "audio": examine_sound.look,
    "tensor": examine_array.look,
    "text": _text,
}
