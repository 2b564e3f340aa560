"""Files of the results.

DIR/raw/NNNN.json   one run: a `Record`, with every wait      DIR/raw/head.json   a `Head`: machine, settings
DIR/results.json    figures, made of those alone (`Results`)   DIR/report.md, *.png
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from bench.machine import Circumstances
from bench.node.case import Case
from bench.node.runs import Run
from bench.results import BenchFailed, to_json

SCHEMA = 2
"""Raise it when a name in results.json or raw/*.json changes its meaning."""


class Point(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What is compared is measured at one point. table: "main", or what `value` is of: skew, rho, micro,
    storage."""

    table: str
    workload: str
    lookahead: int
    value: float = 0.0


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A run, or why there is none. number: of the repetition; -1 for one in which a setting was tried."""

    schema: int = SCHEMA
    point: Point
    number: int
    system: str
    case: Case | None = None
    run: Run | None = None
    error: str = ""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs have in common. skipped: system -> why it was not run."""

    schema: int = SCHEMA
    tier: str
    circumstances: Circumstances
    settings: dict[str, str]
    systems: dict[str, str]
    workloads: dict[str, str]
    skipped: dict[str, str] = {}
    stopped: bool = False


class Folder:
    """A folder of results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._raw = path / "raw"

    def begin(self, head: Head) -> None:
        """Start anew. Raises BenchFailed where there are results already."""
        if list(self._raw.glob("*.json")):
            raise BenchFailed(f"{self._raw} holds results of another run; remove it, or choose another --out")
        self._raw.mkdir(parents=True, exist_ok=True)
        self.head(head)

    def head(self, head: Head) -> None:
        """Write what all runs have in common."""
        (self._raw / "head.json").write_bytes(to_json(head))

    def add(self, record: Record) -> None:
        """Write a run."""
        count = len(list(self._raw.glob("[0-9]*.json")))
        path = self._raw / f"{count:04d}.json"
        partial = path.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(record))
        partial.replace(path)

    def read(self) -> tuple[Head, list[Record]]:
        """All that was written; a run that cannot be read is one that failed. Raises BenchFailed where the
        folder is not ours."""
        try:
            head = msgspec.json.decode((self._raw / "head.json").read_bytes(), type=Head)
        except (OSError, msgspec.MsgspecError) as e:
            raise BenchFailed(f"{self._raw}: no raw results of `bench node` ({e})") from e
        if head.schema != SCHEMA:
            raise BenchFailed(f"{self._raw}: schema {head.schema}, this version reads {SCHEMA}")
        return head, [_read(path) for path in sorted(self._raw.glob("[0-9]*.json"))]


def _read(path: Path) -> Record:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError) as e:
        nowhere = Point(table="main", workload="", lookahead=0)
        return Record(point=nowhere, number=-1, system="", error=f"{path} cannot be read: {e}")
