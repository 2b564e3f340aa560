"""Building an index: find the files, probe them on all cores, write one Arrow file."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from libhelix.errors import IndexProblem
from libhelix.index import scan, schema
from libhelix.recipe import Item

_ARROW = b"ARROW1"
"""What every Arrow file begins with."""
Progress = Callable[[int, int], None]

_FILES_PER_PROCESS = 16
"""A scanning process takes 0.3 s to start: it should have something to do."""
_FILE_TIMEOUT_S = 300.0
_SCAN = "from libhelix.index.scan import main; main()"


class BuildReport(msgspec.Struct, frozen=True):
    """What a build did. `refused` are (path, reason) of files that are not in the index."""

    samples: int
    refused: list[tuple[str, str]]
    fingerprint: str


def build(
    sources: Sequence[str | Path],
    output: str | Path,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Index files and directories (recursively, in sorted order) into `output`, atomically.

    Keys are paths below the sources' common directory. `jobs` processes scan (all usable cores by default);
    `progress(done, total)` is called from the caller's thread. Raises IndexProblem where a source is missing,
    nothing usable is found, or the output cannot be written.
    """
    output = os.path.abspath(os.fspath(output))
    root, paths = list_files(sources, skip=output)
    _check_writable(output)
    answers = _probe_all(paths, jobs, progress)
    refused = [(p, a.refused) for p, a in zip(paths, answers, strict=True) if a.item is None]
    samples = [(os.path.relpath(a.item.path, root), a.item) for a in answers if a.item is not None]
    if not samples:
        some = "; ".join(reason for _, reason in refused[:3]) or "the sources hold no files"
        raise IndexProblem(f"nothing to index in {', '.join(map(str, sources))}: {some}; name media files")
    mark = schema.fingerprint(samples)
    _write(samples, output, root, mark, len(refused))
    return BuildReport(len(samples), refused, mark)


def list_files(sources: Sequence[str | Path], skip: str = "") -> tuple[str, list[str]]:
    """(common root, sorted absolute paths) of the files in `sources`, without `skip`.

    Hidden directories are not entered, links to directories not followed (they may form a circle).
    """
    if not sources:
        raise IndexProblem("no source was given; name a directory or media files")
    folders: list[str] = []
    found: set[str] = set()
    for source in (os.path.abspath(os.fspath(s)) for s in sources):
        if os.path.isdir(source):
            folders.append(source)
            found.update(_walk(source))
        elif os.path.isfile(source):
            folders.append(os.path.dirname(source))
            found.add(source)
        else:
            raise IndexProblem(f"{source}: no such file or directory; check the path")
    found.discard(skip)
    return os.path.commonpath(folders), sorted(found)


def _walk(folder: str) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise IndexProblem(f"{error.filename}: {error.strerror}; make it readable") from error

    for at, folders, files in os.walk(folder, onerror=fail):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        # Sockets and pipes would block whoever opens them.
        yield from (p for p in (os.path.join(at, f) for f in files) if os.path.isfile(p))


def _replaceable(path: str) -> bool:
    """Whether it is an index, perhaps a broken one, or empty; never a file that somebody would miss."""
    try:
        with open(path, "rb") as file:
            head = file.read(len(_ARROW))
    except OSError:
        return True  # what cannot be read cannot be replaced either, and is told so when it is written
    return head in (b"", _ARROW)


def _check_writable(output: str) -> None:
    # Found out now, not after an hour of scanning.
    folder = os.path.dirname(output)
    if os.path.isdir(output):
        raise IndexProblem(f"{output}: is a directory; give a file name such as {output}/train.arrow")
    if os.path.exists(output) and not _replaceable(output):
        raise IndexProblem(f"{output}: exists and is no index; it is not replaced: choose another output")
    if not os.path.isdir(folder):
        raise IndexProblem(f"{output}: there is no directory {folder}; create it or choose another output")
    temporary = _temporary(output)
    try:
        open(temporary, "wb").close()  # the only way to know: access() allows root everything, in /proc too
        os.unlink(temporary)
    except OSError as e:
        raise _unwritable(output, e) from e


