"""Synthetic clips and images. Every frame carries its number, so that a test knows which one it got.

The number stands in the top quarter as twelve black or white columns, most significant bit first: it
survives lossy codecs and scaling. The rest is a texture that moves, so that a wrong frame is also wrong in
its pixels.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from bench.clips import keeping_scheduling_policy

BITS = 12

_ENCODERS = {
    "h264": "libx264",
    "hevc": "libx265",
    "vp9": "libvpx-vp9",
    "vp8": "libvpx",
    "av1": "libsvtav1",
    "mpeg4": "mpeg4",
}


def picture(number: int, size: tuple[int, int]) -> np.ndarray:
    """Frame `number` as uint8 [h, w, 3]."""
    h, w = size
    y, x = np.mgrid[0:h, 0:w]
    image = np.stack([(x * 3 + number * 7) % 256, (y * 5 + number * 3) % 256, (x + y + number * 11) % 256], 2)
    image[h // 4 :] = image[h // 4 :] // 2 + 64
    bits = (number >> (BITS - 1 - np.arange(w) * BITS // w)) & 1
    image[: h // 4] = (bits * 255)[None, :, None]
    return image.astype(np.uint8)


def read_number(image: np.ndarray) -> int:
    """The frame number in an upright image [h, w, 3] that shows the whole width."""
    h, w = image.shape[:2]
    row = image[h // 8].mean(axis=1)
    number = 0
    for bit in range(BITS):
        number = number * 2 + int(row[(2 * bit + 1) * w // (2 * BITS)] > 128)
    return number


def _options(codec: str, gop: int, bframes: int, open_gop: bool) -> dict[str, str]:
    if codec == "h264":
        extra = f"keyint={gop}:min-keyint={gop}:scenecut=0:bframes={bframes}:open-gop={int(open_gop)}"
        return {"preset": "veryfast", "crf": "28", "x264-params": extra}
    if codec == "hevc":
        extra = f"keyint={gop}:min-keyint={gop}:scenecut=0:bframes={bframes}:open-gop={int(open_gop)}"
        return {"preset": "ultrafast", "crf": "30", "x265-params": extra + ":log-level=none:pools=none"}
    if codec in ("vp8", "vp9"):
        return {"deadline": "good", "cpu-used": "8", "crf": "40", "b": "0", "lag-in-frames": "16"}
    if codec == "av1":
        return {"preset": "12", "crf": "45", "svtav1-params": f"keyint={gop}:lp=1"}
    return {"bf": str(bframes), "qscale": "4"}


def make_clip(
    path: Path,
    frames: int = 48,
    *,
    codec: str = "h264",
    size: tuple[int, int] = (96, 192),
    gop: int = 12,
    bframes: int = 2,
    fps: int = 25,
    pts: Sequence[int] | None = None,
    start: int = 0,
    rotation: int = 0,
    open_gop: bool = False,
    muxer: dict[str, str] | None = None,
    first_number: int = 0,
) -> Path:
    """Write a clip; the suffix of `path` chooses the container.

    Frame i is shown at `start` + i (or `pts[i]`) in units of 1/fps seconds. `rotation` is clockwise, as
    needed to show the picture upright, and writes an mp4 display matrix.
    """
    with keeping_scheduling_policy(), av.open(str(path), "w", options=muxer or {}) as container:
        stream: Any = container.add_stream(
            _ENCODERS[codec], rate=fps, options=_options(codec, gop, bframes, open_gop)
        )
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = gop
        stream.codec_context.thread_count = 1
        stream.codec_context.time_base = Fraction(1, fps)
        for i in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(first_number + i, size), format="rgb24")
            frame.pts = start + (pts[i] if pts is not None else i)
            frame.time_base = Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    if rotation:
        turn_display(path, rotation)
    return path


_TURNS = {
    90: (0, 1, -1, 0),
    180: (-1, 0, 0, -1),
    270: (0, -1, 1, 0),
}
"""(a, b, c, d) of the mp4 display matrix: x' = a*x + c*y, y' = b*x + d*y, with y pointing down.

For 90, the right edge's direction (1, 0) becomes (0, 1), down: a clockwise turn.
"""


def turn_display(path: Path, rotation: int) -> None:
    """Patch the display matrix of the first track of an mp4 file."""
    body = bytearray(path.read_bytes())
    at = body.index(b"tkhd") + 4
    matrix = at + (52 if body[at] == 1 else 40)
    a, b, c, d = (v * 0x10000 for v in _TURNS[rotation])
    body[matrix : matrix + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 0x40000000)
    path.write_bytes(body)


def damage_packets(path: Path, numbers: Sequence[int], seed: int = 0) -> None:
    """Overwrite the second half of packets (in file order) with noise."""
    with av.open(str(path)) as container:
        places = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    body = bytearray(path.read_bytes())
    noise = np.random.default_rng(seed)
    for number in numbers:
        position, size = places[number]
        assert position is not None
        half = size // 2
        body[position + half : position + size] = noise.bytes(size - half)
    path.write_bytes(body)
