"""Processes that answer questions, a line each way, on all cores. What kills one of them costs one question.

A module that answers has a `main()`, which writes READY and then a line for every line that it reads. It
is a program of its own and not a multiprocessing child, which would import the user's main module again.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import BinaryIO

from libhelix.errors import HelixError

READY = b"ready\n"
_QUESTION_TIMEOUT_S = 300.0


class Died:
    """Instead of an answer: the question ended the process, `how` says in which way."""

    def __init__(self, how: str) -> None:
        self.how = how


Answer = bytes | Died


def ask_all(
    questions: Sequence[bytes],
    *,
    code: str,
    module: str,
    processes: int,
    failed: Callable[[str], HelixError],
    argument: str = "",
    timeout_s: float = _QUESTION_TIMEOUT_S,
) -> Generator[tuple[int, Answer], None, None]:
    """(number of a question, its answer), as they come, from so many processes that run `code`.

    `module` can be run by hand, to see why it does not start; `argument` is its sys.argv[1]. A question that
    takes longer than `timeout_s` ends its process. Raises what `failed` makes of a text where a process does
    not even start. Closing the iterator ends the processes.
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Answer] | BaseException] = queue.SimpleQueue()
    for i in range(len(questions)):
        todo.put(i)

    def work() -> None:
        member = _Member(code, module, argument, failed, timeout_s)
        try:
            while True:
                i = todo.get_nowait()
                done.put((i, member.ask(questions[i])))
        except queue.Empty:
            pass
        except BaseException as e:  # noqa: BLE001 - handed to the caller's thread, which raises it
            done.put(e)
        finally:
            member.close()

    count = max(1, min(processes, len(questions)))
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(len(questions)):
            got = done.get()
            if isinstance(got, BaseException):
                raise got
            yield got
    finally:
        # After an error or Ctrl-C the others finish their question and stop.
        while not todo.empty():
            try:
                todo.get_nowait()
            except queue.Empty:
                break
        for thread in threads:
            thread.join()


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def answers_only() -> BinaryIO:
    """For the processes: where answers go. What libraries print goes elsewhere from now on."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answers.write(READY)
    answers.flush()
    return answers


class _Member:
    """One process, started anew when a question kills it."""

    def __init__(
        self,
        code: str,
        module: str,
        argument: str,
        failed: Callable[[str], HelixError],
        timeout_s: float,
    ) -> None:
        self._code = code
        self._module = module
        self._argument = argument
        self._failed = failed
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: bytes) -> Answer:
        """The answer to one question."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(self._timeout_s, process.kill)
        timer.start()
        try:
            process.stdin.write(question + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            timer.cancel()
        return line[:-1] if line.endswith(b"\n") else Died(self.close())

    def _start(self) -> subprocess.Popen[bytes]:
        package_root = str(Path(__file__).resolve().parents[2])
        inherited = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        python_path = os.pathsep.join([package_root, *map(os.path.abspath, inherited)])
        process = self._process = subprocess.Popen(
            [sys.executable, "-c", self._code, self._argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",  # Python imports from where it starts, and that may be among the media
            env={**os.environ, "PYTHONPATH": python_path, "OPENBLAS_NUM_THREADS": "1"},
        )
        assert process.stdout is not None
        if process.stdout.readline() != READY:
            died = self.close()
            raise self._failed(f"({died}); run '{sys.executable} -m {self._module}' to see why")
        return process

    def close(self) -> str:
        """End the process; says how it ended."""
        process, self._process = self._process, None
        if process is None:
            return "not running"
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass
        process.stdout.close()
        code = process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
