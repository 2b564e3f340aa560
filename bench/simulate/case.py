"""What is simulated: a case is a workload on machines, a system a set of levers."""

from __future__ import annotations

from typing import Literal

import msgspec

from helixd.core.policy import PRODUCTION, Policy
from libhelix.recipe import MAX_CUTS

WARM_UP_STEPS = 16
"""Not measured: windows and costs are learned, rings fill. A multiple of every `regroup`."""
REGROUP = 8
LOGNORMAL = "lognormal"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A workload, and the nodes that it runs on.

    cores       of a node, for decoding        ranks   of a node, one accelerator each
    lookahead   batches of a rank's ring       demand  decode seconds of a step / (cores x balanced window)
    samples     of a rank in a step            micro   micro-batches that they come in
    lengths     lognormal, with `sigma`, or a table of bench/plan/distributions.py
    decode_ms   of a sample of the mean length, whole
    cuts        places of a sample where it can be cut, at most; images have none
    noise       sigma of the factor between what a sample costs and what its recipe says
    storage_ms  every task waits for storage, and its worker with it
    skew        of as many sources as ranks, taken in turns, one costs three times as much to decode
    bursts      in two steps of eight samples cost three times as much to decode
    slow_node   the cores of the first node take so many times as long
    slow_nodes  so many nodes are as slow, the first among them, spread over all
    steps       that are measured, after those of the warm-up
    """

    cores: int = 16
    ranks: int = 8
    nodes: int = 1
    lookahead: int = 3
    demand: float = 0.8
    samples: int = 8
    micro: int = 1
    lengths: str = LOGNORMAL
    sigma: float = 1.0
    decode_ms: float = 100.0
    cuts: int = MAX_CUTS
    noise: float = 0.3
    storage_ms: float = 0.0
    skew: bool = False
    bursts: bool = False
    slow_node: float = 1.0
    slow_nodes: int = 1
    steps: int = 48
    seed: int = 0

    @property
    def all_ranks(self) -> int:
        """Ranks of all nodes."""
        return self.ranks * self.nodes

    def slowness(self, node: int) -> float:
        """How many times as long as on others decoding takes on a node."""
        slow = {i * self.nodes // self.slow_nodes for i in range(self.slow_nodes)}
        return self.slow_node if node in slow else 1.0

    @property
    def per_step(self) -> int:
        """Samples of a step."""
        return self.all_ranks * self.samples

    @property
    def last_step(self) -> int:
        """The first step that is not taken any more."""
        return WARM_UP_STEPS + self.steps


class System(msgspec.Struct, frozen=True, kw_only=True):
    """Levers.

    pooled   one daemon for all ranks and cores of a node; else each rank has its own and its share of cores
    plan     "slices" of the order as a distributed sampler gives them, samples shared out inside each "step"
             by cost, or over a "window" of steps
    oracle   recipes know what every sample costs
    ring     batches of it, whatever the case says
    linked   daemons of nodes speak to each other, with this placement; None: each plans the same for itself
    """

    name: str
    pooled: bool = True
    plan: str = "window"
    policy: Policy = PRODUCTION
    oracle: bool = False
    ring: int | None = None
    linked: Literal["static", "dynamic"] | None = None


_WHOLE = Policy(by_piece=False, split=False, by_deadline=False, stage=False)
_PIECES = Policy(split=False, by_deadline=False, stage=False)
_DUE = Policy(split=False, stage=False)
_SPLIT = Policy(stage=False)

RANK_LOCAL = System(name="rank-local", pooled=False, plan="slices", policy=_WHOLE)
FULL = System(name="datahelix")
LADDER = (
    RANK_LOCAL,
    System(name="rank-local-windows", pooled=False, policy=_WHOLE),
    System(name="pooled-batches", plan="slices", policy=_WHOLE),
    System(name="samples", plan="slices", policy=_PIECES),
    System(name="samples-balanced", plan="step", policy=_PIECES),
    System(name="deadlines", plan="step", policy=_DUE),
    System(name="split", plan="step", policy=_SPLIT),
    System(name="windows", policy=_SPLIT),
    FULL,
)
"""Each adds a lever to the last, but for the second."""
ASIDE = (
    System(name="oracle", oracle=True),
    System(name="no-split", policy=Policy(split=False)),
    System(name="no-deadlines", policy=Policy(by_deadline=False)),
    System(name="no-early-start", ring=1),
)
"""DataHelix with one thing changed."""
LINKED = (
    System(name="remote", linked="static"),
    System(name="placed", linked="dynamic"),
)
"""DataHelix on several nodes whose daemons work together: late samples are decoded elsewhere; and samples are
dealt out by load."""
SYSTEMS = {system.name: system for system in (*LADDER, *ASIDE, *LINKED)}
