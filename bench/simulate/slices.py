"""Which cases are run: a base point, and what is varied around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import msgspec

from bench.simulate.case import LOGNORMAL, Case

BASE = Case()
_ALWAYS = ("cores", "lookahead", "demand", "sigma", "micro")
_SHORT = {"cores": "c", "lookahead": "l", "demand": "d", "sigma": "s", "micro": "m"}
FACTORS: Mapping[str, Sequence[Any]] = {
    "cores": (8, 16, 32, 64),
    "lookahead": (2, 3, 4, 8, 16),
    "demand": (0.6, 0.8, 0.9, 1.0, 1.2),
    "sigma": (0.5, 1.0, 1.5),
    "micro": (1, 8),
    "samples": (4, 8, 16),
    "lengths": (LOGNORMAL, "segments", "thumos", "turns", "omni"),
    "decode_ms": (20.0, 50.0, 100.0),
    "noise": (0.0, 0.3, 0.6),
    "storage_ms": (0.0, 10.0),
    "skew": (False, True),
    "bursts": (False, True),
    "nodes": (1, 4),
}
"""What `--full` varies, one at a time."""
SEARCHED = (2, 3, 4, 8, 16)
"""Look-aheads among which the least is looked for that reaches the goal."""


def label(case: Case) -> str:
    """A case in short: c16_l3_d0.8_s1_m1, and what else is not as in the base."""
    parts = [f"{_SHORT[name]}{getattr(case, name):g}" for name in _ALWAYS]
    for name, default in msgspec.structs.asdict(BASE).items():
        value = getattr(case, name)
        if name in (*_ALWAYS, "steps", "seed") or value == default:
            continue
        if name == "lengths":
            parts[3] = value
        else:
            parts.append(name if value is True else f"{name}{value:g}")
    return "_".join(parts)


def crossed(base: Case, chosen: Mapping[str, Sequence[Any]]) -> Iterator[Case]:
    """Every combination of what was chosen."""
    for values in product(*chosen.values()):
        yield msgspec.structs.replace(base, **dict(zip(chosen, values)))


def short(base: Case) -> list[Case]:
    """The base point, and the factors that matter most."""
    changes: list[dict[str, Any]] = [{}, {"cores": 32}, {"demand": 0.9}, {"sigma": 1.5}, {"micro": 8}]
    return [msgspec.structs.replace(base, **change) for change in changes]


def searches(base: Case) -> list[Case]:
    """Those for which the least look-ahead is looked for."""
    changes: list[dict[str, Any]] = [{}, {"cores": 32}, {"micro": 8}]
    return [msgspec.structs.replace(base, **change) for change in changes]


def full(base: Case) -> list[Case]:
    """One factor at a time, the whole grid of cores and demand, and a node that is slower than others."""
    found = [case for name, values in FACTORS.items() for case in crossed(base, {name: values})]
    found += crossed(base, {name: FACTORS[name] for name in ("cores", "demand")})
    found.append(msgspec.structs.replace(base, nodes=4, slow_node=1.3))
    return list(dict.fromkeys(found))
