"""Pictures of another size, by the bicubic filter with antialiasing that the models' processors use."""

from __future__ import annotations

import numpy as np

from libhelix.errors import UsageError


def bicubic(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """An image [h, w, 3] of uint8 as [height, width, 3], by Pillow's BICUBIC, along the rows, then along the
    columns; the image itself where it has that size. torchvision's antialiased bicubic is the same to within
    one level."""
    if image.shape[:2] == (height, width):
        return image
    try:
        from PIL import Image
    except ImportError as e:
        raise UsageError(
            f'resize="exact" needs Pillow ({e}); install it, pip install \'datahelix[chat]\', or take "fast"'
        ) from e
    # In one call, the order of the passes depends on Pillow's version and on the sizes. Between them values
    # are rounded and cut to 0..255, so that the order is seen, by tens of levels at sharp edges.
    rows = Image.fromarray(image).resize((width, image.shape[0]), Image.Resampling.BICUBIC)
    return np.asarray(rows.resize((width, height), Image.Resampling.BICUBIC))
