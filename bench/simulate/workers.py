"""A decode worker: does what it is told, in the order told, and takes the time that it takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from bench.simulate.clock import Clock
from bench.simulate.corpus import OPEN_US, SCHEMA, Corpus
from libhelix.wire import messages as m

DESCRIBE_US = 20
COPY_US = 1000
"""Copying a sample of ten megabytes."""
LATENCY_S = 50e-6
"""Of a message, one way."""


class Done(NamedTuple):
    """A fill task that ran: `work_s` on the CPU, from `began` to `ended`; opening files anew is no work.

    `sample` is one of its samples; all are of one batch.
    """

    began: float
    ended: float
    sample: int
    work_s: float
    parts: tuple[tuple[int, int, int], ...]


class Worker:
    """One process on one core. `say` is its socket. Its core takes `slow` times as long as others."""

    def __init__(
        self,
        clock: Clock,
        corpus: Corpus,
        say: Callable[[m.FromWorker], None],
        *,
        oracle: bool,
        slow: float,
        storage_s: float,
    ) -> None:
        self._clock, self._corpus, self._say = clock, corpus, say
        self._oracle, self._slow, self._storage_s = oracle, slow, storage_s
        self._inbox: deque[m.ToWorker] = deque()
        self._busy = False
        self.done: list[Done] = []

    def told(self, message: m.ToWorker) -> None:
        """A message has come."""
        self._inbox.append(message)
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = False
        while self._inbox and not self._busy:
            match self._inbox.popleft():
                case m.Setup(number):
                    self._say(m.SetupDone(number))
                case m.Describe(task, _, _, ids):
                    rows = tuple(self._corpus.row(i, oracle=self._oracle) for i in ids)
                    seconds = len(ids) * DESCRIBE_US * 1e-6 * self._slow
                    self._end_after(seconds, m.Described(task, SCHEMA, rows, last=True))
                case m.Fill() as task:
                    self._fill(task)
                case m.Copy(task):
                    self._end_after(COPY_US * 1e-6 * self._slow, m.Filled(task, (COPY_US,)))
                case m.Mask():
                    raise AssertionError("no sample is bad, and no batch has fillers")

    def _fill(self, task: m.Fill) -> None:
        took_us, again_us = [], 0.0
        for piece in task.pieces:
            decode_us = self._corpus.part_us(piece.id, piece.begin, piece.end)
            took_us.append((decode_us + OPEN_US) * self._slow)
            again_us += OPEN_US * self._slow if piece.begin else 0.0
        seconds = sum(took_us) * 1e-6
        began = self._clock.now
        self.done.append(
            Done(
                began,
                began + seconds + self._storage_s,
                task.pieces[0].id,
                seconds - again_us * 1e-6,
                tuple((piece.id, piece.begin, piece.end) for piece in task.pieces),
            )
        )
        cpu_us = tuple(int(us) for us in took_us)
        self._end_after(seconds + self._storage_s, m.Filled(task.task, cpu_us, int(self._storage_s * 1e6)))

    def _end_after(self, seconds: float, answer: m.FromWorker) -> None:
        self._busy = True
        self._clock.after(seconds, self._ended, answer)

    def _ended(self, answer: m.FromWorker) -> None:
        self._say(answer)
        self._next()
