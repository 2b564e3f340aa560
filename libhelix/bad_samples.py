"""What training could not decode, kept for its user: a list of bad samples for each index.

$HELIX_CACHE or ~/.cache/helix holds bad-samples/<fingerprint of the index>.jsonl, a line for each time that a
sample failed. `helixctl errors` shows them; `helixctl quarantine` keeps samples out of later epochs.
"""

from __future__ import annotations

import os
import time

import msgspec

from libhelix.errors import IndexProblem
from libhelix.index.cache import user_cache
from libhelix.index.read import Index
from libhelix.recipe import Sample
from libhelix.wire.messages import Bad

_MOST_BYTES = 16 << 20
"""Of a list. What fails beyond it has failed before: nothing is noted any more until the file is removed."""


class BadSample(msgspec.Struct, frozen=True):
    """One failure. `path` and `offset`: where the sample's first item lies; `time`: seconds since 1970."""

    key: str
    path: str
    offset: int
    stage: str
    error: str
    epoch: int
    step: int
    loader: str
    time: float


def list_of(index: Index) -> str:
    """The file that holds the bad samples of an index."""
    return os.path.join(user_cache(), "bad-samples", f"{index.fingerprint}.jsonl")


def note(index: Index, sample: Sample, bad: Bad, loader: str) -> None:
    """Append to the list. Raises OSError where that cannot be written."""
    item = sample.items[0] if sample.items else None
    line = BadSample(
        key=sample.key,
        path=item.path if item is not None else "",
        offset=item.offset if item is not None else 0,
        stage=bad.stage,
        error=bad.text,
        epoch=bad.at.epoch,
        step=bad.at.step,
        loader=loader,
        time=round(time.time(), 3),
    )
    path = list_of(index)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # One write of whole lines: ranks and jobs append at the same time.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(fd).st_size < _MOST_BYTES:
            os.write(fd, msgspec.json.encode(line) + b"\n")
    finally:
        os.close(fd)


def noted(index: Index) -> list[BadSample]:
    """The list of an index, the oldest first. A line that a full disk cut short is left out."""
    try:
        with open(list_of(index), "rb") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    except OSError as e:
        raise IndexProblem(f"{list_of(index)}: {e.strerror}; set HELIX_CACHE to a folder of yours") from e
    found = []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=BadSample))
        except msgspec.DecodeError:
            continue
    return found
