"""What a checkpoint's folder says beside its tokenizer: how pictures become the model's floats."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from libhelix.errors import UsageError
from libhelix.media.jsonfile import processor, warn_of_defaults

Array = np.ndarray[Any, np.dtype[Any]]
Floats = tuple[float, ...]


def check_checkpoint(recipe: str, folder: str) -> str:
    """The folder as workers find it. Raises UsageError where it holds no tokenizer."""
    absolute = os.path.abspath(folder)  # workers start elsewhere
    if not os.path.isfile(os.path.join(absolute, "tokenizer.json")):
        raise UsageError(
            f"{recipe}(checkpoint={folder!r}): has no tokenizer.json; name the folder of a checkpoint"
        )
    return absolute


@lru_cache(maxsize=8)
def processor_of(folder: str, part: str = "image_processor") -> Mapping[str, Any]:
    """The settings of a part of a checkpoint's processor; none where the folder does not say any."""
    return processor(folder, part)


def check_side(recipe: str, folder: str, side: int) -> None:
    """Raise UsageError where a checkpoint's pictures are of another size; warn where it says none."""
    warn_of_defaults(folder, "image_processor", f"{recipe} takes pictures to be of {side} pixels")
    size = processor_of(folder).get("size", side)
    found = size.get("height", side) if isinstance(size, dict) else size
    if found != side:
        raise UsageError(
            f"{recipe}(checkpoint={folder!r}): its pictures are of {found!r} pixels, not {side}; it is "
            "another model's checkpoint"
        )


@lru_cache(maxsize=8)
def mean_and_std(folder: str) -> tuple[Floats, Floats]:
    """Of the channels, as a checkpoint's image processor has them. Raises UsageError without any."""
    found = processor_of(folder)
    try:
        mean, std = (tuple(float(one) for one in found[name]) for name in ("image_mean", "image_std"))
    except (KeyError, TypeError, ValueError) as e:
        raise UsageError(
            f"{folder}: its preprocessor_config.json has no image_mean and image_std ({e}); fetch it again"
        ) from e
    return mean, std


def scale_and_shift(folder: str) -> tuple[Array, Array]:
    """float32 [3, 1, 1] both: pixels * scale + shift are the floats of the checkpoint's image processor."""
    mean, std = (np.asarray(one)[:, np.newaxis, np.newaxis] for one in mean_and_std(folder))
    return (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)
