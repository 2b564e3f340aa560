"""The daemon's loop: one thread, readiness in, the core's actions out. It never waits for a peer."""

from __future__ import annotations

import gc
import itertools
import math
import os
import resource
import selectors
import signal
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from helixd.config import LEVELS, Config, LogLevel
from helixd.core import actions as a
from helixd.core.machine import Machine
from helixd.errors import ConfigError, place_of
from helixd.runtime.journal import Journal
from helixd.runtime.link import Link, Overflow
from helixd.runtime.links import Links
from helixd.runtime.notify import Notify
from helixd.runtime.planning import Planning, plan
from helixd.runtime.segments import Segments
from helixd.runtime.user import User
from helixd.runtime.waiting import Turn, Waiting
from libhelix.errors import ProtocolError
from libhelix.wire import channel, codec

if TYPE_CHECKING:
    from helixd.runtime.scrape import Scrape

HELLO_LIMIT_S = 10.0
CLOSE_LIMIT_S = 2.0
ACCEPT_PAUSE_S = 1.0
MAX_IDLE_USERS = 1024
"""Of whom what they had is still remembered."""
MESSAGES_PER_TURN = 64
PEER_S = 0.002
"""One process is listened to for no longer than this at a time, beside the message that it takes."""
TURN_S = 0.002
"""After this the loop looks at its sockets and its clock again, and goes on with who waits longest."""
LONG_TURN_S = 0.005
"""For longer than this the loop should not be away from its sockets."""
GC_THRESHOLD = 5_000
NEED_RESTART = ("socket", "metrics")
"""Settings that a daemon that runs cannot take over."""
PLANNED_AT_ONCE = 256
"""Samples of a window that takes no longer to plan than to give away."""
_DECODERS: dict[str, codec.Decoder[Any]] = {
    "trainer": codec.from_trainer,
    "host": codec.from_host,
    "ctl": codec.from_ctl,
}


def _named(event: a.Event | None) -> str:
    """What kind of event, with the kind of message in it."""
    if event is None:
        return "no event"
    message = getattr(event, "message", None)
    return type(event).__name__ + (f" {type(message).__name__}" if message is not None else "")


def _nothing() -> None:
    """Of a connection that has no turn."""


class _Peer:
    """A connection and what the loop knows of it. `role` is None until it says hello."""

    def __init__(self, number: int, link: Link, pid: int, uid: int, user: User, since: float) -> None:
        self.number = number
        self.user = user
        self.link = link
        self.pid = pid
        self.uid = uid
        self.since = since
        self.turn: Callable[[], None] = _nothing
        self.role: str | None = None
        self.pidfd: int | None = None
        self.closing_since: float | None = None

    @property
    def about(self) -> a.About:
        """Whose it is, for the log."""
        return a.About(self.uid, self.pid or None)


