"""What the files of a Qwen-VL checkpoint say of how its inputs are made.

config.json                       the model, and how many positions a second has
preprocessor_config.json          limits of a picture's pixels, and the scale of their values
video_preprocessor_config.json    the same for videos, and how many frames are taken; without it, as pictures
processor_config.json             both, as transformers 5 writes them; it wins
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, get_args

import msgspec

from libhelix.errors import UsageError
from libhelix.media.jsonfile import processor, read_object, warn_of_defaults
from libhelix.plan.counts.qwen import Model, factor

_MODELS: Mapping[str, Model] = {
    "qwen2_vl": "qwen2-vl",
    "qwen2_5_vl": "qwen2.5-vl",
    "qwen3_vl": "qwen3-vl",
    "qwen3_vl_moe": "qwen3-vl",
}
_CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
_TOKENS_PER_SECOND = 4
"""Where config.json says nothing, as in transformers."""


class Limits(msgspec.Struct, frozen=True):
    """Pixels of a picture, or of a video; None: the model's default."""

    least: int | None = None
    most: int | None = None


class Vision(msgspec.Struct, frozen=True):
    """How a checkpoint's inputs are made. `mean` and `std` are of values in [0, 1], by channel."""

    model: Model
    image: Limits
    video: Limits
    fps: float
    min_frames: int
    max_frames: int
    cap_pixels_per_frame: bool
    tokens_per_second: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@lru_cache(maxsize=8)
def vision(folder: str, model: Model | None = None) -> Vision:
    """What a checkpoint's folder says; `model` where its config.json does not. Raises UsageError."""
    config = read_object(os.path.join(folder, "config.json"))
    found = model or _model(config)
    if found is None:
        raise UsageError(
            f"{folder}: config.json has the model_type {config.get('model_type')!r}; name the folder of a "
            f"Qwen-VL checkpoint, or say model=, one of {', '.join(get_args(Model))}"
        )
    image = processor(folder, "image_processor")
    video = processor(folder, "video_processor", "video_preprocessor_config.json")
    _check(folder, image, found)
    _check(folder, video, found)
    mean, std = _HALF if found == "qwen3-vl" else _CLIP
    assumed = f"pictures have the limits in the code of {found}, the mean {mean} and the deviation {std}"
    warn_of_defaults(folder, "image_processor", assumed)
    rate = _part(config, "vision_config").get("tokens_per_second", _TOKENS_PER_SECOND)
    try:
        return msgspec.convert(
            {
                "model": found,
                "image": _limits(image),
                "video": _limits(video or image),
                "fps": video.get("fps") or 2.0,
                "min_frames": video.get("min_frames") or 4,
                "max_frames": video.get("max_frames") or 768,
                "cap_pixels_per_frame": video.get("cap_pixels_per_frame") or False,
                "tokens_per_second": rate if found == "qwen2.5-vl" else 1,
                "mean": image.get("image_mean") or mean,
                "std": image.get("image_std") or std,
            },
            Vision,
        )
    except msgspec.ValidationError as e:
        raise UsageError(f"{folder}: its preprocessor configuration cannot be used: {e}") from e


def _model(config: Mapping[str, Any]) -> Model | None:
    found = config.get("model_type")
    return _MODELS.get(found) if isinstance(found, str) else None


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _limits(config: Mapping[str, Any]) -> dict[str, Any]:
    size = _part(config, "size")

    def limit(own: str, shared: str) -> Any:
        found = config.get(own)
        found = size.get(shared) if found is None else found
        return size.get(own) if found is None else found

    return {"least": limit("min_pixels", "shortest_edge"), "most": limit("max_pixels", "longest_edge")}


def _check(folder: str, config: Mapping[str, Any], model: Model) -> None:
    patch = factor(model) // 2
    for name, value in (("patch_size", patch), ("merge_size", 2), ("temporal_patch_size", 2)):
        if config.get(name, value) != value:
            raise UsageError(
                f"{folder}: its preprocessor configuration has {name} {config[name]!r}, {model} has {value}; "
                "is this the checkpoint of that model?"
            )
