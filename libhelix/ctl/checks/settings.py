"""HELIX_ variables, and the folder of caches."""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from libhelix.client import service_socket, without_standing
from libhelix.ctl.checks.finding import Finding, Ran, ok, problem, run_python, warning
from libhelix.ctl.figures import size
from libhelix.index.cache import user_cache

KNOWN = (
    *("HELIX_SOCKET", "HELIX_CORES", "HELIX_RESERVE", "HELIX_LOG", "HELIX_CONFIG", "HELIX_METRICS"),
    "HELIX_WEIGHT",
    *("HELIX_JOB", "HELIX_CACHE", "HELIX_PEERS", "HELIX_PEER_HOST", "HELIX_HELPERS"),
)
_OF_DAEMONS = ("HELIX_CORES", "HELIX_RESERVE", "HELIX_LOG", "HELIX_METRICS")
"""Read by the daemon: a private one has the environment of the trainer that starts it, a standing one not."""
_OF_TESTS = re.compile(r"HELIX_(ACL|BENCH|CHAOS|CYCLES|FUZZ|NPU|TEST)(_|$)")
_OURS = re.compile(r"(DATA|LIB)?HELIX[DC]?(CTL)?_", re.IGNORECASE)
_LITTLE_BYTES = 256 << 20
_CHECK_LIMIT_S = 60.0


@dataclass(frozen=True)
class Settings:
    """`variables`: those that look like ours; `check`: what helixd says of them; `socket`: of the standing
    daemon that trainers use, if any."""

    variables: Mapping[str, str]
    check: Ran
    socket: str | None
    cache: Cache


@dataclass(frozen=True)
class Cache:
    """`error`: why nothing can be written there, or nothing. `free_bytes`: of its file system."""

    folder: str
    error: str
    free_bytes: int


def read(environ: Mapping[str, str] = os.environ) -> Settings:
    """What is set."""
    return Settings(
        variables=dict(sorted((name, value) for name, value in environ.items() if _OURS.match(name))),
        check=run_python("-m", "helixd", "check", os.devnull, "--json", limit_s=_CHECK_LIMIT_S),
        socket=service_socket(),
        cache=read_cache(Path(user_cache())),
    )


def read_cache(folder: Path) -> Cache:
    """Whether files can be made there, or the folder itself, as commands and trainers do."""
    there = folder
    while not os.path.exists(there) and there != there.parent:  # Path.exists may raise
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
        stat = os.statvfs(there)
    except OSError as e:
        return Cache(str(folder), f"{there}: {e.strerror}", 0)
    return Cache(str(folder), "", stat.f_bavail * stat.f_frsize)


def judge(settings: Settings) -> list[Finding]:
    """Variables one by one, and the cache."""
    wrong = [*_unknown(settings.variables), *_refused(settings.check), *_without_effect(settings)]
    known = [f"{name}={value}" for name, value in settings.variables.items() if name in KNOWN]
    if not wrong:
        wrong = [ok("variables", ", ".join(known) or "no HELIX_ variable is set")]
    return [*wrong, _cache(settings.cache)]


def _unknown(names: Iterable[str]) -> list[Finding]:
    found = []
    for name in names:
        if name in KNOWN or _OF_TESTS.match(name):
            continue
        # What all have in common would make any two alike.
        near = difflib.get_close_matches(
            _OURS.sub("", name.upper(), 1), [n[len("HELIX_") :] for n in KNOWN], 1
        )
        if near:
            cure = f"did you mean HELIX_{near[0]}?"
            found.append(warning("variables", f"{name} is set, and nothing reads it", cure))
        else:
            found.append(ok("variables", f"{name} is none of datahelix's"))  # Helix is an editor, too
    return found


def _refused(check: Ran) -> list[Finding]:
    """A private daemon would not start with a setting that cannot be."""
    if check.code != 2:
        return []  # what keeps helixd itself from running is told of elsewhere
    return [problem("variables", check.complaint().removeprefix("error: "), "correct it, or unset it")]


def _without_effect(settings: Settings) -> list[Finding]:
    there = [name for name in _OF_DAEMONS if name in settings.variables]
    if settings.socket is None or not there:
        return []
    return [
        warning(
            "variables",
            f"{', '.join(there)} set here: the standing daemon at {settings.socket} does not see that",
            f"set it in its configuration (helixctl config), or {without_standing()} for private ones",
        )
    ]


def _cache(cache: Cache) -> Finding:
    if cache.error:
        return problem(
            "cache",
            f"{cache.folder} cannot be written to ({cache.error}): loaders cannot index folders of media",
            "set HELIX_CACHE to a writable folder",
        )
    found = f"{cache.folder} can be written to, {size(cache.free_bytes)} are free"
    if cache.free_bytes < _LITTLE_BYTES:
        return warning("cache", found, "make room, or set HELIX_CACHE to another folder")
    return ok("cache", found)
