"""A worker: describes samples, and fills their parts at their final address. One core, one thread at work."""

from __future__ import annotations

import select
import socket
import sys
from collections import deque
from collections.abc import Callable

import msgspec

from helixd.worker.process import Clocks, on_cores
from helixd.worker.readahead import ReadAhead
from libhelix.errors import HelixError, IndexProblem, RecipeError
from libhelix.index.join import Joined
from libhelix.index.read import Index
from libhelix.plan.caps import shrink_caps
from libhelix.recipes.run import Loaded, copy, describe_row, error_text, fill, load_recipe, mask
from libhelix.wire import channel, codec, segment
from libhelix.wire import messages as m

MAX_ROWS_BYTES = 48 * 1024
MAX_TEXTS_BYTES = 32 * 1024
"""Of all errors of one fill task."""


class Worker:
    """Serves one helixd over its own socket until that closes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._inbox: deque[tuple[bytes, list[int]]] = deque()
        self._ahead = ReadAhead()
        self._streams: dict[int, Loaded] = {}
        self._arenas: dict[int, memoryview] = {}

    def run(self) -> None:
        """Until helixd is gone."""
        self._sock.setblocking(True)
        self._readable = select.poll()
        self._readable.register(self._sock, select.POLLIN)
        try:
            while (received := self._receive()) is not None:
                data, descriptors = received
                self._handle(codec.to_worker(data), descriptors)
                channel.close_all(descriptors)
        except (BrokenPipeError, ConnectionResetError):
            return  # helixd is gone, and with it the reason to work

    def _receive(self) -> tuple[bytes, list[int]] | None:
        return self._inbox.popleft() if self._inbox else channel.receive(self._sock)

    def _read_ahead(self) -> None:
        """Ask for the bytes of the next fill task, if it is there."""
        while not self._inbox and self._readable.poll(0):
            received = channel.receive(self._sock)
            if received is None:
                return  # the next receive says so again
            self._inbox.append(received)
        for data, _ in self._inbox:
            message = codec.to_worker(data)
            loaded = self._streams.get(message.stream) if isinstance(message, m.Fill) else None
            if loaded is not None and isinstance(message, m.Fill):
                self._ahead.ask([i for p in message.pieces for i in loaded.index[p.id].items])

    def _send(self, message: m.FromWorker) -> None:
        channel.send(self._sock, codec.encode(message))

    def _handle(self, message: m.ToWorker, descriptors: list[int]) -> None:
        match message:
            case m.Setup():
                self._setup(message)
            case m.MapArena(arena, nbytes):
                self._arenas[arena] = segment.attach(descriptors.pop(), nbytes, populate=True)
            case m.UnmapArena(arena):
                self._arenas.pop(arena, None)
            case m.Drop(stream):
                self._streams.pop(stream, None)
            case m.Describe():
                self._describe(message)
            case m.Fill():
                self._fill(message)
            case m.Mask(arena=arena, start=start):
                self._write(message, lambda: mask(message, self._arenas[arena][start:]))
            case m.Copy(source=a, target=b):
                self._write(
                    message,
                    lambda: copy(message, self._arenas[a.arena][a.start :], self._arenas[b.arena][b.start :]),
                )

    def _setup(self, setup: m.Setup) -> None:
        sys.path.extend(p for p in setup.sys_path if p not in sys.path)
        try:
            recipe = load_recipe(setup.settings.recipe)
            index = Joined([Index.open(ref.path, root=ref.root) for ref in setup.indexes])
            if index.fingerprint != setup.settings.index_fingerprint:
                raise IndexProblem(
                    f"{setup.indexes[0].path}: rebuilt since the loader opened it; start the job again"
                )
        except HelixError as e:
            self._send(m.SetupFailed(setup.stream, e.code, codec.short(str(e))))
            return
        name, caps = setup.settings.recipe.qualname, shrink_caps(setup.settings.batching)
        self._streams[setup.stream] = Loaded(recipe, name, index, setup.settings.seed, caps)
        self._send(m.SetupDone(setup.stream))

    # ---- describe ----------------------------------------------------------------------------------

    def _describe(self, task: m.Describe) -> None:
        loaded = self._streams.get(task.stream)
        if loaded is None:
            self._send(m.TaskFailed(task.task, True, "recipe", "the recipe is not loaded"))
            return
        if task.suspect:
            self._send(m.Began(task.task))
        schema: m.Schema = ()
        rows: list[m.Row] = []
        room = MAX_ROWS_BYTES
        for number, occurrence in zip(task.ids, task.occurrences, strict=True):
            try:
                row, its_schema = describe_row(loaded, task.epoch, number, occurrence)
            except RecipeError as e:
                self._send(m.TaskFailed(task.task, True, e.code, codec.short(str(e))))
                return
            if schema and its_schema and its_schema != schema:
                self._send(m.Described(task.task, schema, tuple(rows), last=False))
                rows, room = [], MAX_ROWS_BYTES
            schema = its_schema or schema
            room -= len(msgspec.msgpack.encode(row))
            if room < 0:
                self._send(m.Described(task.task, schema, tuple(rows), last=False))
                rows, room = [], MAX_ROWS_BYTES
            rows.append(row)
        self._send(m.Described(task.task, schema, tuple(rows), last=True))

    # ---- fill --------------------------------------------------------------------------------------

    def _fill(self, task: m.Fill) -> None:
        loaded = self._streams.get(task.stream)
        if loaded is None:
            self._send(m.TaskFailed(task.task, True, "recipe", "the recipe is not loaded"))
            return
        if task.suspect:
            self._send(m.Began(task.task))
        if self._ahead.pays:
            self._read_ahead()
        clocks, extent = Clocks(), self._arenas[task.arena][task.start :]
        cpu_us: list[int] = []
        failed: list[m.PieceFailed] = []
        with on_cores(task.cores):
            for i, piece in enumerate(task.pieces):
                try:
                    fill(loaded, task.epoch, piece, extent, max(1, len(task.cores)))
                except Exception as e:  # noqa: BLE001  # a recipe may raise anything; it concerns this sample
                    code = e.code if isinstance(e, HelixError) else "media"
                    text = error_text(loaded, piece.id, e)
                    failed.append(m.PieceFailed(i, isinstance(e, RecipeError), code, text))
                cpu_us.append(clocks.lap_us())
        wall_us, stall_us = clocks.wall_us(), clocks.stall_us() if len(task.cores) < 2 else 0
        self._ahead.ended(wall_us, stall_us)
        most = MAX_TEXTS_BYTES // max(1, len(failed))
        texts = [m.PieceFailed(f.piece, f.fatal, f.code, codec.short(f.text, most)) for f in failed]
        self._send(m.Filled(task.task, tuple(cpu_us), stall_us, tuple(texts)))

    def _write(self, task: m.Mask | m.Copy, write: Callable[[], None]) -> None:
        clocks = Clocks()
        try:
            write()
        except Exception as e:  # noqa: BLE001  # as above
            self._send(m.TaskFailed(task.task, True, "worker-host", error_text(None, task.id, e)))
        else:
            self._send(m.Filled(task.task, (clocks.lap_us(),)))
