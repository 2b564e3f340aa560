"""What every decoding path must equal, bit for bit: plain PyAV, everything decoded, nothing skipped.

Written apart from libhelix.media on purpose: no seeking, no cached scaler, other arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import av
import numpy as np

AREA_FULL_CHROMA = 0x20 | 0x2000


def decode_all(path: str | Path) -> list[Any]:
    """Every shown frame of the first video stream, in presentation order."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        return list(container.decode(stream))


def fit(frame: Any, size: tuple[int, int]) -> np.ndarray:
    """A frame as uint8 [h, w, 3]: scaled to cover `size`, turned upright, cropped at the centre."""
    h, w = size
    quarter_turns = (frame.rotation // 90) % 4  # counterclockwise, as FFmpeg counts
    shown_h, shown_w = (frame.width, frame.height) if quarter_turns % 2 else (frame.height, frame.width)
    scale = max(Fraction(h, shown_h), Fraction(w, shown_w))
    scaled_h = floor(shown_h * scale + Fraction(1, 2))
    scaled_w = floor(shown_w * scale + Fraction(1, 2))
    raw_h, raw_w = (scaled_w, scaled_h) if quarter_turns % 2 else (scaled_h, scaled_w)
    image = frame.reformat(raw_w, raw_h, "gbrp", interpolation=AREA_FULL_CHROMA).to_ndarray()
    image = np.rot90(image, quarter_turns)
    top, left = (scaled_h - h) // 2, (scaled_w - w) // 2
    return np.ascontiguousarray(image[top : top + h, left : left + w])


def reference_clip(
    path: str | Path, frames: Sequence[int], size: tuple[int, int], order: str = "THWC"
) -> np.ndarray:
    """The frames as uint8 [n, h, w, 3] ("THWC") or [n, 3, h, w] ("TCHW")."""
    decoded = decode_all(path)
    clip = np.stack([fit(decoded[i], size) for i in frames])
    return clip if order == "THWC" else np.ascontiguousarray(clip.transpose(0, 3, 1, 2))
