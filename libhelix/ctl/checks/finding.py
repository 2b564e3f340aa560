"""What a check comes to, and how a check asks a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from libhelix.client import process_environment

Grade = Literal["ok", "warning", "problem"]
SHOWN_CHARS = 300
"""Of what another program says."""


@dataclass(frozen=True)
class Finding:
    """`found`: with numbers and units. `cure`: what to do, unless all is well."""

    name: str
    grade: Grade
    found: str
    cure: str = ""


def ok(name: str, found: str) -> Finding:
    """All is well."""
    return Finding(name, "ok", found)


def warning(name: str, found: str, cure: str) -> Finding:
    """Jobs run, but not as well as they could, or not as somebody meant."""
    return Finding(name, "warning", found, cure)


def problem(name: str, found: str, cure: str) -> Finding:
    """Some job does not run because of this."""
    return Finding(name, "problem", found, cure)


class Ran(NamedTuple):
    """A process that has ended; `code` is None where it was ended because its time was over."""

    code: int | None
    out: str
    err: str

    def complaint(self) -> str:
        """The last line that it wrote, which of a traceback is the error, and how it ended otherwise."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        if lines:
            return lines[-1][:SHOWN_CHARS]
        if self.code is None:
            return "it did not end in time"
        return f"killed by signal {-self.code}" if self.code < 0 else f"exit code {self.code}"


def run_python(
    *args: str, limit_s: float, bare: bool = True, changed: Mapping[str, str] | None = None
) -> Ran:
    """Run this interpreter and wait; `bare`: as trainers start processes, with one thread and no device."""
    env = process_environment(bare=bare) | dict(changed or {})
    try:
        done = subprocess.run(
            [sys.executable, *args],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        return Ran(None, _text(e.stdout), _text(e.stderr))
    return Ran(done.returncode, _text(done.stdout), _text(done.stderr))


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")
