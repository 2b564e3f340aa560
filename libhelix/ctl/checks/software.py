"""Versions of what is installed, and whether helixd starts."""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata

from libhelix._version import __version__
from libhelix.ctl.checks.finding import Finding, Ran, ok, problem, run_python, warning
from libhelix.wire.messages import PROTOCOL

START_LIMIT_S = 60.0
_DISTRIBUTION = "datahelix"
_SHOWN = ("numpy", "msgspec", "pyzmq", "pyarrow", "simplejpeg", "posix_ipc")
_REQUIREMENT = re.compile(r"([\w.-]+)\s*>=\s*([\d.]+)\s*(;.*)?$")
_PYTHON = (3, 10)
_FFMPEG = "import av; print(av.__version__, getattr(av, 'ffmpeg_version_info', ''))"
_HOW = f"pip install -U {_DISTRIBUTION}"


@dataclass(frozen=True)
class Software:
    """`installed`: versions by name, of what is required or of use; `least`: the versions that are required,
    those of extras among them; `distribution`: of datahelix, None where it is not installed but found."""

    python: tuple[int, ...]
    distribution: str | None
    installed: Mapping[str, str]
    least: Mapping[str, str]
    extras: frozenset[str]
    av: Ran
    daemon: Ran
    release: str = field(default_factory=platform.release)


def read() -> Software:
    """What there is; av and helixd are tried in processes of their own."""
    least, extras = _requirements()
    installed = {}
    for name in {*least, *_SHOWN, "av", "torch"}:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    try:
        distribution: str | None = metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        distribution = None
    return Software(
        python=sys.version_info[:3],
        distribution=distribution,
        installed=installed,
        least=least,
        extras=extras,
        av=run_python("-c", _FFMPEG, limit_s=START_LIMIT_S),
        daemon=run_python("-m", "helixd", "version", "--json", limit_s=START_LIMIT_S),
    )


def _requirements() -> tuple[dict[str, str], frozenset[str]]:
    """Least versions by name, and the names that only extras ask for."""
    try:
        lines = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        lines = []
    return requirements_in(lines)


def requirements_in(lines: list[str]) -> tuple[dict[str, str], frozenset[str]]:
    """As `_requirements`, of lines such as 'torch>=2.1; extra == "torch"'. Those for other systems are left
    out."""
    least, extras = {}, set()
    for line in lines:
        found = _REQUIREMENT.match(line)
        if found is None or "python_version" in (found[3] or ""):
            continue
        if "extra" in (found[3] or ""):
            if found[1] in least:
                continue
            extras.add(found[1])
        else:
            extras.discard(found[1])
        least[found[1]] = found[2]
    return least, frozenset(extras)


def judge(software: Software) -> list[Finding]:
    """Python and datahelix, what it needs, av, helixd."""
    return [_own(software), _packages(software), _av(software), _daemon(software.daemon)]


def _own(software: Software) -> Finding:
    python = ".".join(map(str, software.python))
    found = f"datahelix {__version__}, protocol {PROTOCOL}; Python {python}; Linux {software.release}"
    if software.python[:2] < _PYTHON:
        return problem("datahelix", found, "use Python 3.10 or newer")
    if software.distribution not in (None, __version__):
        return warning(
            "datahelix",
            f"{found}; but {software.distribution} is what is installed",
            f"one of them is on PYTHONPATH or in the working directory; {_HOW}, or take that out",
        )
    return ok("datahelix", found)


def _packages(software: Software) -> Finding:
    installed = software.installed
    missing = [n for n in software.least if n not in installed and n not in software.extras]
    old = [n for n, least in software.least.items() if n in installed and _below(installed[n], least)]
    found = ", ".join(f"{name} {installed[name]}" for name in (*_SHOWN, "torch") if name in installed)
    if "torch" not in installed:
        found += "; no torch"
    if missing:
        return problem("packages", f"not installed: {', '.join(missing)}; {found}", _HOW)
    if old:
        them = ", ".join(f"{n} {installed[n]} (needs {software.least[n]})" for n in sorted(old))
        grade = warning if set(old) <= software.extras else problem
        return grade("packages", f"too old: {them}", f"pip install -U {' '.join(sorted(old))}")
    if "torch" not in installed:
        return warning("packages", found, "pip install 'datahelix[torch]', to train with it here")
    return ok("packages", found)


def _below(version: str, least: str) -> bool:
    return _numbers(version) < _numbers(least)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", version, maxsplit=1)[0])]


def _av(software: Software) -> Finding:
    ran = software.av
    if ran.code == 0:
        version, _, ffmpeg = ran.out.strip().partition(" ")
        return ok("decoders", f"av {version} with FFmpeg {ffmpeg or 'of a version it does not say'}")
    return problem(
        "decoders",
        f"av {software.installed.get('av', '')} cannot be imported: {ran.complaint()}",
        "pip install --force-reinstall --only-binary av av",
    )


def _daemon(ran: Ran) -> Finding:
    name = "private daemon"
    if ran.code != 0:
        return problem(
            name,
            f"python -m helixd version does not run: {ran.complaint()}",
            f"run it yourself to see all that it says; {_HOW} mends an installation",
        )
    try:
        said = json.loads(ran.out)
        version, protocol = said["version"], said["protocol"]
    except (ValueError, KeyError, TypeError):
        return problem(name, f"python -m helixd version says {ran.out[:100]!r}", _HOW)
    if (version, protocol) != (__version__, PROTOCOL):
        return problem(
            name,
            f"helixd {version}, protocol {protocol}, beside libhelix {__version__}, protocol {PROTOCOL}",
            f"install one version for both: {_HOW}",
        )
    return ok(name, f"helixd {version} starts with {sys.executable}")