def _temporary(output: str) -> str:
    return f"{output}.{os.getpid()}.tmp"


def _unwritable(output: str, error: OSError) -> IndexProblem:
    cause = os.strerror(error.errno) if error.errno else str(error)
    return IndexProblem(f"{output}: cannot be written ({cause}); free some space or choose another output")


class _Scanner:
    """One scanning process, started anew when a file kills it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def probe(self, path: str) -> scan.Answer:
        """The answer for one file. Raises IndexProblem where the process does not even start."""
        try:
            question = msgspec.json.encode(path)
        except UnicodeEncodeError:
            return scan.Answer(refused=f"{path!r}: the name is not UTF-8; rename the file")
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(_FILE_TIMEOUT_S, process.kill)
        timer.start()
        try:
            process.stdin.write(question + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            timer.cancel()
        if line.endswith(b"\n"):
            return msgspec.json.decode(line, type=scan.Answer)
        died = self.close()
        return scan.Answer(refused=f"{path}: reading it ended the scanning process ({died}); leave it out")

    def _start(self) -> subprocess.Popen[bytes]:
        package_root = str(Path(__file__).resolve().parents[2])
        inherited = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        python_path = os.pathsep.join([package_root, *map(os.path.abspath, inherited)])
        process = self._process = subprocess.Popen(
            [sys.executable, "-c", _SCAN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",  # Python imports from where it starts, and that may be among the media
            env={**os.environ, "PYTHONPATH": python_path, "OPENBLAS_NUM_THREADS": "1"},
        )
        assert process.stdout is not None
        if process.stdout.readline() != scan.READY:
            died = self.close()
            raise IndexProblem(
                f"the scanning process does not start ({died}); "
                f"run '{sys.executable} -m libhelix.index.scan' to see why"
            )
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


def _probe_all(paths: Sequence[str], jobs: int | None, progress: Progress | None) -> list[scan.Answer]:
    cores = len(os.sched_getaffinity(0))
    wanted = jobs if jobs is not None else min(cores, -(-len(paths) // _FILES_PER_PROCESS))
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, scan.Answer] | BaseException] = queue.SimpleQueue()
    for i in range(len(paths)):
        todo.put(i)

    def work() -> None:
        scanner = _Scanner()
        try:
            while True:
                i = todo.get_nowait()
                done.put((i, scanner.probe(paths[i])))
        except queue.Empty:
            pass
        except BaseException as e:  # noqa: BLE001 - handed to the caller's thread, which raises it
            done.put(e)
        finally:
            scanner.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(max(1, min(wanted, len(paths))))]
    for thread in threads:
        thread.start()
    answers: dict[int, scan.Answer] = {}
    try:
        while len(answers) < len(paths):
            got = done.get()
            if isinstance(got, BaseException):
                raise got
            answers[got[0]] = got[1]
            if progress is not None:
                progress(len(answers), len(paths))
    finally:
        # After an error or Ctrl-C the others finish their file and stop.
        while not todo.empty():
            try:
                todo.get_nowait()
            except queue.Empty:
                break
        for thread in threads:
            thread.join()
    return [answers[i] for i in range(len(paths))]


def _write(samples: Sequence[tuple[str, Item]], output: str, root: str, mark: str, refused: int) -> None:
    rows = [schema.row(key, item) for key, item in samples]
    metadata = {
        schema.META_FORMAT: str(schema.FORMAT),
        schema.META_FINGERPRINT: mark,
        schema.META_ROOT: root,
        schema.META_REFUSED: json.dumps(refused),
    }
    fields = pa.schema(list(schema.COLUMNS), metadata=metadata)
    arrays = [pa.array([r[name] for r in rows], kind) for name, kind in schema.COLUMNS]
    # One batch: a sample is then found without searching for its chunk.
    batch = pa.record_batch(arrays, schema=fields)
    temporary = _temporary(output)
    try:
        with pa.OSFile(temporary, "wb") as sink, pa.ipc.new_file(sink, fields) as writer:
            writer.write_batch(batch)
        os.replace(temporary, output)
    except OSError as e:
        raise _unwritable(output, e) from e
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
