"""Settings of the daemon: flag > HELIX_* > configuration file > default."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from helixd.errors import ConfigError
from helixd.quota import Quota
from libhelix.cores import as_ranges

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SYSTEM_SOCKET = "/run/helixd/helixd.sock"
SYSTEM_CONFIG = "/etc/helix/helixd.toml"
_ONLINE = Path("/sys/devices/system/cpu/online")
LogLevel = Literal["info", "warning", "error"]
LEVELS: tuple[LogLevel, ...] = ("info", "warning", "error")
_QUOTAS = ("jobs", "ring_bytes", "job_ring_bytes", "job_cores")
_NAMES = ("socket", "cores", "reserve", "log_level", "metrics")
_DEFAULT = "default"


@dataclass(frozen=True)
class Config:
    """`cores`: those that may decode, None for all that the ranks may use. `reserve`: how many of them per
    trainer process stay free, None where their number decides. `origins`: where each setting comes from."""

    socket: str
    cores: frozenset[int] | None
    reserve: int | None
    log_level: LogLevel
    quota: Quota = Quota()  # noqa: RUF009  # frozen
    origins: Mapping[str, str] = field(default_factory=dict)

    def served_at(self, socket: str) -> Config:
        """The same, on a socket that systemd passed."""
        return replace(self, socket=socket, origins={**self.origins, "socket": "systemd"})

    def shown(self) -> dict[str, dict[str, Any]]:
        """Every setting as {"value", "origin"}, for people."""
        values: dict[str, Any] = {
            "socket": self.socket,
            "cores": as_ranges(self.cores) if self.cores is not None else "all that the ranks may use",
            "reserve": "1; 0 with fewer than 4 cores a rank" if self.reserve is None else self.reserve,
            "log_level": self.log_level,
            "metrics": self.metrics or "nowhere",
        }
        for name in _QUOTAS:
            limit = getattr(self.quota, name)
            values[f"quota.{name}"] = "no limit" if limit is None else limit
        return {n: {"value": v, "origin": self.origins.get(n, _DEFAULT)} for n, v in values.items()}

    metrics: str | None = None
    """Where monitoring may ask: HOST:PORT, or a path; None for nowhere."""


def load(
    *,
    socket: str | None = None,
    cores: str | None = None,
    reserve: str | None = None,
    log_level: str | None = None,
    file: str | None = None,
    metrics: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """The settings; `file` is the path of a configuration, which has to be there. Raises ConfigError for one
    that cannot be."""
    read = _read(file) if file is not None else {}
    origins: dict[str, str] = {}

    def first(name: str, flag: str | None, variable: str) -> str:
        found = (
            (flag, f"--{name.replace('_', '-')}"),
            (environ.get(variable), variable),
            (read.get(name), f"{file}: {name}"),
        )
        for value, origin in found:
            if value:
                origins[name] = origin
                return value
        return ""

    path = first("socket", socket, "HELIX_SOCKET") or default_socket(environ)
    cores_text, reserve_text = (
        first("cores", cores, "HELIX_CORES"),
        first("reserve", reserve, "HELIX_RESERVE"),
    )
    level = first("log_level", log_level, "HELIX_LOG") or "warning"
    found = [known for known in LEVELS if known == level]
    if not found:
        raise ConfigError(
            f"{origins['log_level']}: {level!r} is no log level; use one of {', '.join(LEVELS)}"
        )
    limits = {name: int(read[f"quota.{name}"]) for name in _QUOTAS if f"quota.{name}" in read}
    origins |= {f"quota.{name}": f"{file}: quota.{name}" for name in limits}
    return Config(
        socket=path,
        cores=_existing(parse_cores(cores_text, origins["cores"]), origins["cores"]) if cores_text else None,
        reserve=_parse_reserve(reserve_text, origins["reserve"]) if reserve_text else None,
        log_level=found[0],
        quota=Quota(**limits),
        origins=origins,
        metrics=first("metrics", metrics, "HELIX_METRICS") or None,
    )


def _read(path: str) -> dict[str, str]:
    """Settings of a file as text, those of [quota] as "quota.jobs" and so on. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            said = tomllib.load(file)
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror}; name a file with --config, or leave it out") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: is no TOML: {e}") from e
    quota = said.pop("quota", {})
    if not isinstance(quota, dict):
        raise ConfigError(f"{path}: quota is {quota!r}; write a table: [quota]")
    flat = said | {f"quota.{name}": value for name, value in quota.items()}
    known = (*_NAMES, *(f"quota.{name}" for name in _QUOTAS))
    for name, value in flat.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise ConfigError(f"{path}: {name}: no such setting; {hint}")
        if name.startswith("quota.") and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(f"{path}: {name}: {value!r} is no number of 1 or more")
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise ConfigError(f"{path}: {name}: {value!r} is neither a text nor a number")
    return {name: str(value) for name, value in flat.items()}


def default_socket(environ: Mapping[str, str] = os.environ) -> str:
    """The system's socket for root, one of the user's own for others."""
    if os.geteuid() == 0:
        return SYSTEM_SOCKET
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/tmp/helix-{os.geteuid()}"
    return str(Path(runtime) / "helixd.sock")


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
