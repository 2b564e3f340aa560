"""Every message of the local link, by direction. One message is at most 64 KiB; payload is in the arena.

    trainer -> helixd   Hello Meet Peers Attach HostFailed Ask Took Release Seek Detach Cores
    helixd -> trainer   Welcome Refused Met Unmet Dealt StartHost Attached Window Ready Failed Learned Warn
    host -> helixd      Hello Reserved ReserveFailed Exited Cores
    helixd -> host      Welcome Refused Reserve Fork Kill
    worker -> helixd    SetupDone SetupFailed Described Filled TaskFailed
    helixd -> worker    Setup MapArena UnmapArena Describe Fill Mask Drop
    helixctl -> helixd  Hello StatusAsk Drain               helixd -> helixctl  Welcome Refused Status

Descriptors travel beside Attached (arena), Reserve (arena), Fork (the worker's socket), MapArena (arena).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from libhelix.wire.settings import IndexRef, Name, Natural, PackedStart, Position, Positive, Settings, Text

PROTOCOL = 8
"""Raised with every change that an older peer would misread. Peers of different protocols part at Hello."""

MAX_SAMPLES_PER_MESSAGE = 4096
MAX_PIECES = 64
"""Parts of samples in one fill task."""
MAX_PLACES = 256
"""Places in one fill task, of all pieces and fields, that fit a message."""
Shape = Annotated[tuple[Natural, ...], Meta(max_length=8)]
Microseconds = Natural
SampleId = Annotated[int, Meta(ge=-1, lt=1 << 62)]
"""A row of the index; -1 stands for a filler."""


Kind = Annotated[str, Meta(max_length=64)]
"""What decoding costs are learned by, such as a codec."""
Scales = Annotated[dict[Kind, Annotated[float, Meta(ge=1e-6, le=1e6)]], Meta(max_length=256)]
"""By kind, what CPU time turned out to be, relative to what recipes predict."""
CoreNumbers = Annotated[tuple[Natural, ...], Meta(max_length=4096)]
Millis = Natural
"""Thousandths of a core's time."""
Stage = Literal["describe", "fill"]
Speeds = Annotated[tuple[Natural, ...], Meta(max_length=4096)]
"""How fast nodes decode, by their number; only what they are to each other counts."""
Host = Annotated[str, Meta(min_length=1, max_length=255)]
Port = Annotated[int, Meta(ge=0, lt=1 << 16)]
CurveKey = Annotated[str, Meta(min_length=40, max_length=40)]
Address = Annotated[str, Meta(min_length=3, max_length=270)]
MAX_PEERS_PER_MESSAGE = 128
MAX_HELPERS = 64
MAX_PLACED, MAX_PLACED_SPEEDS = 64, 4096
Indexes = Annotated[tuple[IndexRef, ...], Meta(min_length=1, max_length=4096)]


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base: messages are msgpack arrays, their tag first; new fields go to the end with a default.

    None is ever part of a cycle, so the garbage collector need not look at thousands of them."""


class FieldSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A field of a schema: what is the same for all samples of a loader."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    dtype: Annotated[str, Meta(max_length=16)]
    layout: Literal["stack", "pad", "pack", "ragged"]
    ndim: Annotated[int, Meta(ge=0, le=8)]
    pad_value: int | float = 0
    axis: Annotated[int, Meta(ge=0, le=7)] = 0
    rows_per_unit: Natural = 0
    bounded: bool = False
    counts: Annotated[str, Meta(max_length=64)] = ""


Schema = Annotated[tuple[FieldSpec, ...], Meta(max_length=64)]


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What planning needs of a described sample. `error` is set where describe failed: a bad sample. Then
    `instead_of` is that sample, where this row is of another one that stands in for it."""

    id: SampleId
    shapes: Annotated[tuple[Shape, ...], Meta(max_length=64)]
    costs: Annotated[dict[str, Natural], Meta(max_length=32)]
    units: Positive
    cuts: Annotated[tuple[Natural, ...], Meta(max_length=16)]
    segment_us: Annotated[tuple[Microseconds, ...], Meta(max_length=17)]
    group: Annotated[str, Meta(max_length=128)] = ""
    error: Annotated[str, Meta(max_length=2048)] = ""
    occurrence: Natural = 0
    kind: Kind = ""
    threads: bool = False
    instead_of: Natural | None = None

    @property
    def masked(self) -> bool:
        """Whether nothing is to be decoded."""
        return bool(self.error) and self.instead_of is None

    @property
    def bad(self) -> int:
        """The sample that describe failed on."""
        return self.id if self.instead_of is None else self.instead_of


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where one field of one sample goes: offsets and strides in bytes, from the start of the extent.

    `slot` is what belongs to the sample, `shape` what it fills; the rest of the slot gets the pad value.
    """

    offset: Natural
    shape: Shape
    strides: Shape
    slot: Shape


class Slots(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a sample is: in the extent at `start` of an arena, the places of its fields, and its record."""

    arena: Natural
    start: Natural
    places: Annotated[tuple[Place, ...], Meta(max_length=64)]
    record: Natural


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Units [begin, end) of a sample, the places of its fields and of its record, from the start of the
    extent. The record is written with unit 0."""

    id: Natural
    occurrence: Natural
    begin: Natural
    end: Positive
    record: Natural
    places: Annotated[tuple[Place, ...], Meta(max_length=64)]


class Keys(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node's CURVE keys for one job. The secret one never leaves the node."""

    public: CurveKey
    secret: CurveKey


