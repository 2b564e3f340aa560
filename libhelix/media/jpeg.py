"""JPEG by libjpeg-turbo, as nearly everybody decodes it; strict about what is missing or damaged."""

from __future__ import annotations

import re

import numpy as np
import simplejpeg

from libhelix.errors import MediaError

_PADDED = re.compile(r": [1-4] extraneous bytes before marker 0xd9")
"""Some encoders leave a few bytes between the last pixel and the end marker; nothing is lost by them. More of
them mean that damage made the decoder lose its place."""


def decode(body: bytes, path: str, out: np.ndarray | None = None, shrink: int = 1) -> np.ndarray:
    """The image as uint8 [h, w, 3], in `out` (of that shape, contiguous) where it is given.

    With `shrink` 2, 4 or 8 each side is divided by it, rounded up, which spares most of the work. CMYK and
    YCCK are read as Adobe writes them, inverted. Raises MediaError for what is truncated or damaged.
    """
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(body, strict=False)
        least = {
            "min_height": -(-height // shrink),
            "min_width": -(-width // shrink),
            "min_factor": shrink,
        }
        if colours in ("CMYK", "YCCK"):
            image = _rgb_of_inks(_decode(body, colorspace="CMYK", **least))
            if out is None:
                return image
            np.copyto(out, image)
            return out
        return _decode(body, colorspace="RGB", buffer=out, **least)
    except (ValueError, KeyError) as e:
        raise MediaError(f"{path}: truncated or broken jpeg ({e}); fetch it again or leave it out") from e


def _decode(body: bytes, **settings: object) -> np.ndarray:
    try:
        image: np.ndarray = simplejpeg.decode_jpeg(body, strict=True, **settings)
    except ValueError as e:
        # Only the first complaint is told; none can follow this one, which is about the very end.
        if _PADDED.search(str(e)) is None:
            raise
        image = simplejpeg.decode_jpeg(body, strict=False, **settings)
    return image


def _rgb_of_inks(inks: np.ndarray) -> np.ndarray:
    """Inverted CMYK [h, w, 4] as RGB: c * k / 255, rounded, by the arithmetic of Pillow."""
    key = inks[:, :, 3:].astype(np.uint16)
    product = (255 - inks[:, :, :3].astype(np.uint16)) * key + 128
    return (key - ((product >> 8) + product >> 8)).astype(np.uint8)