class Loop:
    """Runs a Machine on a listening socket until it stops or a signal comes."""

    def __init__(
        self,
        machine: Machine,
        listener: socket.socket,
        *,
        only_uid: int | None,
        log_level: LogLevel,
        reload: Callable[[], Config] | None = None,
        metrics: socket.socket | None = None,
    ) -> None:
        self._machine = machine
        self._listener = listener
        self._only_uid = only_uid
        self._levels = LEVELS[LEVELS.index(log_level) :]
        self._reload, self._reload_asked = reload, False
        self._notify = Notify()
        self._journal = Journal()
        self._selector = selectors.DefaultSelector()
        self._numbers = itertools.count(1)
        self._peers: dict[int, _Peer] = {}
        self._users: dict[int, User] = {}
        self._descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._workers: dict[int, Link] = {}
        self._worker_ends: dict[int, socket.socket] = {}
        self._segments = Segments()
        self._running = True
        self._events: deque[a.Event] = deque()
        self._accept_again: float | None = None
        self._wait_s: float | None = 0.0
        self._unread = Waiting()
        self._longest: tuple[float, a.Event | None] = (0.0, None)
        """Seconds of the longest event of this turn, and the event."""
        self._planning = Planning()
        self._links = Links(self._selector, self._tell, lambda text: self._log("warning", text), PEER_S)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._scrape: Scrape | None = None
        if metrics is not None:
            # Imported here: it brings a web server's worth of modules, and most daemons are not asked.
            from helixd.runtime.exposition import Exposition
            from helixd.runtime.scrape import Scrape

            self._scrape = Scrape(metrics, Exposition(machine), self._selector, self._takes_jobs)

    def _takes_jobs(self) -> bool:
        return self._running and self._machine.takes_jobs

    # ---- running -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Until the machine stops or SIGTERM or SIGINT comes; then everything is closed."""
        # What is there now stays; and little of what comes is in cycles: look for them rarely, it takes time.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        wake_read, wake_write = socket.socketpair()
        for end in (wake_read, wake_write):
            end.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        if self._reload is not None:
            signal.signal(signal.SIGHUP, self._on_hangup)
        self._selector.register(wake_read, selectors.EVENT_READ, lambda: wake_read.recv(64))
        self._selector.register(self._planning, selectors.EVENT_READ, self._planned)
        self._notify.say("READY=1")
        try:
            while self._running:
                self._turn()
        finally:
            self._notify.say("STOPPING=1")
            self._notify.close()
            signal.set_wakeup_fd(-1)
            self._close_all()
            wake_read.close()
            wake_write.close()

    def _on_signal(self, number: int, _frame: object) -> None:
        self._running = False
        self._log("info", f"stops on {signal.Signals(number).name}")

    def _on_hangup(self, _number: int, _frame: object) -> None:
        self._reload_asked = True

    def _take_over_settings(self) -> None:
        """Read the settings again. Those that cannot be leave all as it was."""
        self._reload_asked = False
        assert self._reload is not None
        self._notify.say("RELOADING=1")
        try:
            new = self._reload()
        except ConfigError as e:
            self._log("error", f"keeps its settings: {e}")
        else:
            self._levels = LEVELS[LEVELS.index(new.log_level) :]
            before, shown = self._machine.shown, new.shown()
            changed = [n for n in shown if shown[n] != before.get(n)]
            later = [n for n in changed if n in NEED_RESTART]
            shown |= {n: before[n] for n in later}  # what is in force
            self._tell(a.Reconfigured(new.cores, new.reserve, new.quota, shown))
            now = ", ".join(n for n in changed if n not in later) or "none"
            restart = f"; a restart is needed for: {', '.join(later)}" if later else ""
            self._log("warning", f"took over its settings; changed: {now}{restart}")
        self._notify.say("READY=1")

    def _turn(self) -> None:
        ready = self._selector.select(0.0 if self._unread or self._links.unread else self._wait_s)
        began_s, began_cpu_s = time.monotonic(), time.thread_time()
        self._unread.add((key.fd, key.data) for key, _ in ready)
        now = began_s
        while self._unread and self._running and now < began_s + TURN_S:
            self._unread.pop()()
            now = time.monotonic()
        deadline = self._machine.deadline()
        if deadline is not None and now >= deadline:
            self._tell(a.Tick())
        if self._reload_asked:
            self._take_over_settings()
        self._links.read()
        self._expire(now)
        self._notify.alive(now, self._machine.summary)
        self._wait_s = self._timeout()
        self._turned(time.monotonic() - began_s, time.thread_time() - began_cpu_s)

    def _turned(self, wall_s: float, cpu_s: float) -> None:
        """A turn is over; where it was long, say what of it was longest."""
        self._machine.turns.add(wall_s, cpu_s)
        if wall_s > LONG_TURN_S:
            event_s, event = self._longest
            self._log(
                "info",
                f"a turn took {wall_s * 1e3:.1f} ms, {cpu_s * 1e3:.1f} ms of it CPU time; "
                f"{event_s * 1e3:.1f} ms for {_named(event)}",
            )
        self._longest = (0.0, None)

    def _timeout(self) -> float | None:
        now = time.monotonic()
        due = [p.since + HELLO_LIMIT_S for p in self._peers.values() if p.role is None]
        if self._accept_again is not None:
            due.append(self._accept_again)
        due += [p.closing_since + CLOSE_LIMIT_S for p in self._peers.values() if p.closing_since is not None]
        due += [d for d in (self._machine.deadline(), self._notify.deadline()) if d is not None]
        if self._scrape is not None and (limit := self._scrape.deadline()) is not None:
            due.append(limit)
        return max(0.0, min(due) - now) if due else None

    def _expire(self, now: float) -> None:
        if self._scrape is not None:
            self._scrape.expire(now)
        if self._accept_again is not None and now >= self._accept_again:
            self._accept_again = None
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for peer in list(self._peers.values()):
            silent = peer.role is None and now >= peer.since + HELLO_LIMIT_S
            stuck = peer.closing_since is not None and now >= peer.closing_since + CLOSE_LIMIT_S
            if silent or stuck:
                self._drop(peer, "said no hello" if silent else "was closed")

    # ---- connections -------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(MESSAGES_PER_TURN):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as e:  # no descriptors are left: those who wait, wait
                self._log("error", f"takes no connections for {ACCEPT_PAUSE_S:.0f} s: {e.strerror}")
                self._selector.unregister(self._listener)
                self._accept_again = time.monotonic() + ACCEPT_PAUSE_S
                return
            pid, uid = channel.peer(sock)
            user = self._user(uid)
            if user.full:
                have = f"user {uid} has {user.connections} connections, {user.strangers} without a hello"
                self._complain(user, "warning", f"{have}; no more are taken", a.About(uid))
            if user.full or (self._only_uid is not None and uid not in (0, self._only_uid)):
                sock.close()
                continue
            channel.tune(sock)
            peer = _Peer(next(self._numbers), Link(sock, user), pid, uid, user, time.monotonic())
            user.connections += 1
            user.strangers += 1
            self._peers[peer.number] = peer
            peer.turn = Turn(user, partial(self._peer_ready, peer))
            self._selector.register(sock, selectors.EVENT_READ, peer.turn)

    def _user(self, uid: int) -> User:
        """What a user has here."""
        if uid not in self._users and len(self._users) >= MAX_IDLE_USERS:
            self._users = {of: user for of, user in self._users.items() if user.connections}
        return self._users.setdefault(uid, User(self._descriptors))

    def _peer_ready(self, peer: _Peer) -> None:
        if self._peers.get(peer.number) is not peer:
            return
        try:
            peer.link.flush()
            if peer.closing_since is not None and not peer.link.backlog:
                self._drop(peer, "was closed")
                return
            self._watch(peer.link, peer.turn)
        except OSError:
            self._drop(peer, "is gone")
            return
        until = time.monotonic() + PEER_S
        for _ in range(MESSAGES_PER_TURN):
            try:
                event = self._next_event(peer)
            except BlockingIOError:
                return
            except ProtocolError as e:
                self._cut_off(peer, "warning", str(e))
                self._machine.counters.cut_off += 1
                self._drop(peer, f"broke the protocol: {e}")
                return
            if event is None:
                self._drop(peer, "is gone")
                return
            if peer.closing_since is None:
                self._tell(event)
            if self._peers.get(peer.number) is not peer or time.monotonic() > until:
                return  # what it says beyond that is heard in the next turn

    def _next_event(self, peer: _Peer) -> a.Event | None:
        """What a peer said; None when it is gone. Raises BlockingIOError, ProtocolError."""
        received = peer.link.receive()
        if received is None:
            return None
        data, descriptors = received
        channel.close_all(descriptors)  # nobody passes helixd any
        if peer.role is not None:
            return a.Received(peer.number, _DECODERS[peer.role](data))
        hello = codec.hello(data)
        peer.role = hello.role
        peer.user.strangers -= 1
        self._watch_process(peer)
        return a.Opened(peer.number, peer.uid, hello)

    def _watch_process(self, peer: _Peer) -> None:
        """Its end is seen even where a forked child keeps the socket open."""
        try:
            peer.pidfd = channel.peer_pidfd(peer.link.sock)
        except ProcessLookupError:
            self._hang_up(peer.link)  # it has ended already, and who has its socket is not who connected
            return
        except OSError:
            return
        if peer.pidfd is None:
            return  # the end of the socket is the only sign
        self._selector.register(
            peer.pidfd, selectors.EVENT_READ, lambda: self._drop(peer, f"process {peer.pid} ended")
        )

    def _drop(self, peer: _Peer, why: str) -> None:
        if self._peers.pop(peer.number, None) is None:
            return
        peer.turn = _nothing  # a cycle less to be found
        peer.user.connections -= 1
        peer.user.strangers -= peer.role is None
        self._selector.unregister(peer.link.sock)
        peer.link.close()
        if peer.pidfd is not None:
            self._selector.unregister(peer.pidfd)
            os.close(peer.pidfd)
        if peer.role is not None:
            self._tell(a.Closed(peer.number, why))

    def _watch(self, link: Link, ready: Callable[[], None]) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.backlog else 0)
        if self._selector.get_key(link.sock).events != events:
            self._selector.modify(link.sock, events, ready)

    # ---- workers -----------------------------------------------------------------------------------

    def _worker_ready(self, number: int) -> None:
        link = self._workers.get(number)
        if link is None:
            return
        try:
            link.flush()
            self._watch(link, lambda: self._worker_ready(number))
        except OSError:
            self._worker_closed(number)
            return
        self._read_worker(number, link, time.monotonic() + PEER_S)

    def _read_worker(self, number: int, link: Link, until: float) -> None:
        for _ in range(MESSAGES_PER_TURN):
            try:
                received = link.receive()
                if received is None:
                    self._worker_closed(number)
                    return
                channel.close_all(received[1])
                event = a.WorkerReceived(number, codec.from_worker(received[0]))
            except BlockingIOError:
                return
            except ProtocolError as e:
                self._log("error", f"worker {number} is cut off: {e}")
                self._worker_closed(number)
                return
            self._tell(event)
            if self._workers.get(number) is not link or time.monotonic() > until:
                return

    def _drain_worker(self, number: int) -> None:
        """A worker has ended; a child that it forked may hold its socket open. Read what it said, close."""
        link = self._workers.get(number)
        if link is not None:
            self._read_worker(number, link, math.inf)
            if self._workers.get(number) is link:
                self._worker_closed(number)

    def _worker_closed(self, number: int) -> None:
        self._drop_worker(number)
        self._tell(a.WorkerClosed(number))

    def _drop_worker(self, number: int) -> None:
        link = self._workers.pop(number, None)
        if link is not None:
            self._selector.unregister(link.sock)
            link.close()
        end = self._worker_ends.pop(number, None)
        if end is not None:
            end.close()

    # ---- the core ----------------------------------------------------------------------------------

    def _tell(self, event: a.Event) -> None:
        # Actions may cause events (a closed connection); those wait until the actions before are done.
        self._events.append(event)
        if len(self._events) > 1:
            return
        while self._events:
            began_s = time.monotonic()
            for action in self._handle(self._events[0], began_s):
                self._do(action)
            took_s = time.monotonic() - began_s
            if took_s > self._longest[0]:
                self._longest = (took_s, self._events[0])
            self._events.popleft()

    def _handle(self, event: a.Event, now: float) -> list[a.Action]:
        try:
            return self._machine.handle(event, now)
        except Exception as e:
            # A mistake of ours that one peer's message has found must not end the jobs of the others.
            if isinstance(event, a.Received) and event.conn in self._peers:
                self._hang_up(self._peers[event.conn].link)
            elif isinstance(event, a.WorkerReceived) and event.worker in self._workers:
                self._hang_up(self._workers[event.worker])
            elif not isinstance(event, a.PeerSaid):
                raise
            text = f"cut off after {event!r:.500}:\n{traceback.format_exc()}"
            self._log("error", text, a.About(code=place_of(e)))
            return self._machine.take_actions()

    def _do(self, action: a.Action) -> None:
        match action:
            case a.Send():
                self._send(action)
            case a.SendWorker():
                self._send_worker(action)
            case a.Close(conn):
                self._close_soon(conn)
            case a.MakeWorker(worker):
                ours, theirs = channel.new_pair()
                self._workers[worker] = Link(ours)
                self._worker_ends[worker] = theirs
                self._selector.register(ours, selectors.EVENT_READ, lambda: self._worker_ready(worker))
            case a.DropWorker(worker):
                self._drop_worker(worker)
            case a.DrainWorker(worker):
                self._drain_worker(worker)
            case a.MakeArena(arena, nbytes, memfd):
                if (problem := self._segments.make(arena, nbytes, memfd=memfd)) is not None:
                    self._events.append(a.ArenaFailed(arena, problem))
            case a.DropArena(arena):
                self._segments.drop(arena)
            case a.Plan(ticket, planner, opening):
                if len(opening.taken) <= PLANNED_AT_ONCE:
                    self._events.append(a.Planned(ticket, plan(planner, opening)))
                else:
                    self._planning.ask(action)
            case a.OpenPeers():
                self._events.append(self._links.open(action))
            case a.KnowPeers():
                self._links.know(action)
            case a.PeerSend():
                beside = self._segments.part(*action.bytes_of) if action.bytes_of is not None else None
                self._machine.counters.peer_bytes += self._links.send(action, beside)
            case a.Reach(arena):
                if (problem := self._segments.reach(arena)) is not None:
                    self._events.append(a.Unreached(arena, problem))
            case a.Land(arena, payload, to):
                self._segments.land(arena, payload, to)
            case a.ClosePeers(link):
                self._links.close(link)
            case a.Log(level, text, about):
                self._log(level, text, about)
            case a.Stop(why):
                self._log("info", f"stops: {why}")
                self._running = False

    def _planned(self) -> None:
        for event in self._planning.answers():
            self._tell(event)

    def _send(self, action: a.Send) -> None:
        peer = self._peers.get(action.conn)
        end = self._worker_ends.pop(action.worker, None) if action.worker is not None else None
        try:
            if peer is None or peer.closing_since is not None:
                return
            descriptors = [end.fileno()] if end is not None else []
            if action.arena is not None:
                if (held := self._segments.descriptor(action.arena)) is None:
                    return  # it could not be made; its loader is about to hear so
                descriptors.append(held)
            peer.link.send(codec.encode(action.message), descriptors)
            self._watch(peer.link, peer.turn)
        except (OSError, Overflow, ProtocolError) as e:
            # Its closing is an event like any other, and comes when the actions of this one are done.
            # Who has closed its end has left; the messages that crossed were for nobody.
            left = isinstance(e, (BrokenPipeError, ConnectionResetError))
            if peer is not None:
                self._cut_off(peer, "info" if left else "warning", str(e))
                self._hang_up(peer.link)
        finally:
            if end is not None:
                end.close()

    def _send_worker(self, action: a.SendWorker) -> None:
        link = self._workers.get(action.worker)
        if link is None:
            return
        held = self._segments.descriptor(action.arena) if action.arena is not None else None
        descriptors = [held] if held is not None else []
        try:
            link.send(codec.encode(action.message), descriptors)
            self._watch(link, lambda: self._worker_ready(action.worker))
        except (OSError, Overflow, ProtocolError) as e:
            self._log("warning", f"worker {action.worker} is cut off: {e}")
            self._hang_up(link)

    def _cut_off(self, peer: _Peer, level: LogLevel, why: str) -> None:
        text = f"process {peer.pid} of user {peer.uid} is cut off: {why}"
        self._complain(peer.user, level, text, peer.about)

    def _complain(self, user: User, level: LogLevel, text: str, about: a.About) -> None:
        """Tell the operator what a user does, unless it happens all the time."""
        told = user.told(time.monotonic())
        if told != "none":
            more = "; more of this user is not told for a minute" if told == "last" else ""
            self._log(level, text + more, about)

    @staticmethod
    def _hang_up(link: Link) -> None:
        try:
            link.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other side has hung up already

    def _close_soon(self, conn: int) -> None:
        peer = self._peers.get(conn)
        if peer is None:
            return
        if peer.link.backlog:
            peer.closing_since = time.monotonic()
        else:
            self._drop(peer, "was closed")

    def _close_all(self) -> None:
        self._listener.close()
        if self._scrape is not None:
            self._scrape.close()
        self._planning.close()
        self._links.close_all()
        for peer in list(self._peers.values()):
            peer.link.close()
        for number in list(self._workers):
            self._workers[number].close()
        for end in self._worker_ends.values():
            end.close()
        self._segments.close()
        self._selector.close()
        self._journal.close()

    def _log(self, level: LogLevel, text: str, about: a.About | None = None) -> None:
        if level in self._levels:
            self._journal.write(level, text, about)
