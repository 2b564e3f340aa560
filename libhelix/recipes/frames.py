"""What recipes over the frames of one video share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from libhelix.errors import MediaError, UsageError
from libhelix.recipe import Descriptor, Field, Item, Layout, Part, Sample, VideoInfo, merge_segments

Order = Literal["THWC", "TCHW"]
MOST_SIDE = 16384


def video_of(sample: Sample) -> tuple[Item, VideoInfo]:
    """The video of a sample. Raises MediaError where it has none."""
    item = sample.item("video")
    if item.video is None:
        raise MediaError(f"{sample.key}: indexed without a demux scan; run helixctl index again")
    return item, item.video


def described(
    info: VideoInfo,
    chosen: Sequence[int],
    size: tuple[int, int],
    *,
    order: Order,
    layout: Layout,
    costs: Mapping[str, int],
    group: str = "",
) -> Descriptor:
    """These frames as the field "video" of `size` pictures, cut where their key-frame group changes."""
    # Imported here: a trainer makes recipes and must not load FFmpeg for it.
    from libhelix.media.video import decode_cost_us, group_cuts

    n, (h, w) = len(chosen), size
    cuts, segment_us = merge_segments(group_cuts(info, chosen), decode_cost_us(info, chosen, h * w))
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
        threads=True,
    )


def fill_frames(sample: Sample, chosen: Sequence[int], part: Part, video: np.ndarray, order: Order) -> None:
    """Decode the part's frames of those chosen into `video`, which is the part's rows."""
    from libhelix.media.pixels import write_frame
    from libhelix.media.sampler import decode

    item, info = video_of(sample)
    places: dict[int, list[int]] = {}
    for at, frame in enumerate(chosen[part.begin : part.end]):
        places.setdefault(frame, []).append(at)

    def put(frame: int, picture: Any) -> None:
        first, *others = places[frame]
        write_frame(picture, info.rotation, video[first], "HWC" if order == "THWC" else "CHW")
        for at in others:
            video[at] = video[first]

    decode(item, list(places), put, threads=part.threads)


def check_order(recipe: str, order: object) -> None:
    """Raise UsageError unless it is one of the two."""
    if order not in ("THWC", "TCHW"):
        raise UsageError(f'{recipe}(order={order!r}) must be "THWC" or "TCHW"')


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
