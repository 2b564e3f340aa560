"""A clip whose parts are on record: which process decoded which units, with how many threads."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from libhelix.recipe import Descriptor, Part, Recipe, Rng, Sample
from libhelix.recipes import Clip


class DecodedPart(msgspec.Struct, frozen=True):
    """A call of `fill`: units [begin, end) by a process; `cpu_s` is of its own thread, not the codec's."""

    pid: int
    begin: int
    end: int
    threads: int
    cpu_s: float


class NotedClip(Recipe, frozen=True):
    """`frames` frames of a clip, uniformly placed; each call of `fill` adds a line to a file in `notes`."""

    frames: int
    size: tuple[int, int]
    notes: str

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """As the clip recipe describes it."""
        return self._clip().describe(sample, rng)

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        """As the clip recipe fills it."""
        began_s = time.thread_time()
        self._clip().fill(sample, desc, part, out)
        cpu_s = time.thread_time() - began_s
        note = DecodedPart(os.getpid(), part.begin, part.end, part.threads, cpu_s)
        with open(os.path.join(self.notes, f"{note.pid}.jsonl"), "ab") as file:
            file.write(msgspec.json.encode(note) + b"\n")

    def _clip(self) -> Clip:
        return Clip(frames=self.frames, size=self.size)


def busiest_cpu_s(parts: Sequence[DecodedPart]) -> float:
    """CPU time of the process that decoded for longest: the others wait for it."""
    return max((sum(p.cpu_s for p in parts if p.pid == pid) for pid in {p.pid for p in parts}), default=0.0)


def take_notes(folder: Path) -> list[DecodedPart]:
    """The parts that were noted since the last call."""
    decoder = msgspec.json.Decoder(DecodedPart)
    found: list[DecodedPart] = []
    for path in folder.glob("*.jsonl"):
        found += decoder.decode_lines(path.read_bytes())
        path.unlink()
    return found
