"""Writing Arrow files: whole or not at all, and never over a file that somebody would miss."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from libhelix.errors import IndexProblem

_ARROW = b"ARROW1"
"""What every Arrow file begins with."""
ELSEWHERE = "choose another output"


def check_writable(output: str, cure: str = ELSEWHERE) -> None:
    """Raise IndexProblem, which ends with a cure, unless `output` can be written. Ask before the work."""
    folder = os.path.dirname(output)
    if os.path.isdir(output):
        raise IndexProblem(f"{output}: is a directory; give a file name such as {output}/train.arrow")
    if os.path.exists(output) and not os.path.isfile(output):
        raise IndexProblem(f"{output}: is no regular file; it is not replaced: {cure}")
    if os.path.exists(output) and not _replaceable(output):
        raise IndexProblem(f"{output}: exists and is no index; it is not replaced: {cure}")
    if not os.path.isdir(folder):
        raise IndexProblem(f"{output}: there is no directory {folder}; create it or {cure}")
    temporary = _temporary(output)
    try:
        open(temporary, "wb").close()  # the only way to know: access() allows root everything, in /proc too
        os.unlink(temporary)
    except OSError as e:
        raise unwritable(output, e, cure) from e


def write(batch: Any, output: str, cure: str = ELSEWHERE) -> None:
    """Write a record batch, one: a row is then found without searching for its chunk."""
    temporary = _temporary(output)
    try:
        with pa.OSFile(temporary, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        os.replace(temporary, output)
    except OSError as e:
        raise unwritable(output, e, cure) from e
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _replaceable(path: str) -> bool:
    """Whether it is an Arrow file, perhaps a broken one, or empty; never one that somebody would miss."""
    try:
        with open(path, "rb") as file:
            head = file.read(len(_ARROW))
    except OSError:
        return True  # what cannot be read cannot be replaced either, and is told so when it is written
    return head in (b"", _ARROW)


def _temporary(output: str) -> str:
    return f"{output}.{os.getpid()}.tmp"


def unwritable(output: str, error: OSError, cure: str = ELSEWHERE) -> IndexProblem:
    cause = os.strerror(error.errno) if error.errno else str(error)
    return IndexProblem(f"{output}: cannot be written ({cause}); free some space or {cure}")
