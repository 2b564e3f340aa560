"""Settings of the daemon: flag > HELIX_* > default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from helixd.errors import ConfigError

SYSTEM_SOCKET = "/run/helixd/helixd.sock"
_ONLINE = Path("/sys/devices/system/cpu/online")
LogLevel = Literal["info", "warning", "error"]
LEVELS: tuple[LogLevel, ...] = ("info", "warning", "error")


@dataclass(frozen=True)
class Config:
    """`cores`: those that may decode, None for all that the ranks may use. `reserve`: how many of them per
    trainer process stay free, None where their number decides."""

    socket: str
    cores: frozenset[int] | None
    reserve: int | None
    log_level: LogLevel


def load(
    *,
    socket: str | None = None,
    cores: str | None = None,
    reserve: str | None = None,
    log_level: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """The settings. Raises ConfigError for one that cannot be."""
    cores_text, cores_from = _first((cores, "--cores"), (environ.get("HELIX_CORES"), "HELIX_CORES"))
    reserve_text, reserve_from = _first(
        (reserve, "--reserve"), (environ.get("HELIX_RESERVE"), "HELIX_RESERVE")
    )
    level, level_from = _first(
        (log_level, "--log-level"), (environ.get("HELIX_LOG"), "HELIX_LOG"), ("warning", "default")
    )
    path, _ = _first((socket, "--socket"), (environ.get("HELIX_SOCKET"), ""), (default_socket(environ), ""))
    found = [known for known in LEVELS if known == level]
    if not found:
        raise ConfigError(f"{level_from}: {level!r} is no log level; use one of {', '.join(LEVELS)}")
    return Config(
        socket=path,
        cores=_existing(parse_cores(cores_text, cores_from), cores_from) if cores_text else None,
        reserve=_parse_reserve(reserve_text, reserve_from) if reserve_text else None,
        log_level=found[0],
    )


def default_socket(environ: Mapping[str, str] = os.environ) -> str:
    """The system's socket for root, one of the user's own for others."""
    if os.geteuid() == 0:
        return SYSTEM_SOCKET
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/tmp/helix-{os.geteuid()}"
    return str(Path(runtime) / "helixd.sock")


def _first(*candidates: tuple[str | None, str]) -> tuple[str, str]:
    for value, origin in candidates:
        if value:
            return value, origin
    return "", ""


def parse_cores(text: str, origin: str) -> frozenset[int]:
    """Cores as in "0-3,8". Raises ConfigError that names where the text came from."""
    cores: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            begin, end = int(first), int(last if dash else first)
        except ValueError:
            raise ConfigError(f"{origin}: {text!r} is no list of cores; write it like 0-3,8") from None
        if not 0 <= begin <= end < 1 << 16:
            raise ConfigError(f"{origin}: {part.strip()!r} is no range of cores; write it like 0-3,8")
        cores.update(range(begin, end + 1))
    return frozenset(cores)


def _parse_reserve(text: str, origin: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 1 << 16:
        raise ConfigError(f"{origin}: {text!r} is no number of cores; write it like 1, or 0 for none")
    return int(text)


def _existing(cores: frozenset[int], origin: str) -> frozenset[int]:
    # Not this process's own affinity: the workers are the trainers', and the daemon may be pinned elsewhere.
    try:
        online = _ONLINE.read_text().strip()
    except OSError:
        online = f"0-{(os.cpu_count() or 1) - 1}"
    missing = cores - parse_cores(online, str(_ONLINE))
    if missing:
        raise ConfigError(f"{origin}: there is no core {min(missing)}; this machine has {online}")
    return cores
