"""Uniform workloads: some frames of clips of one size. Their clips are encoded once and cached."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.progress import Progress

from bench.clips import DIRECTIONS, ClipPlan, encode_all
from bench.samples import write_index
from libhelix.recipes import Clip

CLIPS_VERSION = "1"
"""Raise it when the clips change: figures of different versions must not be compared."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Batches of `batch` samples of `frames` frames of `height` x `width`, from clips that are
    `clip_width` x `clip_height` and `clip_frames` long."""

    name: str
    frames: int
    height: int
    width: int
    batch: int
    clip_width: int
    clip_height: int
    clip_frames: int = 48
    clips: int = 24
    codec: str = "h264"

    @property
    def recipe(self) -> Clip:
        """What decodes it."""
        return Clip(frames=self.frames, size=(self.height, self.width))

    @property
    def sample_bytes(self) -> int:
        """Bytes of a decoded sample."""
        return self.frames * self.height * self.width * 3

    @property
    def batch_bytes(self) -> int:
        """Bytes of a decoded batch."""
        return self.batch * self.sample_bytes

    def plans(self) -> list[ClipPlan]:
        """The clips to encode."""
        return [
            ClipPlan(
                name=f"class{i % len(DIRECTIONS)}/clip{i:03d}.mp4",
                codec=self.codec,
                width=self.clip_width,
                height=self.clip_height,
                frames=self.clip_frames,
                direction=i % len(DIRECTIONS),
                seed=i,
            )
            for i in range(self.clips)
        ]


SMALL = Workload(name="8x224x224", frames=8, height=224, width=224, batch=16, clip_width=424, clip_height=240)
MEDIUM = Workload(
    name="16x360x640", frames=16, height=360, width=640, batch=4, clip_width=640, clip_height=360
)
LARGE = Workload(
    name="32x720x1280", frames=32, height=720, width=1280, batch=1, clip_width=1280, clip_height=720
)
WORKLOADS = (SMALL, MEDIUM, LARGE)


def prepare(workload: Workload, cache: Path, scratch: Path, progress: Progress) -> Path:
    """Its index, in the folder `scratch`; clips that the cache lacks are encoded."""
    kind = f"{workload.codec}-{workload.clip_width}x{workload.clip_height}-{workload.clip_frames}"
    clips = cache / "bench" / CLIPS_VERSION / kind
    encode_all(workload.plans(), clips, progress)
    return write_index(clips, scratch / f"{workload.name}.arrow")
