"""Pictures of another size, by the bicubic filter with antialiasing that the models' processors use."""

from __future__ import annotations

import numpy as np

from libhelix.errors import UsageError


def bicubic(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """An image [h, w, 3] of uint8 as [height, width, 3], by Pillow's BICUBIC; the image itself where it has
    that size. torchvision's antialiased bicubic is the same to within one level."""
    if image.shape[:2] == (height, width):
        return image
    try:
        from PIL import Image
    except ImportError as e:
        raise UsageError(
            f'resize="exact" needs Pillow ({e}); install it, pip install \'datahelix[chat]\', or take "fast"'
        ) from e
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))
