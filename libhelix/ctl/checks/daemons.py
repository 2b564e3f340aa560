"""The daemons of this node: which one a trainer would use, and what each says."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from libhelix._version import __version__
from libhelix.client import SYSTEM_SOCKET, service_socket, shown, without_standing
from libhelix.ctl.checks.finding import Finding, ok, problem, warning
from libhelix.ctl.daemons import ask, private_addresses
from libhelix.errors import DaemonUnreachable, HelixError, ProtocolError

_LATE_TURN_MS = 1000


@dataclass(frozen=True)
class Answer:
    """Of one daemon: its status, or the error in its place. `access`: what keeps us from its socket."""

    address: str
    status: dict[str, Any] | None = None
    error: HelixError | None = None
    access: str = ""


@dataclass(frozen=True)
class Daemons:
    """`standing`: the one that trainers use, None where each job has a private one."""

    standing: Answer | None
    private: tuple[Answer, ...] = ()

    def rings_bytes(self) -> int:
        """Of all jobs that this user is told of."""
        answers = [*self.private, *([self.standing] if self.standing is not None else [])]
        return sum(
            consumer["ring_bytes"]["total"]
            for answer in answers
            if answer.status is not None
            for job in answer.status["jobs"]
            for loader in job["loaders"]
            for consumer in loader["consumers"]
        )


def read() -> Daemons:
    """Ask all."""
    where = service_socket()
    standing = None
    if where is not None:
        standing = asked(where) if not (wrong := access_to(where)) else Answer(where, access=wrong)
    found = [asked(address) for address in private_addresses()]
    ended = [a for a in found if isinstance(a.error, DaemonUnreachable) and "has just ended" in str(a.error)]
    return Daemons(standing, tuple(a for a in found if a not in ended))


def asked(address: str) -> Answer:
    """What the daemon at an address says."""
    try:
        return Answer(shown(address), status=ask(address))
    except (HelixError, OSError) as e:
        return Answer(shown(address), error=e if isinstance(e, HelixError) else HelixError(str(e)))


def access_to(path: str) -> str:
    """Why a path is no socket that this user may connect to; nothing where it is one."""
    try:
        mode = os.stat(path).st_mode
    except OSError as e:
        return e.strerror or str(e)
    if not stat.S_ISSOCK(mode):
        return "it is no socket"
    return "" if os.access(path, os.W_OK) else "Permission denied"


def judge(daemons: Daemons) -> list[Finding]:
    """The one that trainers use, and the private ones that run."""
    return [_standing(daemons.standing), *_private(daemons.private)]


def _standing(answer: Answer | None) -> Finding:
    name = "daemon"
    if answer is None:
        return ok(name, f"none stands (no HELIX_SOCKET, no {SYSTEM_SOCKET}): each job starts a private one")
    where = answer.address
    if answer.access:
        cure = f"start it with helixd run --socket {where}, or {without_standing()}"
        if answer.access == "Permission denied":
            cure = f"have yourself added to the group of {where} (SocketGroup in helixd.socket)"
        return problem(name, f"trainers use {where}: {answer.access}", cure)
    if isinstance(answer.error, ProtocolError):
        return problem(name, str(answer.error), f"update both and restart helixd, or {without_standing()}")
    if answer.error is not None or answer.status is None:
        return problem(
            name,
            f"trainers use {where}, and get no answer: {answer.error}",
            f"restart it (systemctl restart helixd), or {without_standing()}",
        )
    status = answer.status
    found = f"trainers use helixd {status['version']} at {where}, {_jobs([answer])}"
    if status.get("draining"):
        return problem(
            name,
            f"{found}; it is being drained and takes no new job",
            f"helixctl drain --cancel, or {without_standing()}",
        )
    return _version(name, found, status) or _loop(name, found, status) or ok(name, found)


def _version(name: str, found: str, status: dict[str, Any]) -> Finding | None:
    if status["version"] == __version__:
        return None
    return warning(
        name,
        f"{found}; this is libhelix {__version__}",
        "install one version for both, and restart the older one",
    )


def _loop(name: str, found: str, status: dict[str, Any]) -> Finding | None:
    """A daemon that stood still for so long has made every rank wait."""
    longest = status.get("loop", {}).get("longest_ms", 0)
    if longest < _LATE_TURN_MS:
        return None
    return warning(
        name,
        f"{found}; a turn of its loop once took {longest / 1000:.1f} s",
        "see whether it gets CPU time (helixctl status compares wall and CPU time) and memory is not swapped",
    )


def _private(answers: Sequence[Answer]) -> list[Finding]:
    name = "private daemons"
    if not answers:
        return []
    found = []
    for answer in answers:
        if answer.status is None:
            found.append(
                warning(
                    name,
                    f"helixd at {answer.address}: {answer.error}",
                    "its job goes on with the version that started it; end the job to be rid of it",
                )
            )
        elif other := _version(name, f"helixd {answer.status['version']} at {answer.address}", answer.status):
            found.append(other)
    return found or [ok(name, f"{len(answers)} run{'s' if len(answers) == 1 else ''}, {_jobs(answers)}")]


def _jobs(answers: Sequence[Answer]) -> str:
    """Like "2 jobs, 8 trainers"."""
    jobs = [job for answer in answers if answer.status is not None for job in answer.status["jobs"]]
    trainers = sum(len(job["trainers"]) for job in jobs)
    return f"{len(jobs)} job{'' if len(jobs) == 1 else 's'}, {trainers} trainer{'' if trainers == 1 else 's'}"
