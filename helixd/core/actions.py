"""What happens to the core (events) and what it wants done (actions). Connections and workers are numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from helixd.quota import Quota
from libhelix.errors import HelixError
from libhelix.plan.opening import Opening
from libhelix.plan.planner import Planner, Window
from libhelix.wire import messages as m
from libhelix.wire.peer import Said

Payload = bytes | memoryview


@dataclass(frozen=True)
class Opened:
    """A process connected and said hello. `uid` is the kernel's word, not its own."""

    conn: int
    uid: int
    hello: m.Hello


@dataclass(frozen=True)
class Received:
    """A message of a trainer, a worker host or helixctl."""

    conn: int
    message: m.FromTrainer | m.FromHost | m.FromCtl


@dataclass(frozen=True)
class Closed:
    """A connection is gone: its process died, left, or broke the protocol."""

    conn: int
    why: str


@dataclass(frozen=True)
class WorkerReceived:
    """A message of a worker."""

    worker: int
    message: m.FromWorker


@dataclass(frozen=True)
class WorkerClosed:
    """A worker's process is gone; it writes no more."""

    worker: int


@dataclass(frozen=True)
class ArenaFailed:
    """A segment could not be made."""

    arena: int
    text: str


@dataclass(frozen=True)
class Unreached:
    """A ring cannot be mapped here."""

    arena: int
    text: str


@dataclass(frozen=True)
class Planned:
    """A window is planned, or cannot be."""

    ticket: int
    window: Window | HelixError


@dataclass(frozen=True)
class PeersOpened:
    """A job's link to other nodes is there."""

    link: int
    keys: m.Keys
    port: int


@dataclass(frozen=True)
class PeersFailed:
    """It could not be made."""

    link: int
    text: str


@dataclass(frozen=True)
class PeerSaid:
    """A node of a job, by its public key, said something."""

    link: int
    key: str
    said: Said
    payload: Payload = b""
    """Bytes that came beside it; nobody in the core looks at them."""


@dataclass(frozen=True)
class Reconfigured:
    """The operator has changed settings. `shown`: what to tell of them, by name."""

    cores: frozenset[int] | None
    reserve: int | None
    quota: Quota
    shown: Mapping[str, Any]


@dataclass(frozen=True)
class Tick:
    """The time of `Machine.deadline` has come."""


Event = (
    Opened
    | Received
    | Closed
    | WorkerReceived
    | WorkerClosed
    | ArenaFailed
    | Unreached
    | Planned
    | PeersOpened
    | PeersFailed
    | PeerSaid
    | Reconfigured
    | Tick
)


@dataclass(frozen=True)
class Send:
    """Send to a connection; the arena's descriptor, or the new worker's socket, travels beside."""

    conn: int
    message: m.ToTrainer | m.ToHost | m.ToCtl
    arena: int | None = None
    worker: int | None = None


@dataclass(frozen=True)
class SendWorker:
    """Send to a worker; the arena's descriptor travels beside."""

    worker: int
    message: m.ToWorker
    arena: int | None = None


@dataclass(frozen=True)
class Close:
    """Close a connection, once what was sent to it has left."""

    conn: int


@dataclass(frozen=True)
class MakeWorker:
    """Make the socket pair of a worker; `Send(..., worker=)` passes its other end on."""

    worker: int


@dataclass(frozen=True)
class DropWorker:
    """Close a worker's socket."""

    worker: int


@dataclass(frozen=True)
class DrainWorker:
    """A worker has ended: read what it still said, then close its socket, whoever else holds it open."""

    worker: int


@dataclass(frozen=True)
class MakeArena:
    """Make a segment."""

    arena: int
    nbytes: int
    memfd: bool = False


@dataclass(frozen=True)
class DropArena:
    """Close a segment's descriptor; it vanishes when the last process that maps it lets go."""

    arena: int


@dataclass(frozen=True)
class Plan:
    """Plan a window whose rows are all there, which may take long: `Planned` tells the result, if it is still
    wanted. Nothing changes in either of these meanwhile."""

    ticket: int
    planner: Planner
    opening: Opening


@dataclass(frozen=True)
class OpenPeers:
    """Make a job's link to other nodes; with the keys and port of the one before, where there was one."""

    link: int
    host: str
    keys: m.Keys | None
    port: int


@dataclass(frozen=True)
class KnowPeers:
    """From now on these are the nodes of a link."""

    link: int
    peers: tuple[m.Peer, ...]


@dataclass(frozen=True)
class PeerSend:
    """Say something to a node. It may get lost. `bytes_of`: with (arena, offset, count) of a ring."""

    link: int
    key: str
    said: Said
    bytes_of: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Reach:
    """Map a ring here, unless it is: nodes will send each other bytes of it."""

    arena: int


@dataclass(frozen=True)
class Land:
    """Write what came beside a peer's message to a ring: (offset in it, offset in the ring, count)."""

    arena: int
    payload: Payload
    to: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class ClosePeers:
    """Close a job's link."""

    link: int


@dataclass(frozen=True)
class About:
    """What a record is about, as far as it is known; `code` is the file and line of a mistake of ours."""

    uid: int | None = None
    pid: int | None = None
    job: str | None = None
    loader: str | None = None
    sample: int | None = None
    code: tuple[str, int] | None = None


@dataclass(frozen=True)
class Log:
    """Say something to the operator."""

    level: Literal["info", "warning", "error"]
    text: str
    about: About | None = None


@dataclass(frozen=True)
class Stop:
    """The daemon has nothing left to do."""

    why: str


Action = (
    Send
    | SendWorker
    | Close
    | MakeWorker
    | DropWorker
    | DrainWorker
    | MakeArena
    | DropArena
    | Plan
    | OpenPeers
    | KnowPeers
    | PeerSend
    | Reach
    | Land
    | ClosePeers
    | Log
    | Stop
)
