"""The systems, each with one lever more than the one before."""

from __future__ import annotations

import msgspec

from helixd.core.policy import PRODUCTION, Policy

REGROUP = 8
"""Steps of a window."""


class System(msgspec.Struct, frozen=True, kw_only=True):
    """`policy`: of helixd; None: a DataLoader of each rank. `regroup`: steps of a window."""

    name: str
    title: str
    policy: Policy | None
    regroup: int = 1


LOCAL = System(name="local", title="rank-local DataLoader", policy=None)
POOLED = System(
    name="pooled",
    title="pool, whole batches",
    policy=Policy(by_deadline=False, split=False, by_piece=False),
)
SAMPLES = System(
    name="samples", title="+ sample tasks", policy=Policy(by_deadline=False, split=False, by_piece=True)
)
DEADLINE = System(
    name="deadline", title="+ deadline order", policy=Policy(by_deadline=True, split=False, by_piece=True)
)
SPLIT = System(name="split", title="+ splitting", policy=PRODUCTION)
FULL = System(name="full", title=f"+ regrouping {REGROUP} steps", policy=PRODUCTION, regroup=REGROUP)
SYSTEMS = (LOCAL, POOLED, SAMPLES, DEADLINE, SPLIT, FULL)
