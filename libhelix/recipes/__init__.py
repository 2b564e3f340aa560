"""Built-in recipes. Importing this package imports none of them (PEP 562)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from libhelix.recipes.audio import Audio as Audio
    from libhelix.recipes.clip import Clip as Clip
    from libhelix.recipes.dit import VideoDiT as VideoDiT
    from libhelix.recipes.image import Image as Image
    from libhelix.recipes.internvl import InternVL as InternVL
    from libhelix.recipes.llava import LlavaOneVision as LlavaOneVision
    from libhelix.recipes.qwen import QwenVL as QwenVL
    from libhelix.recipes.qwen2_audio import Qwen2Audio as Qwen2Audio
    from libhelix.recipes.tensor import Tensor as Tensor
    from libhelix.recipes.text import Text as Text
    from libhelix.recipes.together import Together as Together

_HOMES = {
    "Audio": "libhelix.recipes.audio",
    "Clip": "libhelix.recipes.clip",
    "Image": "libhelix.recipes.image",
    "InternVL": "libhelix.recipes.internvl",
    "LlavaOneVision": "libhelix.recipes.llava",
    "Qwen2Audio": "libhelix.recipes.qwen2_audio",
    "QwenVL": "libhelix.recipes.qwen",
    "Tensor": "libhelix.recipes.tensor",
    "Text": "libhelix.recipes.text",
    "Together": "libhelix.recipes.together",
    "VideoDiT": "libhelix.recipes.dit",
}

__all__ = [
    "Audio",
    "Clip",
    "Image",
    "InternVL",
    "LlavaOneVision",
    "Qwen2Audio",
    "QwenVL",
    "Tensor",
    "Text",
    "Together",
    "VideoDiT",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"libhelix.recipes has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
