"""Every message between the daemons of a job. They travel inside `Said`, which says for which loader.

    follower -> leader   Join Want Rows Over
    leader -> follower   Joined Unknown Misfit Placing Share Describe Over Acquaint
    helper -> leader     Offer
    leader -> helper     Engaged Misfit Over Acquaint
    any two of them      Decode Got Recall / Decoded Declined

The leader is the daemon of rank 0: it plans, others ask it for what they need. A helper is a node without
ranks, which decodes for those that are late. Nothing is repeated by itself:
who waits for an answer asks again, and an answer that comes twice, late or out of order changes nothing.
`Decoded` is followed by bytes of a sample, in a frame of their own; all else is descriptors.
"""

from __future__ import annotations

import zlib
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from libhelix.errors import ProtocolError
from libhelix.wire import messages as m
from libhelix.wire.settings import (
    Base,
    Name,
    Natural,
    PackedBase,
    PackedStart,
    Position,
    Positive,
    Settings,
    Text,
)

PEER_PROTOCOL = 6
"""Raised with every change that an older peer would misread."""
CLOSED = "closed"
"""The code of an `Over` that helpers hear when trainers leave a loader: it may come again."""
MAX_PEER_BYTES = 4 << 20
MAX_SHARED_BYTES = 1 << 30
SHARE_PART_BYTES = 1 << 20
Ranks = Annotated[tuple[Natural, ...], Meta(max_length=4096)]
Windows = Annotated[tuple[PackedBase, ...], Meta(max_length=64)]
MAX_HELD, MAX_ALONE = 16, 128


class _Peer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base: messages are msgpack arrays, their tag first."""


class Load(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a node is doing.

    capacity      what it decodes: thousandths of a core's time that recipes predict, per second; 0: unknown
    spare         thousandths of cores that had nothing to decode lately
    behind_us     how much later than they are due its batches are expected to be ready
    """

    capacity: Natural = 0
    spare: Natural = 0
    behind_us: Natural = 0


class Join(_Peer, frozen=True, tag="join"):
    """A node has this loader, with these settings, for these ranks, and knows how windows are placed."""

    protocol: Natural
    version: Annotated[str, Meta(max_length=64)]
    settings: Settings
    ranks: Ranks
    placed: Annotated[tuple[m.Placed, ...], Meta(max_length=m.MAX_PLACED)] = ()
    number: Natural = 0
    """Of the loader on that node: another one for each that is made."""


class Joined(_Peer, frozen=True, tag="joined"):
    """The leader knows the node's ranks now."""


class Unknown(_Peer, frozen=True, tag="unknown"):
    """The leader does not know the node, or not any more: it has been started anew."""


class Placing(_Peer, frozen=True, tag="placing"):
    """How windows are placed. Whoever has told all its trainers says so with its next Want."""

    placed: Annotated[tuple[m.Placed, ...], Meta(max_length=m.MAX_PLACED)]


class Misfit(_Peer, frozen=True, tag="misfit"):
    """The leader's loader is another one: its settings differ, or its version."""

    text: Text


