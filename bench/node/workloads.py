"""The eleven workloads: a distribution with its source, files of that size, and a recipe.

Lengths are divided by a number, and pictures by another, so that all files are made in some minutes on two
cores; the shape of a distribution stays. All films have 24 frames a second. tables.py has the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from bench.clips import FPS, ClipPlan
from bench.node.media import ImagePlan, LinkPlan, Plan, SoundPlan, TextPlan
from bench.node.recipe import Moment, Omni, Unpadded
from bench.node.tables import drawn, ugc_sizes
from libhelix.recipe import Recipe
from libhelix.recipes import Clip, VideoDiT
from libhelix.recipes.rows import spec_of

VERSION = "1"
"""Raise it when files or recipes change: figures of different versions must not be compared."""
GOP = 12
"""Frames from one key frame to the next: lengths are divided, and so are the places where one may cut."""
_SUFFIX = {"vp9": ".webm"}


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """`plans(n)`: the files of n samples; a sample is a file, or with `folders` a folder of files. `control`:
    samples are so alike that there is little to gain. `scale`: what was divided; by `emulated_scale` emulated
    decoding makes up for it."""

    number: int
    name: str
    title: str
    distribution: str
    scale: str
    recipe: Recipe
    plans: Callable[[int], Sequence[Plan]]
    emulated_scale: float = 1.0
    folders: bool = False
    control: bool = False


def _clips(
    seconds: Sequence[float], size: tuple[int, int], codecs: Sequence[str] = ("h264",), gop: int = GOP
) -> list[ClipPlan]:
    return [
        ClipPlan(
            name=f"{i:05d}{_SUFFIX.get(codecs[i % len(codecs)], '.mp4')}",
            codec=codecs[i % len(codecs)],
            width=size[0],
            height=size[1],
            frames=max(4, round(s * FPS)),
            direction=i % 4,
            seed=i,
            gop=gop,
        )
        for i, s in enumerate(seconds)
    ]


def _short(n: int) -> list[Plan]:
    return [*_clips((drawn("ucf101_s", n) / 2).tolist(), (160, 120))]


def _untrimmed(n: int) -> list[Plan]:
    return [*_clips((drawn("video:activitynet", n) / 16).tolist(), (256, 144))]


def _moments(n: int) -> list[Plan]:
    """Sources, and names of them that say which moment is wanted: M-<start ms>-<length ms>-...

    Sources are a quarter as many as moments.
    """
    sources = _clips((drawn("source_s", max(1, n // 4)) / 4).tolist(), (192, 108))
    sources = [msgspec.structs.replace(s, name=f".sources/{s.name}") for s in sources]
    lengths_s = drawn("video:moments", n) / 4
    places = np.random.default_rng(3).random(n)
    found: list[Plan] = [*sources]
    for i in range(n):
        source = sources[i % len(sources)]
        whole_s = source.frames / FPS
        length_s = min(float(lengths_s[i]), whole_s)
        start_ms = round(float(places[i]) * (whole_s - length_s) * 1000)
        found.append(LinkPlan(f"M-{start_ms}-{max(1, round(length_s * 1000))}-{i:05d}.mp4", source.name))
    return found


def _uniform(n: int) -> list[Plan]:
    return [*_clips((drawn("video:charades", n) / 8).tolist(), (192, 144))]


def _heavy(n: int) -> list[Plan]:
    return [*_clips((drawn("video:thumos", n) / 32).tolist(), (192, 108))]


def _mixed(n: int) -> list[Plan]:
    codecs = ("h264", "hevc", "h264", "vp9", "h264", "hevc", "h264", "vp9", "h264", "av1")
    clips = _clips((drawn("video:moments", n, "dit") / 4).tolist(), (0, 0), codecs)
    return [
        msgspec.structs.replace(clip, width=max(64, w // 6 // 2 * 2), height=max(64, h // 6 // 2 * 2))
        for clip, (w, h) in zip(clips, ugc_sizes(n))
    ]


def _image(name: str, pixels: float, aspect: float, seed: int) -> ImagePlan:
    width = max(16, round((pixels * aspect) ** 0.5))
    return ImagePlan(name, width, max(16, round(pixels / width)), seed)


def _pairs(n: int) -> list[Plan]:
    px, aspect = drawn("coco_px", n), drawn("coco_aspect", n)
    words = np.random.default_rng(7).integers(40, 151, n)
    return [
        plan
        for i in range(n)
        for plan in (
            _image(f"{i:05d}/image.jpg", px[i], aspect[i], i),
            TextPlan(f"{i:05d}/caption.txt", int(words[i])),
        )
    ]


def _documents(n: int) -> list[Plan]:
    px, aspect = drawn("scan_px", n) / 4, drawn("scan_aspect", n)
    return [
        plan
        for i in range(n)
        for plan in (
            _image(f"{i:05d}/page.jpg", px[i], aspect[i], i),
            TextPlan(f"{i:05d}/text.txt", 180),
        )
    ]


def _interleaved(n: int, prefix: str = "") -> list[Plan]:
    counts = np.rint(drawn("mmc4_images", n)).astype(int).tolist()
    px, aspect = drawn("docs_px", sum(counts)) / 4, drawn("docs_aspect", sum(counts))
    found: list[Plan] = []
    at = 0
    for i, count in enumerate(counts):
        for j in range(count):
            found.append(_image(f"{prefix}{i:05d}/{j:02d}.png", px[at], min(aspect[at], 6.0), at))
            at += 1
        found.append(TextPlan(f"{prefix}{i:05d}/text.txt", 440))
    return found


def _audio_visual(n: int) -> list[Plan]:
    sounds = drawn("speech_s", n)
    clips = _clips((drawn("video:moments", n, "av") / 4).tolist(), (160, 96))
    return [
        plan
        for i in range(n)
        for plan in (
            msgspec.structs.replace(clips[i], name=f"{i:05d}/film.mp4"),
            SoundPlan(f"{i:05d}/sound.{'opus' if i % 2 else 'flac'}", float(sounds[i]), i),
        )
    ]


def _omni(n: int) -> list[Plan]:
    px, aspect = drawn("coco_px", n, "omni"), drawn("coco_aspect", n, "omni")
    films = _clips((drawn("video:activitynet", n, "omni") / 16).tolist(), (256, 144))
    turns, chats = drawn("sound:turns", n, "omni"), drawn("tokens:chat", n, "omni")
    documents = _interleaved(max(1, n * 15 // 100), "doc")
    found: list[Plan] = list(documents)
    for i in range(n):
        kind = (i * 37) % 100  # 40 % images, 20 % films, 15 % documents, 15 % turns, 10 % chats
        if kind < 40:
            found.append(_image(f"{i:05d}/image.jpg", px[i], aspect[i], i))
            found.append(TextPlan(f"{i:05d}/caption.txt", 80))
        elif kind < 60:
            found.append(msgspec.structs.replace(films[i], name=f"{i:05d}/film.mp4"))
        elif 75 <= kind < 90:
            found.append(SoundPlan(f"{i:05d}/turn.flac", max(0.2, float(turns[i])), i))
        elif kind >= 90:
            found.append(TextPlan(f"{i:05d}/chat.txt", max(1, int(chats[i]))))
    return found


def _clip(size: tuple[int, int], rate: float, most: int) -> Clip:
    return Clip(rate=rate, max_frames=most, size=size, layout="pack")


_OMNI = Omni(max_side=1120)
_DIT = Unpadded(inner=spec_of(VideoDiT(area=128 * 128, frames=81, rate=16.0)))

WORKLOADS = (
    Workload(
        number=1,
        name="short-clips",
        title="short clip and caption",
        distribution="ucf101_s",
        scale="length / 2, 160 x 120",
        recipe=_clip((64, 64), 8.0, 256),
        plans=_short,
        emulated_scale=8,
    ),
    Workload(
        number=2,
        name="untrimmed",
        title="untrimmed video, question answering",
        distribution="activitynet",
        scale="length / 16, 256 x 144",
        recipe=_clip((64, 112), 4.0, 256),
        plans=_untrimmed,
        emulated_scale=16,
    ),
    Workload(
        number=3,
        name="moments",
        title="moments cut from long sources",
        distribution="moments, source_s",
        scale="length / 4, 192 x 108",
        recipe=Moment(rate=8.0, size=(64, 112)),
        plans=_moments,
        emulated_scale=4,
    ),
    Workload(
        number=4,
        name="uniform",
        title="near-uniform video",
        distribution="charades",
        scale="length / 8, 192 x 144",
        recipe=_clip((64, 96), 8.0, 256),
        plans=_uniform,
        emulated_scale=8,
        control=True,
    ),
    Workload(
        number=5,
        name="heavy-tail",
        title="heavy-tailed video",
        distribution="thumos",
        scale="length / 32, 192 x 108",
        recipe=_clip((64, 112), 4.0, 256),
        plans=_heavy,
        emulated_scale=32,
    ),
    Workload(
        number=6,
        name="video-dit",
        title="video DiT, mixed sizes and codecs",
        distribution="moments, ugc sizes",
        scale="length / 4, sides / 6",
        recipe=_DIT,
        plans=_mixed,
        emulated_scale=144,
    ),
    Workload(
        number=7,
        name="pairs",
        title="image-text pairs",
        distribution="coco",
        scale="none",
        recipe=_OMNI,
        plans=_pairs,
        folders=True,
        control=True,
    ),
    Workload(
        number=8,
        name="documents",
        title="documents",
        distribution="scans",
        scale="sides / 2",
        recipe=_OMNI,
        plans=_documents,
        emulated_scale=4,
        folders=True,
    ),
    Workload(
        number=9,
        name="interleaved",
        title="interleaved documents",
        distribution="mmc4 x docs",
        scale="sides / 2, aspect at most 6",
        recipe=_OMNI,
        plans=_interleaved,
        emulated_scale=4,
        folders=True,
    ),
    Workload(
        number=10,
        name="audio-visual",
        title="film and sound",
        distribution="moments, speech",
        scale="film length / 4, 160 x 96",
        recipe=_OMNI,
        plans=_audio_visual,
        emulated_scale=4,
        folders=True,
    ),
    Workload(
        number=11,
        name="omni",
        title="omni mixture",
        distribution="40 % pairs, 20 % untrimmed, 15 % interleaved, 15 % turns, 10 % chat",
        scale="as those",
        recipe=_OMNI,
        plans=_omni,
        emulated_scale=4,
        folders=True,
    ),
)
BY_NAME = {w.name: w for w in WORKLOADS}
