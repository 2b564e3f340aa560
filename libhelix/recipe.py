"""The contract between user code and the data plane: how a sample becomes tensors.

A recipe has two halves. `describe` looks at metadata only and says which fields the sample will have, what
it costs, and where its decoding may be cut; every random draw happens there. `fill` turns bytes into
pixels, directly at their final address. Workers call both; `describe` is called again before `fill`, so it
must be pure.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import stat
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, BinaryIO

import msgspec
import numpy as np

from libhelix.errors import MediaError, RecipeError

DTYPES = {
    "uint8": 1, "int8": 1, "bool": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "float32": 4, "int64": 8, "float64": 8,
}  # fmt: skip
"""Field dtypes and their bytes. bfloat16 reaches `fill` as a uint16 view, because numpy has no bfloat16."""

_CURES = {
    errno.ENOENT: "index it again if it moved",
    errno.ENOTDIR: "index it again if it moved",
    errno.EACCES: "let this user read it",
    errno.EPERM: "let this user read it",
}
"""What to do about a file that cannot be opened."""

MAX_FIELDS = 64
MAX_COSTS = 32
MAX_CUTS = 12
"""Cuts a descriptor may have; a row must stay small, so recipes merge neighbouring segments beyond it."""
OPENING_US = 2300
"""What opening a file takes. Recipes declare it with the first segment; later parts pay it again."""


class Stack(msgspec.Struct, frozen=True, tag="stack"):
    """All samples have the field in one shape; the batch is [B, *shape]."""


class Pad(msgspec.Struct, frozen=True, tag="pad"):
    """Samples are padded to the largest of the batch in every axis; the batch is [B, *largest]."""

    value: int | float = 0


class Pack(msgspec.Struct, frozen=True, tag="pack"):
    """Samples are concatenated along `axis`; `batch.host["<field>_cu_seqlens"]` holds the int32 bounds.

    `counts` names the declared cost that the axis is the length in, such as "tokens": batchings that pad
    packs to a fixed length pad these fields, with `value`. The padding is one more stretch in the bounds.
    """

    axis: int = 0
    counts: str = ""
    value: int | float = 0


class Ragged(msgspec.Struct, frozen=True, tag="ragged"):
    """Samples keep their shapes; the batch holds a list of B tensors."""


Layout = Stack | Pad | Pack | Ragged


class Field(msgspec.Struct, frozen=True):
    """One tensor of a sample.

    `shape` is exact unless `bounded`: then it is the largest the field may become, and `fill` reports the
    true shape. `rows_per_unit` = k > 0 says that unit u of the sample is rows [u*k, (u+1)*k) of axis 0, so
    that parts can be filled by several workers; 0 means that part 0 writes the whole field. A sample of one
    unit may have no rows at all.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: Layout = Stack()
    rows_per_unit: int = 0
    bounded: bool = False


class Descriptor(msgspec.Struct, frozen=True):
    """What is known of a sample before decoding. Never pixels.

    `units` is what parts are made of (say, frames); a part may begin at 0 and at each of `cuts`.
    `segment_us` predicts the CPU microseconds of every segment between cuts (len(cuts) + 1 integers).
    `kind` names what such predictions are corrected by, once it is seen what they are worth: a codec, say.
    `threads`: `fill` can use `part.threads` of them, where a part is too long for one.
    `costs` are declared integers such as {"tokens": 1568, "targets": 0}. `draws` is the recipe's own: the
    frames chosen, the crop; whatever `fill` needs and must not draw again.
    """

    fields: tuple[Field, ...]
    units: int = 1
    cuts: tuple[int, ...] = ()
    segment_us: tuple[int, ...] = (1000,)
    costs: Mapping[str, int] = {}
    group: str = ""
    draws: Any = None
    kind: str = ""
    threads: bool = False


