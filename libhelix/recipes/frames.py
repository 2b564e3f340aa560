"""What recipes over the frames of one video share. Images may be its frames, in the order of their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from libhelix.errors import MediaError, RecipeError, UsageError
from libhelix.media import image_cost
from libhelix.media.geometry import Fit, Size, Unfit
from libhelix.recipe import (
    Descriptor,
    Field,
    Item,
    Layout,
    Part,
    Sample,
    VideoInfo,
    merge_segments,
)

Order = Literal["THWC", "TCHW"]
MOST_SIDE = 16384
_FITS = ("crop", "letterbox", "stretch")


def video_of(sample: Sample) -> tuple[Item, VideoInfo]:
    """The video of a sample. Raises MediaError where it has none."""
    item = sample.item("video")
    if item.video is None:
        raise MediaError(f"{sample.key}: indexed without a demux scan; run helixctl index again")
    return item, item.video


def stills_of(sample: Sample) -> tuple[Item, ...]:
    """The images that are the frames of a sample: those called video/..., or several of any name, in the
    order of their names (2 before 10). Nothing where it has a video, or one image that is just one."""
    images = sample.all("image")
    if not images or sample.all("video"):
        return ()
    named = [item for item in images if item.name.startswith(("video/", "videos/"))]
    if not named and len(images) == 1:
        return ()
    return tuple(sorted(named or images, key=_natural))


def _natural(item: Item) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", item.name))


def film_of(sample: Sample, fps: float | None = None) -> VideoInfo:
    """The video of a sample, or its images as one: each a group of its own, `fps` of them a second (one,
    where that is not said). Raises MediaError where it has neither."""
    stills = stills_of(sample)
    if not stills:
        return video_of(sample)[1]
    rate = Fraction(fps or 1.0).limit_denominator(1_000_000)
    n, first = len(stills), stills[0].image
    if any(item.image is None for item in stills) or first is None:
        raise MediaError(f"{sample.key}: indexed without image headers; run helixctl index again")
    height, width = first.display_size
    return VideoInfo(
        codec=first.codec,
        stream=0,
        width=width,
        height=height,
        rotation=0,
        frames=n,
        fps=float(rate),
        duration_s=float(n / rate),
        time_base=(rate.denominator, rate.numerator),
        start_pts=0,
        pts_step=1,
        key_pts=tuple(range(n)),
        key_frames=tuple(range(n)),
        key_bytes=tuple(item.size for item in stills),
    )


def timed_film_of(sample: Sample, fps: float | None, recipe: str) -> VideoInfo:
    """`film_of` for a recipe that needs times. Raises RecipeError where images have none."""
    if fps is None and stills_of(sample):
        raise RecipeError(
            f"{sample.key}: its frames are images, which have no times; say how many are a second, "
            f"{recipe}(rate=..., fps=25), or take {recipe}(frames=...)"
        )
    return film_of(sample, fps)


def described(
    info: VideoInfo,
    chosen: Sequence[int],
    size: tuple[int, int],
    *,
    order: Order,
    layout: Layout,
    costs: Mapping[str, int],
    group: str = "",
    stills: Sequence[Item] = (),
    fit: Fit = "crop",
) -> Descriptor:
    """These frames as the field "video" of `size` pictures, cut where their key-frame group changes."""
    # Imported here: a trainer makes recipes and must not load FFmpeg for it.
    from libhelix.media.video import decode_cost_us, group_cuts

    n, (h, w) = len(chosen), size
    cuts = group_cuts(info, chosen)
    if stills:
        segment_us = _stills_us(stills, chosen, cuts, size, fit)
    else:
        segment_us = decode_cost_us(info, chosen, h * w)
    cuts, segment_us = merge_segments(cuts, segment_us)
    shape = (n, h, w, 3) if order == "THWC" else (n, 3, h, w)
    return Descriptor(
        fields=(Field("video", "uint8", shape, layout, rows_per_unit=1),),
        units=n,
        cuts=cuts,
        segment_us=segment_us,
        costs=costs,
        group=group,
        draws=tuple(chosen),
        kind=info.codec,
        threads=not stills,
    )


def _stills_us(
    stills: Sequence[Item], chosen: Sequence[int], cuts: Sequence[int], size: Size, fit: Fit
) -> tuple[int, ...]:
    """What each of the segments costs: one image, however often it is wanted."""
    return tuple(image_cost.decode_cost_us(stills[chosen[at]], size, fit) for at in (0, *cuts))


def fill_frames(
    sample: Sample,
    chosen: Sequence[int],
    part: Part,
    video: np.ndarray,
    order: Order,
    *,
    fit: Fit = "crop",
    grey: int = 0,
) -> None:
    """Decode the part's frames of those chosen into `video`, which is the part's rows."""
    places: dict[int, list[int]] = {}
    for at, frame in enumerate(chosen[part.begin : part.end]):
        places.setdefault(frame, []).append(at)
    stills = stills_of(sample)
    if stills:
        _fill_stills([stills[frame] for frame in places], list(places.values()), video, order, fit, grey)
    else:
        _fill_video(sample, places, part.threads, video, order, fit, grey)


def _fill_video(
    sample: Sample,
    places: Mapping[int, Sequence[int]],
    threads: int,
    video: np.ndarray,
    order: Order,
    fit: Fit,
    grey: int,
) -> None:
    from libhelix.media.pixels import write_frame
    from libhelix.media.sampler import decode

    item, info = video_of(sample)

    def put(frame: int, picture: Any) -> None:
        first, *others = places[frame]
        try:
            write_frame(picture, info, video[first], _ORDERS[order], fit=fit, grey=grey)
        except Unfit as e:
            raise MediaError(f"{item.path}: {e}") from e
        for at in others:
            video[at] = video[first]

    decode(item, list(places), put, threads=threads)


def _fill_stills(
    items: Sequence[Item],
    places: Sequence[Sequence[int]],
    video: np.ndarray,
    order: Order,
    fit: Fit,
    grey: int,
) -> None:
    from libhelix.media.image import decode

    for item, (first, *others) in zip(items, places):
        decode(item, video[first], _ORDERS[order], fit=fit, grey=grey)
        for at in others:
            video[at] = video[first]


_ORDERS: dict[Order, Literal["HWC", "CHW"]] = {"THWC": "HWC", "TCHW": "CHW"}


def check_order(recipe: str, order: object) -> None:
    """Raise UsageError unless it is one of the two."""
    if order not in _ORDERS:
        raise UsageError(f'{recipe}(order={order!r}) must be "THWC" or "TCHW"')


def check_fit(recipe: str, fit: object, grey: object) -> None:
    """Raise UsageError unless these say how a picture fills its size."""
    if fit not in _FITS:
        raise UsageError(f"{recipe}(fit={fit!r}) must be one of {', '.join(_FITS)}")
    if type(grey) is not int or not 0 <= grey <= 255:
        raise UsageError(f"{recipe}(grey={grey!r}) must be an integer from 0 (black) to 255 (white)")
    if grey and fit != "letterbox":
        raise UsageError(f'{recipe}(grey={grey}) is what fit="letterbox" leaves room for; leave it out')


def check_size(recipe: str, size: object) -> None:
    """Raise UsageError unless `size` is (height, width) in pixels."""
    sides = size if isinstance(size, (tuple, list)) else ()
    if len(sides) != 2 or not all(type(n) is int and 1 <= n <= MOST_SIDE for n in sides):
        raise UsageError(
            f"{recipe}(size={size!r}) must be (height, width), each 1 to {MOST_SIDE}, such as size=(224, 224)"
        )


def check_count(recipe: str, name: str, value: object) -> None:
    """Raise UsageError unless it is a whole number of 1 or more."""
    if type(value) is not int or value < 1:
        raise UsageError(f"{recipe}({name}={value!r}) must be an integer of 1 or more")
