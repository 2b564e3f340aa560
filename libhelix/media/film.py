"""What times and sizes of packets say of a film: the same arithmetic for demuxed packets and for tables."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from libhelix.recipe import VideoInfo

Array = np.ndarray[Any, np.dtype[Any]]


class Packets(NamedTuple):
    """Packets of a video stream in the order of decoding, an array for each thing."""

    pts: Array
    size: Array
    key: Array


def film(
    packets: Packets,
    shown: Array,
    last: int,
    *,
    codec: str,
    stream: int,
    size: tuple[int, int],
    rotation: int,
    time_base: tuple[int, int],
    seekable: bool,
    mirrored: bool = False,
    sar: tuple[int, int] = (1, 1),
) -> VideoInfo:
    """`shown`: times of shown frames, rising; `last`: ticks that the last of them lasts, where they are not
    equally far apart."""
    steps = np.diff(shown)
    constant = not len(steps) or steps.min() == steps.max()
    step = int(steps[0]) if constant and len(steps) else last
    duration = int(shown[-1] - shown[0]) + (step if constant else last)
    seconds = duration * time_base[0] / time_base[1]
    keys = np.unique(packets.pts[packets.key])
    sizes = np.zeros(len(keys), np.int64)
    if len(keys):
        groups = np.maximum(np.searchsorted(keys, packets.pts, "right") - 1, 0)
        np.add.at(sizes, groups, packets.size)
    return VideoInfo(
        codec=codec,
        stream=stream,
        width=size[0],
        height=size[1],
        rotation=rotation,
        mirrored=mirrored,
        sar=sar,
        frames=len(shown),
        fps=len(shown) / seconds if seconds > 0 else 0.0,
        duration_s=seconds,
        time_base=time_base,
        start_pts=int(shown[0]),
        pts_step=step,
        pts=None if constant else tuple(shown.tolist()),
        key_pts=tuple(keys.tolist()),
        key_frames=tuple(np.minimum(np.searchsorted(shown, keys), len(shown) - 1).tolist()),
        key_bytes=tuple(sizes.tolist()),
        seekable=seekable and bool(len(keys)),
        ordered=False,
    )