class Part(msgspec.Struct, frozen=True):
    """Units [begin, end) of a sample that has `units` of them; `threads`: cores that may decode it."""

    begin: int
    end: int
    units: int
    threads: int = 1

    @property
    def first(self) -> bool:
        """Whether this part also writes the fields that are not split."""
        return self.begin == 0


class VideoInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a demux scan knows of a video stream. Times are in units of `time_base` = (num, den) seconds.

    Frames are counted in presentation order and only where they are shown. Frame i is at
    `start_pts + i * pts_step`, or at `pts[i]` where the rate varies. Key-frame group j starts with packet
    time `key_pts[j]`, governs the frames from `key_frames[j]` on, and holds `key_bytes[j]` bytes.
    `ordered` files have no usable packet times: their frames are counted as the decoder returns them.

    Pictures are shown after their left and right were changed, if `mirrored`, and then a clockwise turn by
    `rotation` degrees. A stored pixel is `sar` = (num, den) times as wide as it is high.
    """

    codec: str
    stream: int
    width: int
    height: int
    rotation: int
    mirrored: bool = False
    sar: tuple[int, int] = (1, 1)
    frames: int
    fps: float
    duration_s: float
    time_base: tuple[int, int]
    start_pts: int
    pts_step: int
    pts: tuple[int, ...] | None = None
    key_pts: tuple[int, ...] = ()
    key_frames: tuple[int, ...] = ()
    key_bytes: tuple[int, ...] = ()
    seekable: bool = True
    ordered: bool = False

    def frame_pts(self, frame: int) -> int:
        """Presentation time of a shown frame."""
        if not 0 <= frame < self.frames:
            raise MediaError(f"frame {frame} of a video with {self.frames} frames")
        return self.pts[frame] if self.pts is not None else self.start_pts + frame * self.pts_step

    def frame_at(self, pts: int) -> int:
        """The shown frame on screen at `pts`: the last one that starts at or before it, else the first."""
        if self.pts is not None:
            return max(0, bisect_right(self.pts, pts) - 1)
        if self.pts_step <= 0:
            return 0
        return min(max(0, (pts - self.start_pts) // self.pts_step), self.frames - 1)

    def group_of(self, frame: int) -> int:
        """The key-frame group that decoding `frame` begins with."""
        return max(0, bisect_right(self.key_frames, frame) - 1)

    @property
    def orientation(self) -> int:
        """`rotation` and `mirrored` as EXIF's 1..8."""
        return _ORIENTATIONS[self.mirrored][self.rotation // 90 % 4]

    @property
    def display_size(self) -> tuple[int, int]:
        """(height, width) as shown, in square pixels and upright."""
        return shown_size(self.height, self.width, self.rotation, self.sar)


_ORIENTATIONS = ((1, 6, 3, 8), (2, 7, 4, 5))


def shown_size(height: int, width: int, rotation: int, sar: tuple[int, int]) -> tuple[int, int]:
    """(height, width) in which stored pictures are shown: the stored width times `sar`, rounded half up and
    at least 1, then turned."""
    num, den = sar
    width = max(1, (2 * width * num + den) // (2 * den))
    return (width, height) if rotation % 180 else (height, width)


class ImageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the header of an image says. `orientation` is EXIF's 1..8."""

    codec: str
    width: int
    height: int
    orientation: int = 1

    @property
    def display_size(self) -> tuple[int, int]:
        """(height, width) as shown, after EXIF orientation."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)


class AudioInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an audio stream. `samples` are those that are heard, per channel, at `rate` per
    second: priming and padding are not among them. They begin at `start_pts`, in units of `time_base`."""

    codec: str
    stream: int
    rate: int
    channels: int
    samples: int
    start_pts: int = 0
    time_base: tuple[int, int] = (1, 1)

    @property
    def duration_s(self) -> float:
        """Seconds that are heard."""
        return self.samples / self.rate


class TextInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a text: its tokens, where they were counted when it was indexed, else -1.

    Special tokens around it are not counted. `tokenizer` is the fingerprint of the one that counted.
    """

    tokens: int = -1
    tokenizer: str = ""


class TensorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A stored array, row after row; its item is the range of its values alone."""

    dtype: str
    shape: tuple[int, ...]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One file, or a byte range of one, with what its header says: the attribute named as its kind.

    `size` and `mtime_ns` are those of the index: a file that changed since is refused, not misread. `name`
    tells the items of a sample apart ("left", "caption"); that of a lone file is empty.
    """

    kind: str
    path: str
    offset: int
    size: int
    mtime_ns: int
    name: str = ""
    video: VideoInfo | None = None
    image: ImageInfo | None = None
    audio: AudioInfo | None = None
    text: TextInfo | None = None
    tensor: TensorInfo | None = None

    def open(self) -> BinaryIO:
        """The file, positioned at the item. Raises MediaError where it is gone or not what was indexed."""
        try:
            # Without waiting: what stands there now may be a FIFO that nobody writes to.
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as e:
            cure = _CURES.get(e.errno or 0, "see to its disk or mount")
            raise MediaError(f"{self.path}: {e.strerror}; {cure}") from e
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise MediaError(f"{self.path}: is no file any more; index it again")
        file = os.fdopen(fd, "rb")
        if self.mtime_ns and (found.st_size < self.offset + self.size or found.st_mtime_ns != self.mtime_ns):
            file.close()
            changed = f"{self.path}: changed since it was indexed; run helixctl index again"
            end = self.offset + self.size
            cut = f", or fetch it again: {found.st_size:,} of {end:,} bytes are left"
            raise MediaError(changed + (cut if found.st_size < end else ""))
        file.seek(self.offset)
        return file


class Sample(msgspec.Struct, frozen=True):
    """One training example: `id` is its row in the index, `key` its name for people."""

    id: int
    key: str
    items: tuple[Item, ...]

    def item(self, kind: str, name: str = "") -> Item:
        """The first item of a kind ("video", "image", "audio", "text", "tensor"), or the one of that `name`.

        Raises MediaError where there is none.
        """
        for item in self.items:
            if item.kind == kind and name in ("", item.name):
                return item
        has = ", ".join(f"{i.kind} {i.name}".strip() for i in self.items) or "nothing"
        wanted = f"{kind} {name!r}" if name else kind
        needs = f"{self.key}: the recipe needs an item of kind {wanted}, the sample has {has}"
        raise MediaError(f"{needs}; leave such samples out, or choose a recipe that takes them")

    def all(self, kind: str) -> tuple[Item, ...]:
        """All items of a kind, in their order."""
        return tuple(item for item in self.items if item.kind == kind)


class Rng:
    """Random draws of one sample, keyed by (seed, epoch, sample id, occurrence): equal on every machine.

    A counter hashed with blake2b: numpy's distributions may change between versions, this does not.
    """

    __slots__ = ("_count", "_key", "epoch", "seed")

    def __init__(self, seed: int, epoch: int, sample: int, occurrence: int = 0) -> None:
        self.seed, self.epoch = seed, epoch
        self._key = b"".join(v.to_bytes(8, "little", signed=v < 0) for v in (seed, epoch, sample, occurrence))
        self._count = 0

    def of_epoch(self) -> Rng:
        """Draws that all samples of the epoch have in common, such as an order of them."""
        common = Rng.__new__(Rng)
        common.seed, common.epoch = self.seed, self.epoch
        common._key = self._key[:16] + b"epoch".ljust(16)  # no sample's: its number would be beyond 2^62
        common._count = 0
        return common

    def bits(self) -> int:
        """64 random bits."""
        self._count += 1
        digest = hashlib.blake2b(self._count.to_bytes(8, "little"), key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def integers(self, low: int, high: int) -> int:
        """A uniform integer in [low, high)."""
        span = high - low
        if span <= 0:
            raise ValueError(f"empty range [{low}, {high})")
        limit = (1 << 64) // span * span  # drop the incomplete last stretch: no bias
        while True:
            bits = self.bits()
            if bits < limit:
                return low + bits % span

    def random(self) -> float:
        """A uniform float in [0, 1)."""
        return (self.bits() >> 11) * (1.0 / (1 << 53))


class Recipe(msgspec.Struct, frozen=True):
    """Base of all recipes. Parameters are plain values; the class is found by `module:Class`."""

    def describe(self, sample: Sample, rng: Rng) -> Descriptor:
        """Fields, costs and draws of a sample, from metadata alone. Pure and cheap."""
        raise NotImplementedError(f"{type(self).__name__} must define describe(sample, rng)")

    def shrink(self, sample: Sample, rng: Rng, caps: Mapping[str, int]) -> Descriptor | None:
        """`describe` of a sample that exceeds a cap, so that its declared costs keep all of `caps`.

        Asked with oversize="shrink"; as pure, of the same fields, and with the same `rng`, at its start.
        None: this sample cannot be made smaller.
        """
        del sample, rng, caps
        return None

    def fill(
        self, sample: Sample, desc: Descriptor, part: Part, out: Mapping[str, np.ndarray]
    ) -> Mapping[str, tuple[int, ...]] | None:
        """Write the part's rows into `out`.

        `out[name]` is already the part's slice and may be strided. Fields with `rows_per_unit` = 0 are in
        `out` only for the first part. Returns the true shapes of bounded fields, or None.
        """
        raise NotImplementedError(f"{type(self).__name__} must define fill(sample, desc, part, out)")

    def chains(self) -> int:
        """Samples with equal numbers modulo this are filled by one worker, in their order, while it lives.

        For what can only be gone through from its beginning. 0: by any worker, in any order, as nearly all.
        """
        return 0


def check_descriptor(desc: object, recipe: str) -> Descriptor:
    """The descriptor, if a recipe may return it. Raises RecipeError that names the recipe and the field."""
    if not isinstance(desc, Descriptor):
        raise RecipeError(f"{recipe}.describe returned {type(desc).__name__}, not a libhelix.Descriptor")
    if not 1 <= len(desc.fields) <= MAX_FIELDS:
        raise RecipeError(f"{recipe}.describe gave {len(desc.fields)} fields; 1 to {MAX_FIELDS} are allowed")
    names = [f.name for f in desc.fields]
    for field in desc.fields:
        _check_field(field, desc, recipe)
        if names.count(field.name) > 1:
            raise RecipeError(f"{recipe}.describe gave the field {field.name!r} twice")
    if not isinstance(desc.kind, str) or len(desc.kind) > 64 or not isinstance(desc.threads, bool):
        raise RecipeError(
            f"{recipe}: kind {desc.kind!r:.80} must be a name of at most 64 characters, threads "
            f"{desc.threads!r} true or false"
        )
    _check_units(desc, recipe)
    _check_costs(desc, recipe)
    return desc


def _check_field(field: Field, desc: Descriptor, recipe: str) -> None:
    where = f"{recipe}: field {field.name!r}"
    if not isinstance(field.name, str) or not 1 <= len(field.name) <= 128:
        raise RecipeError(f"{where}: a field needs a name of 1 to 128 characters")
    if field.dtype not in DTYPES:
        raise RecipeError(f"{where} has dtype {field.dtype!r}; use one of {', '.join(DTYPES)}")
    if len(field.shape) > 8 or not all(_is_count(n) or isinstance(n, np.integer) for n in field.shape):
        raise RecipeError(f"{where} has shape {field.shape!r}; up to 8 integers >= 0 are allowed")
    if not isinstance(field.layout, (Stack, Pad, Pack, Ragged)):
        raise RecipeError(
            f"{where} has layout {field.layout!r}; use Stack(), Pad(value), Pack(axis) or Ragged()"
        )
    if isinstance(field.layout, Pad | Pack):
        _check_pad(field, field.layout.value, where)
    if isinstance(field.layout, Pack) and not 0 <= field.layout.axis < len(field.shape):
        raise RecipeError(f"{where} packs axis {field.layout.axis} of shape {field.shape}")
    if isinstance(field.layout, Pack) and field.layout.counts:
        counts = field.layout.counts
        if desc.costs.get(counts) != field.shape[field.layout.axis]:
            raise RecipeError(
                f"{where} has {field.shape[field.layout.axis]} rows along its packed axis, and the declared "
                f"cost {counts!r}, which it counts, is {desc.costs.get(counts)}"
            )
    if field.bounded and not isinstance(field.layout, (Pad, Ragged)):
        raise RecipeError(f"{where} is bounded; only Pad and Ragged can hold a shape known after decoding")
    if field.bounded and field.rows_per_unit:
        raise RecipeError(f"{where} is bounded and split; a part cannot know the shape of the whole")
    k = field.rows_per_unit
    rows = field.shape[0] if field.shape else -1
    if not _is_count(k) or (k and rows != k * desc.units and not (rows == 0 and desc.units == 1)):
        raise RecipeError(f"{where}: {desc.units} units of {k!r} rows do not make axis 0 of {field.shape}")


def _check_pad(field: Field, value: object, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RecipeError(f"{where} has pad value {value!r}; use a number")
    if "float" in field.dtype:
        return
    info = np.iinfo("uint8" if field.dtype == "bool" else field.dtype)
    if not isinstance(value, int) or not info.min <= value <= info.max:
        raise RecipeError(f"{where} has pad value {value!r}, which {field.dtype} cannot hold")


def _check_units(desc: Descriptor, recipe: str) -> None:
    counts = (desc.units, *desc.cuts, *desc.segment_us)
    if not all(_is_count(n) for n in counts):
        raise RecipeError(f"{recipe}: units, cuts and segment_us must be plain integers >= 0, not {counts}")
    if desc.units < 1 or len(desc.cuts) > MAX_CUTS:
        raise RecipeError(f"{recipe}: {desc.units} units with {len(desc.cuts)} cuts; at most {MAX_CUTS} cuts")
    bounds = (0, *desc.cuts, desc.units)
    if any(a >= b for a, b in pairwise(bounds)):
        raise RecipeError(f"{recipe}: cuts {desc.cuts} must rise inside (0, {desc.units})")
    if len(desc.segment_us) != len(desc.cuts) + 1:
        raise RecipeError(f"{recipe}: {len(desc.cuts) + 1} segments need as many segment_us")


def _check_costs(desc: Descriptor, recipe: str) -> None:
    if len(desc.costs) > MAX_COSTS:
        raise RecipeError(f"{recipe}: {len(desc.costs)} declared costs; at most {MAX_COSTS}")
    for name, cost in desc.costs.items():
        if not isinstance(name, str) or len(name) > 64 or not _is_count(cost):
            raise RecipeError(
                f"{recipe}: cost {name!r:.80} is {cost!r}; declared costs are plain integers >= 0 under "
                "names of at most 64 characters"
            )


def _is_count(n: object) -> bool:
    """Whether it is a plain integer that a message can carry."""
    return isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 48


def merge_segments(
    cuts: Sequence[int], segment_us: Sequence[int], most: int = MAX_CUTS
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Merge neighbouring segments, the cheapest pair first, until at most `most` cuts are left."""
    cuts, costs = list(cuts), list(segment_us)
    while len(cuts) > most:
        at = min(range(len(cuts)), key=lambda i: costs[i] + costs[i + 1])
        costs[at : at + 2] = [costs[at] + costs[at + 1]]
        del cuts[at]
    return tuple(cuts), tuple(costs)


def nbytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a dense array."""
    return DTYPES[dtype] * math.prod(shape)