class Held(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A window that a node has: where it begins, and checksums of from where on it was planned, and of which
    rank has which of its samples."""

    epoch: Natural
    step: Natural
    base: Natural
    digest: Natural


class Want(_Peer, frozen=True, tag="want"):
    """Where the node's ranks stand, the windows that it waits for, and its load. Said every second. `of`: the
    fingerprint of the loader's settings."""

    stands: Annotated[tuple[PackedStart, ...], Meta(max_length=64)]
    windows: Windows
    of: Natural
    load: Load = Load()
    told: tuple[Natural, Natural] | None = None
    """From where on the last change of placement holds, that all trainers of the node were told of."""
    held: Annotated[tuple[Held, ...], Meta(max_length=MAX_HELD)] = ()
    """The last windows that the node has; none of them may be placed anew."""
    alone: Annotated[tuple[Held, ...], Meta(max_length=MAX_ALONE)] = ()
    """The last windows that it planned itself, while it did not hear the leader."""


class Share(_Peer, frozen=True, tag="share"):
    """Part `part` of `of` of what a node needs of a window: a `Shared`, sealed."""

    base: PackedBase
    part: Natural
    of: Positive
    data: Annotated[bytes, Meta(max_length=SHARE_PART_BYTES)]


class Describe(_Peer, frozen=True, tag="describe"):
    """Describe samples for the leader; as for a worker."""

    task: Natural
    epoch: Natural
    ids: Annotated[tuple[Natural, ...], Meta(max_length=m.MAX_SAMPLES_PER_MESSAGE)]
    occurrences: Annotated[tuple[Natural, ...], Meta(max_length=m.MAX_SAMPLES_PER_MESSAGE)]


class Rows(_Peer, frozen=True, tag="rows"):
    """Rows of some samples of a Describe, of that epoch: a leader that was started anew counts tasks anew."""

    task: Natural
    epoch: Natural
    schema: m.Schema
    rows: Annotated[tuple[m.Row, ...], Meta(max_length=m.MAX_SAMPLES_PER_MESSAGE)]


class Over(_Peer, frozen=True, tag="over"):
    """The loader has ended on a node, and ends on all. `meeting`: which of its name, as nodes count."""

    code: Name
    text: Text
    at: Position | None = None
    sample: Natural | None = None
    meeting: Natural = 0


class Acquaint(_Peer, frozen=True, tag="acquaint"):
    """The leader makes two nodes known to each other: one is late, one has cores to spare. `helps`: these
    decode for whom it is said to; else it is to decode for them."""

    peers: Annotated[tuple[m.Peer, ...], Meta(max_length=16)]
    helps: bool
    spare: Annotated[tuple[Natural, ...], Meta(max_length=16)] = ()
    """Thousandths of cores that they have to spare, where they help."""


class Offer(_Peer, frozen=True, tag="offer"):
    """A node without ranks would decode for others. Said every second.

    of        the fingerprint of the settings that it knows
    address   where it listens
    """

    protocol: Natural
    version: Annotated[str, Meta(max_length=64)]
    of: Natural
    address: m.Address
    load: Load = Load()


class Engaged(_Peer, frozen=True, tag="engaged"):
    """The leader has heard an Offer. `max_bytes`: of a batch, 0 while it is not known; `schema`: its fields.
    `settings`: those of the loader, where they are not those that the helper knows."""

    max_bytes: Natural
    schema: m.Schema
    settings: Settings | None = None


class Decode(_Peer, frozen=True, tag="decode"):
    """Decode a sample for this node, which is late.

    row      the sample, as it was described
    places   shapes, strides and slots of its fields; the offsets are of the node that asks
    due_us   from now on, until it is due there
    of       the fingerprint of the loader's settings; one of that name and others is another loader
    """

    task: Natural
    epoch: Natural
    row: m.Row
    places: Annotated[tuple[m.Place, ...], Meta(max_length=64)]
    due_us: Natural
    of: Natural


class Decoded(_Peer, frozen=True, tag="decoded"):
    """Bytes of sample `id` follow: those at `at`, of `nbytes`. It was with its decoder for `took_us`."""

    task: Natural
    id: Natural
    at: Natural
    nbytes: Positive
    took_us: Natural


class Got(_Peer, frozen=True, tag="got"):
    """So many bytes of a sample have landed; more may follow."""

    task: Natural
    nbytes: Natural


class Declined(_Peer, frozen=True, tag="declined"):
    """A sample is not decoded here: there is no room, no time, or it cannot be. Others may be `after_us`.
    `bad`: it was tried."""

    task: Natural
    after_us: Natural = 0
    bad: bool = False


class Recall(_Peer, frozen=True, tag="recall"):
    """A sample is not wanted any more."""

    task: Natural


ErrandMessage = Decode | Decoded | Got | Declined | Recall
"""What a late node and one that decodes for it say to each other."""
PeerMessage = (
    Join
    | Want
    | Rows
    | Over
    | Joined
    | Unknown
    | Misfit
    | Placing
    | Share
    | Describe
    | Acquaint
    | Offer
    | Engaged
    | Decode
    | Decoded
    | Got
    | Declined
    | Recall
)


class Said(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is said of a loader of the job."""

    loader: Name
    message: PeerMessage


class Shared(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a node needs of a planned window: all of it for its own ranks, sums for the rest.

    steps     [step][micro][i] are the draws of rank ranks[i]
    rows      of these draws
    costs     declared costs of whole steps; samples: how many they have
    fillers   rows of fillers, beside samples and alone
    parts     what trainers are told of the window
    digest    a checksum of all of it
    skips     what they are told of samples that are left out, and the first of them
    """

    base: PackedBase
    end: Natural
    after: PackedBase
    ranks: Ranks
    steps: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]
    rows: tuple[tuple[Natural, m.Row], ...]
    costs: tuple[dict[str, Natural], ...]
    samples: tuple[Natural, ...]
    fillers: tuple[m.Row, m.Row] | None
    schema: m.Schema
    parts: tuple[bytes, ...]
    digest: Natural
    skips: tuple[str, Natural] | None = None


class _Sealed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A `Shared` without its parts, compressed, and these, which are so already and alike for all nodes."""

    shared: bytes
    parts: tuple[bytes, ...]


T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()
_said: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(Said)
_shared: msgspec.msgpack.Decoder[Shared] = msgspec.msgpack.Decoder(Shared)
_sealed: msgspec.msgpack.Decoder[_Sealed] = msgspec.msgpack.Decoder(_Sealed)


def encode(said: Said) -> bytes:
    """The bytes of what is said."""
    return _encoder.encode(said)


def decode(data: bytes) -> Said:
    """What is said. Raises ProtocolError for anything else."""
    return _decoded(_said, data)


def seal(shared: Shared) -> bytes:
    """The bytes of a window that is shared."""
    data = zlib.compress(_encoder.encode(msgspec.structs.replace(shared, parts=())), 1)
    return _encoder.encode(_Sealed(data, shared.parts))


def unseal(data: bytes) -> Shared:
    """The window that is shared. Raises ProtocolError for anything else."""
    sealed = _decoded(_sealed, data)
    try:
        shared = zlib.decompressobj().decompress(sealed.shared, MAX_SHARED_BYTES)
    except zlib.error as e:
        raise ProtocolError(f"not a message of this link: {e}") from e
    return msgspec.structs.replace(_decoded(_shared, shared), parts=sealed.parts)


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        raise ProtocolError(f"not a message of this link: {e}") from e


def packed(bases: list[Base]) -> tuple[PackedBase, ...]:
    """As many of these windows as one message names, the first ones."""
    return tuple(PackedBase.of(base) for base in bases[:64])
