"""What the processes of `bench media` say to each other."""

from __future__ import annotations

from typing import Literal

import msgspec

Medium = Literal["video", "image", "sound"]


class Work(msgspec.Struct, frozen=True):
    """A file, and what is wanted of it: these frames of a video, all of an image or a sound; at their own
    size, as RGB, and at their own rate, as float32."""

    medium: Medium
    path: str
    frames: tuple[int, ...] = ()


class Use(msgspec.Struct, frozen=True, tag=True):
    """Load this library."""

    system: str


class Decode(msgspec.Struct, frozen=True, tag=True):
    """Do the work `times`; `save` the result as .npy, or not."""

    work: Work
    times: int = 1
    save: str = ""


class Used(msgspec.Struct, frozen=True):
    """Its version, or why it cannot be used."""

    version: str = ""
    missing: str = ""


class Decoded(msgspec.Struct, frozen=True):
    """The least CPU time of all threads that doing the work once took, or why it cannot be done."""

    cpu_s: float = 0.0
    error: str = ""