class Peer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node of a job, by its public key, and where it listens: "host:port"."""

    key: CurveKey
    address: Address


class Placed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Windows that begin at a step or later are placed by these speeds of nodes, up to the next entry."""

    epoch: Natural
    step: Natural
    speeds: Speeds


class PieceFailed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece of a fill task failed. `fatal`: the recipe broke its contract, others will do no better."""

    piece: Natural
    fatal: bool
    code: Name
    text: Annotated[str, Meta(max_length=2048)]


class Measured(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an accelerator itself took for the batch of a position; known later than asked for.

    window_us  from its first work after the batch was taken to its last before the next was asked for; 0: no
               batch is known yet that was not told
    computing  `window_us` is what the trainer said to be computing, without waiting for other ranks
    """

    at: Position
    window_us: Microseconds
    computing: bool = False


Tier = Literal["registered", "staged", "plain"]
"""How bytes get to an accelerator: docs/devices.md."""


class Taking(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A trainer's `next()` returned the batch of a position.

    wait_us    how long it waited for it
    taken_us   when it returned, on the node's monotonic clock; 0: unknown
    window_us  how long the trainer was busy before, since the `next()` before returned; 0: unknown
    computing  `window_us` is computing alone, as the trainer measured it, without waiting for other ranks
    measured   where an accelerator measures windows: the host is through before it is, and `window_us` says
               nothing about computing
    """

    at: Position
    wait_us: Microseconds
    taken_us: Microseconds = 0
    window_us: Microseconds = 0
    computing: bool = False
    measured: Measured | None = None


class FieldRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A field of a finished batch. `shape` is that of the batch; unused for ragged fields, whose samples
    follow one another at 128-byte steps with the shapes of the table."""

    offset: Natural
    shape: Annotated[tuple[Natural, ...], Meta(max_length=9)]


# ---- both ends of every connection ---------------------------------------------------------------------


class Hello(_Message, frozen=True, tag="hello"):
    """First message of every connection. `cores`: where the sender may run; a host says its whole cpuset, and
    with `limit_millis` the CPU time that its cgroup is limited to."""

    protocol: Natural
    version: Annotated[str, Meta(max_length=64)]
    role: Literal["trainer", "host", "ctl"]
    job: Annotated[str, Meta(max_length=256)]
    pid: Natural
    cores: CoreNumbers
    limit_millis: Millis | None = None


class Cores(_Message, frozen=True, tag="cores"):
    """What the sender's Hello said of cores has changed."""

    cores: CoreNumbers
    limit_millis: Millis | None = None


class Welcome(_Message, frozen=True, tag="welcome"):
    """helixd accepts the connection."""

    protocol: Natural
    version: Annotated[str, Meta(max_length=64)]


class Refused(_Message, frozen=True, tag="refused"):
    """helixd ends the connection; `code` is that of an error of libhelix.errors."""

    code: Name
    text: Text


# ---- trainer -------------------------------------------------------------------------------------------


class Attach(_Message, frozen=True, tag="attach"):
    """A consumer asks to be served from `start` on. `loader` is the client's own number for it."""

    loader: Natural
    name: Name
    dp_rank: Natural
    replica: Natural
    settings: Settings
    indexes: Indexes
    sys_path: Annotated[tuple[str, ...], Meta(max_length=256)]
    start: PackedStart
    max_bytes: Positive | None = None
    scales: Scales = {}
    placed: Annotated[tuple[Placed, ...], Meta(max_length=MAX_PLACED)] = ()
    """What the trainer was told of it by daemons before."""


class Meet(_Message, frozen=True, tag="meet"):
    """The job has ranks on other nodes: listen for their daemons at this host. `keys` and `port` are those of
    the daemon before, which others know."""

    host: Host
    keys: Keys | None = None
    port: Port = 0


class Peers(_Message, frozen=True, tag="peers"):
    """The nodes of a loader: its leader, and, for that one alone, all of them, in pieces. `ranks` are this
    node's. `helpers`: the keys of nodes without ranks that may come and decode for others. `meeting`: which
    loader of its name it is."""

    name: Name
    leader: Peer
    ranks: Annotated[tuple[Natural, ...], Meta(max_length=4096)]
    nodes: Annotated[tuple[Peer, ...], Meta(max_length=MAX_PEERS_PER_MESSAGE)] = ()
    last: bool = True
    helpers: Annotated[tuple[CurveKey, ...], Meta(max_length=MAX_HELPERS)] = ()
    meeting: Natural = 0


class Help(_Message, frozen=True, tag="help"):
    """This node has no rank of a loader, and decodes for those that have. `leader` plans there; `address`
    is where this daemon is to be reached. `loader` is the client's own number for it."""

    loader: Natural
    name: Name
    settings: Settings
    indexes: Indexes
    sys_path: Annotated[tuple[str, ...], Meta(max_length=256)]
    leader: Peer
    address: Address
    scales: Scales = {}


class HostFailed(_Message, frozen=True, tag="host-failed"):
    """The trainer could not start the worker host."""

    text: Text


class Ask(_Message, frozen=True, tag="ask"):
    """The trainer's `next()` waits for this batch."""

    loader: Natural
    at: Position


class Took(_Message, frozen=True, tag="took"):
    """The trainer took a batch. `tier`: how it got to an accelerator, where it did."""

    loader: Natural
    taking: Taking
    tier: Tier | None = None


class Release(_Message, frozen=True, tag="release"):
    """The last tensor over an extent died. `took`: a batch was taken, which was not told yet."""

    loader: Natural
    generation: Positive
    took: Taking | None = None


class Seek(_Message, frozen=True, tag="seek"):
    """Go on at another position; what was sent but not taken is forgotten. `seek` counts the loader's seeks,
    and Ready repeats it, so that batches on their way meanwhile are told from those of the new position."""

    loader: Natural
    start: PackedStart
    seek: Positive


class Detach(_Message, frozen=True, tag="detach"):
    """The loader is closed. Leases of its batches end with their own releases."""

    loader: Natural


class Met(_Message, frozen=True, tag="met"):
    """helixd listens for the daemons of other nodes."""

    keys: Keys
    port: Port


class Unmet(_Message, frozen=True, tag="unmet"):
    """helixd cannot listen for them."""

    text: Text


class Dealt(_Message, frozen=True, tag="dealt"):
    """How windows will be placed. None of them is planned before all have been told; who attaches to another
    daemon tells it."""

    loader: Natural
    placed: Placed


class StartHost(_Message, frozen=True, tag="start-host"):
    """Start the job's worker host, here, as this user."""


class Attached(_Message, frozen=True, tag="attached"):
    """The consumer is served. The arena's descriptor travels beside it."""

    loader: Natural
    arena_bytes: Positive
    max_bytes: Positive
    schema: Schema


class Ready(_Message, frozen=True, tag="ready"):
    """A batch is complete at [offset, offset + nbytes) of the arena, and leased to this holder.

    `table` = (offset, bytes) of the sample table, of `samples` records; `fillers` of them are no samples.
    `global_*` are of the whole step. `following` is the position of the next batch.
    """

    loader: Natural
    at: Position
    generation: Positive
    offset: Natural
    nbytes: Natural
    fields: Annotated[tuple[FieldRange, ...], Meta(max_length=64)]
    table: tuple[Natural, Natural]
    samples: Natural
    global_samples: Natural
    costs: dict[str, Natural]
    global_costs: dict[str, Natural]
    decode_us: Microseconds
    following: Position
    fillers: Natural = 0
    seek: Natural = 0


class Window(_Message, frozen=True, tag="window"):
    """A piece of what a trainer has to know of the window whose batches come next, for its state."""

    loader: Natural
    part: Annotated[bytes, Meta(max_length=50_000)]
    last: bool


class Failed(_Message, frozen=True, tag="failed"):
    """The loader is over, at the same position on every rank where `at` says so. `sample`: because of it;
    helixd knows only its number, the trainer its name."""

    loader: Natural
    code: Name
    text: Text
    at: Position | None = None
    sample: Natural | None = None


class Learned(_Message, frozen=True, tag="learned"):
    """What decoding has turned out to cost, for this user's next jobs."""

    loader: Natural
    scales: Scales


class Bad(_Message, frozen=True, tag="bad"):
    """A sample is bad, and was masked or replaced. `note`: this trainer writes it into the user's list."""

    loader: Natural
    sample: Natural
    at: Position
    stage: Stage
    text: Text
    note: bool


class Warn(_Message, frozen=True, tag="warn"):
    """Something the user should know; nothing stops. `sample`: it is about this one. `epoch`: of no interest
    before this one."""

    loader: Natural
    text: Text
    sample: Natural | None = None
    epoch: Natural = 0


# ---- worker host ---------------------------------------------------------------------------------------


class Reserve(_Message, frozen=True, tag="reserve"):
    """Take the arena's memory now, in this process's cgroup, and touch it, on these cores where that is
    possible: they are its trainer's, and memory lies near to who touches it first."""

    arena: Natural
    nbytes: Positive
    cores: CoreNumbers = ()


class Reserved(_Message, frozen=True, tag="reserved"):
    """The arena's memory is there."""

    arena: Natural


class ReserveFailed(_Message, frozen=True, tag="reserve-failed"):
    """The arena's memory is not there. `shm_full`: another kind of segment may help."""

    arena: Natural
    shm_full: bool
    text: Text


class Fork(_Message, frozen=True, tag="fork"):
    """Fork a worker, pinned to `core`; its socket travels beside."""

    worker: Natural
    core: Natural


class Kill(_Message, frozen=True, tag="kill"):
    """SIGKILL a worker."""

    worker: Natural


class Exited(_Message, frozen=True, tag="exited"):
    """A worker was reaped. `status` is minus the signal, or the exit code."""

    worker: Natural
    status: int


# ---- worker --------------------------------------------------------------------------------------------


class Setup(_Message, frozen=True, tag="setup"):
    """Load a loader's recipe and index. `stream` is helixd's number for the loader."""

    stream: Natural
    settings: Settings
    indexes: Indexes
    sys_path: Annotated[tuple[str, ...], Meta(max_length=256)]


class SetupDone(_Message, frozen=True, tag="setup-done"):
    """The recipe is loaded."""

    stream: Natural


class SetupFailed(_Message, frozen=True, tag="setup-failed"):
    """The recipe or the index cannot be loaded; no worker will do better."""

    stream: Natural
    code: Name
    text: Text


class MapArena(_Message, frozen=True, tag="map"):
    """Map an arena; its descriptor travels beside."""

    arena: Natural
    nbytes: Positive


class UnmapArena(_Message, frozen=True, tag="unmap"):
    """Forget an arena."""

    arena: Natural


class Drop(_Message, frozen=True, tag="drop"):
    """Forget a stream."""

    stream: Natural


class Describe(_Message, frozen=True, tag="describe"):
    """Describe samples of an epoch; `occurrences` says how often each was drawn before, over all epochs.
    `suspect`: a worker died of them, say `Began` first."""

    task: Natural
    stream: Natural
    epoch: Natural
    ids: Annotated[tuple[Natural, ...], Meta(max_length=MAX_SAMPLES_PER_MESSAGE)]
    occurrences: Annotated[tuple[Natural, ...], Meta(max_length=MAX_SAMPLES_PER_MESSAGE)]
    suspect: bool = False


class Described(_Message, frozen=True, tag="described"):
    """Rows of a describe task, in the order asked; `last` closes the task."""

    task: Natural
    schema: Schema
    rows: Annotated[tuple[Row, ...], Meta(max_length=MAX_SAMPLES_PER_MESSAGE)]
    last: bool


class Fill(_Message, frozen=True, tag="fill"):
    """Fill pieces of samples into the extent at `start` of the arena. `cores`: with a thread on each of them,
    where there are several; they are the worker's until the task ends. `suspect`: a worker died of it, say
    `Began` first."""

    task: Natural
    stream: Natural
    epoch: Natural
    arena: Natural
    start: Natural
    pieces: Annotated[tuple[Piece, ...], Meta(min_length=1, max_length=MAX_PIECES)]
    cores: Annotated[tuple[Natural, ...], Meta(max_length=64)] = ()
    suspect: bool = False


class Mask(_Message, frozen=True, tag="mask"):
    """Give a bad sample's slots the pad value, and write its record, `valid` false."""

    task: Natural
    stream: Natural
    epoch: Natural
    id: SampleId
    arena: Natural
    start: Natural
    places: Annotated[tuple[Place, ...], Meta(max_length=64)]
    record: Natural
    schema: Schema


class Copy(_Message, frozen=True, tag="copy"):
    """Copy a sample from its slots in one arena to those in another, and its record. Slots may be larger
    there: the rest of them gets the pad value."""

    task: Natural
    stream: Natural
    id: SampleId
    source: Slots
    target: Slots
    schema: Schema


class Began(_Message, frozen=True, tag="began"):
    """A suspect task is at hand: if the worker dies now, it died of that, and not before."""

    task: Natural


class Filled(_Message, frozen=True, tag="filled"):
    """A fill, mask or copy task is done. `cpu_us`: the CPU time of every piece; `stall_us`: the time in which
    the task neither ran nor waited for its core, such as for storage; `failed` lists the pieces that failed.
    """

    task: Natural
    cpu_us: Annotated[tuple[Microseconds, ...], Meta(min_length=1, max_length=MAX_PIECES)]
    stall_us: Microseconds = 0
    failed: Annotated[tuple[PieceFailed, ...], Meta(max_length=MAX_PIECES)] = ()


class TaskFailed(_Message, frozen=True, tag="task-failed"):
    """A task failed as a whole. `fatal`: the recipe broke its contract, no other sample will do better."""

    task: Natural
    fatal: bool
    code: Name
    text: Annotated[str, Meta(max_length=2048)]


# ---- helixctl ------------------------------------------------------------------------------------------


class StatusAsk(_Message, frozen=True, tag="status-ask"):
    """What is going on? "why": what limits the loaders, in steps [first, last] of their newest epoch where
    said, and what costs were learned. "trace": what workers and ranks did lately."""

    about: Literal["status", "why", "trace"] = "status"
    first: Natural | None = None
    last: Natural | None = None


class Drain(_Message, frozen=True, tag="drain"):
    """Take no new job, and end with the last; or, with `cancel`, go on as before. Answered like StatusAsk."""

    cancel: bool = False


class Status(_Message, frozen=True, tag="status"):
    """One part of the answer, as JSON text; `last` closes it."""

    json: Annotated[str, Meta(max_length=60000)]
    last: bool


FromTrainer = Meet | Peers | Attach | Help | HostFailed | Ask | Took | Release | Seek | Detach | Cores
ToTrainer = (
    Welcome
    | Refused
    | Met
    | Unmet
    | Dealt
    | StartHost
    | Attached
    | Window
    | Ready
    | Failed
    | Learned
    | Bad
    | Warn
)
FromHost = Reserved | ReserveFailed | Exited | Cores
ToHost = Welcome | Refused | Reserve | Fork | Kill
FromWorker = SetupDone | SetupFailed | Began | Described | Filled | TaskFailed
ToWorker = Setup | MapArena | UnmapArena | Drop | Describe | Fill | Mask | Copy
FromCtl = StatusAsk | Drain
ToCtl = Welcome | Refused | Status
Message = Hello | FromTrainer | ToTrainer | FromHost | ToHost | FromWorker | ToWorker | FromCtl | ToCtl
