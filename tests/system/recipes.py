"""Recipes of the tests' own, as a user would write them."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Mapping

import msgspec
import numpy as np

from bench.split.recipe import NotedClip
from libhelix import Descriptor, Field, Pack, Pad, Part, Ragged, Recipe, Rng, Sample
from libhelix.errors import MediaError
from libhelix.recipes import Clip


class Plain(Clip, frozen=True):
    """A small clip."""

    frames: int | None = 8
    size: tuple[int, int] = (48, 64)


class Split(Clip, frozen=True):
    """A clip that is so dear by its own word that it is cut at every key frame."""

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        desc = super().describe(sample, rng)
        return msgspec.structs.replace(desc, segment_us=tuple(10**6 for _ in desc.segment_us))


class Drawn(Recipe, frozen=True):
    """Random numbers, a bounded field, a scalar, bfloat16; no media at all."""

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        n = rng.integers(1, 9)
        fields = (
            Field("draws", "int64", (4,)),
            Field("text", "uint8", (16,), Pad(7), bounded=True),
            Field("list", "float32", (10, 2), Ragged(), bounded=True),
            Field("number", "int32", ()),
            Field("half", "bfloat16", (3,)),
            Field("nothing", "float32", (0, 5)),
        )
        return Descriptor(
            fields=fields,
            costs={"tokens": n, "targets": 1},
            draws=(n, [rng.integers(0, 1000) for _ in range(4)]),
        )

    def fill(
        self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]
    ) -> Mapping[str, tuple[int, ...]]:
        n, draws = desc.draws
        out["draws"][...] = draws
        out["text"][:n] = sample.id
        out["list"][:n] = n
        out["number"][...] = sample.id
        out["half"][...] = 0x3F80  # 1.0
        return {"text": (n,), "list": (n, 2)}


class Tokens(Recipe, frozen=True):
    """Packed tokens and patches, as a language model with a vision encoder takes them."""

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        n = sample.id % 7 + 1
        return Descriptor(
            fields=(
                Field("ids", "int64", (n,), Pack(counts="tokens")),
                Field("labels", "int64", (n,), Pack(counts="tokens", value=-100)),
                Field("patches", "uint8", (2, 2 * n), Pack(axis=1, counts="patches", value=9)),
            ),
            costs={"tokens": n, "patches": 2 * n, "targets": n},
        )

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        n = desc.costs["tokens"]
        out["ids"][...] = sample.id
        out["labels"][...] = np.arange(n)
        out["patches"][...] = 1


class Deadly(Plain, frozen=True):
    """The worker that fills sample `deadly` dies of it; one that stands in `once` dies the first time."""

    deadly: int = -1
    once: str = ""
    in_describe: bool = False

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        if self.in_describe and sample.id == self.deadly:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().describe(sample, rng)

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        if sample.id == self.deadly:
            first = False
            if self.once:
                try:
                    os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
                    first = True
                except FileExistsError:
                    pass
            if first or not self.once:
                ctypes.string_at(0)
        super().fill(sample, desc, part, out)


class BadDescribe(Plain, frozen=True):
    """Fails in describe."""

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        raise KeyError("caption")


class BadFill(Plain, frozen=True):
    """Fails in fill."""

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        raise ZeroDivisionError("a mistake of mine")


class Picky(Plain, frozen=True):
    """Fails in describe where a key ends with `not_described`, in fill where it ends with `not_filled`."""

    not_described: tuple[str, ...] = ()
    not_filled: tuple[str, ...] = ()

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        if sample.key.endswith(self.not_described or ("?",)):
            raise MediaError(f"{sample.key}: not to be described")
        return super().describe(sample, rng)

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        if sample.key.endswith(self.not_filled or ("?",)):
            raise MediaError(f"{sample.key}: not to be filled")
        super().fill(sample, desc, part, out)


class Weighed(Picky, frozen=True):
    """As dear as its key's number says: 1 to 5 tokens."""

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        desc = super().describe(sample, rng)
        return msgspec.structs.replace(desc, costs={"tokens": 1 + int(sample.key[-6:-4]) % 5})


class WrongField(Plain, frozen=True):
    """A dtype that does not exist."""

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        return Descriptor(fields=(Field("video", "float8", (1,)),))


class Restless(Recipe, frozen=True):
    """Another shape for some samples, although the field is stacked."""

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        return Descriptor(fields=(Field("x", "uint8", (3 + sample.id % 2,)),))

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        out["x"][...] = 1


class Suicidal(Plain, frozen=True):
    """Kills the process that loads it, unless that is a trainer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        with open("/proc/self/comm") as file:
            if file.read().startswith("helix-w"):
                os.kill(os.getpid(), signal.SIGKILL)


class Impure(Recipe, frozen=True):
    """Describes a sample otherwise every time."""

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        n = int.from_bytes(os.urandom(2), "little")
        return Descriptor(fields=(Field("x", "uint8", (n,), Ragged()),))

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        out["x"][...] = 1


class Forking(Plain, frozen=True):
    """The first worker that fills sample 3 forks a child that lives on, and dies."""

    once: str = ""

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        if sample.id == 3 and not os.path.exists(self.once):
            os.close(os.open(self.once, os.O_CREAT))
            if os.fork():
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(20)
            os._exit(0)
        super().fill(sample, desc, part, out)


class Costly(Plain, frozen=True):
    """Declares costs under names that nobody can carry."""

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        desc = super().describe(sample, rng)
        return msgspec.structs.replace(desc, costs={f"{sample.id}-" + "x" * 9000: 1})


class Patchy(Tokens, frozen=True):
    """Tokens, but describe fails for some samples and ends the process for one; groups may be drawn."""

    failing: tuple[int, ...] = ()
    deadly: int = -1
    drawn: bool = False
    by_key: bool = False

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        if self.by_key:
            sample = msgspec.structs.replace(sample, id=int(sample.key.partition(".")[0]))
        if sample.id in self.failing:
            raise KeyError("caption")
        if sample.id == self.deadly:
            os.kill(os.getpid(), signal.SIGSEGV)
        desc = super().describe(sample, rng)
        group = f"{desc.costs['tokens']} tokens"
        if self.drawn:
            group = "heads" if rng.integers(0, 2) else "tails"
        return msgspec.structs.replace(desc, group=group)


class Shrinking(Recipe, frozen=True):
    """Up to 8 random numbers, a token each. Shrunk, a sample keeps the first; `stiff` ones cannot be."""

    stiff: tuple[int, ...] = ()

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        return self._of(rng, 8)

    def shrink(self, sample: Sample, rng: Rng, caps: Mapping[str, int]) -> Descriptor | None:
        return None if sample.id in self.stiff else self._of(rng, caps["tokens"])

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        out["x"][...] = desc.draws

    @staticmethod
    def _of(rng: Rng, most: int) -> Descriptor:
        n = min(most, rng.integers(1, 9))
        fields = (Field("x", "int64", (n,), Pack(counts="tokens")),)
        return Descriptor(fields, costs={"tokens": n}, draws=[rng.integers(0, 1000) for _ in range(n)])


class Working(Recipe, frozen=True):
    """Computes and sleeps for so long a sample, the `long` ones for `long_s` and `long_sleep_s`; no media."""

    cpu_s: float = 0.0
    sleep_s: float = 0.0
    long: tuple[int, ...] = ()
    long_s: float = 0.0
    long_sleep_s: float = 0.0
    describe_s: float = 0.0

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        _compute(self.describe_s)
        us = int(1e6 * (self.long_s + self.long_sleep_s if sample.id in self.long else self.cpu_s))
        return Descriptor(fields=(Field("x", "uint8", (64,)),), segment_us=(us,), costs={"tokens": 100})

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        _compute(self.long_s if sample.id in self.long else self.cpu_s)
        time.sleep(self.long_sleep_s if sample.id in self.long else self.sleep_s)
        out["x"][...] = sample.id % 256


def _compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class LongDrawn(Drawn, frozen=True):
    """One in three takes `long_s`, and cannot be cut."""

    long_s: float = 0.0

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        us = int(1e6 * self.long_s) if sample.id % 3 == 0 else 1000
        return msgspec.structs.replace(super().describe(sample, rng), segment_us=(us,))

    def fill(
        self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]
    ) -> Mapping[str, tuple[int, ...]]:
        time.sleep(sum(desc.segment_us) * 1e-6)
        return super().fill(sample, desc, part, out)


class LongTokens(Tokens, frozen=True):
    """The same, packed."""

    long_s: float = 0.0

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        us = int(1e6 * self.long_s) if sample.id % 3 == 0 else 1000
        return msgspec.structs.replace(super().describe(sample, rng), segment_us=(us,))

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        time.sleep(sum(desc.segment_us) * 1e-6)
        super().fill(sample, desc, part, out)


class Dear(NotedClip, frozen=True):
    """A clip that is said to be long, so that it is worth a part for every worker. `cut`: where it may be."""

    cut: bool = True

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """Fifty times as dear."""
        clip = super().describe(sample, rng)
        dear = tuple(50 * us for us in clip.segment_us)
        if self.cut:
            return msgspec.structs.replace(clip, segment_us=dear)
        return msgspec.structs.replace(clip, segment_us=(sum(dear),), cuts=())


class Told(Recipe, frozen=True):
    """A random number, written 256 times; each call of `fill` adds a line "id number" to a file."""

    to: str

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        return Descriptor(fields=(Field("x", "int64", (256,)),), draws=rng.integers(0, 1 << 40))

    def fill(self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]) -> None:
        out["x"][...] = desc.draws
        with open(self.to, "a") as file:
            file.write(f"{sample.id} {desc.draws}\n")
