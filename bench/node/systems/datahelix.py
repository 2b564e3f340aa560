"""DataHelix with a standing daemon, whole or with one thing changed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.node.case import Case, Facts, Variant
from bench.node.daemon import Serve, Serving
from bench.node.emulate import Emulated
from bench.node.recipe import SLACK, Level, loaded
from bench.node.system import Fed, System
from bench.processes import NODE_MARK
from bench.side import Side
from helixd.core.policy import PRODUCTION, Policy
from libhelix.recipe import Recipe
from libhelix.recipes.rows import spec_of

_ALIGNMENT = 16_384
"""What the layout of a batch takes beside its samples, at most: fields and records are aligned."""


class Helix(System):
    """All levers, and a ring of as many batches as the others look ahead."""

    name = "datahelix"
    title = "DataHelix"
    policy: Policy = PRODUCTION
    regroup = True

    def variants(self, case: Case) -> list[Variant]:
        """Nothing is left to choose."""
        del case
        return [Variant("default")]

    def decode_processes(self, case: Case, variant: Variant) -> int:
        """A worker on every core."""
        del variant
        return case.decoders

    @contextmanager
    def node(self, case: Case, variant: Variant, scratch: Path, mark: str) -> Iterator[Facts]:
        """A daemon."""
        del variant
        path = str(scratch / "helixd.sock")
        emulated = case.emulated.cores if case.emulated else 0
        with Side("bench.node.daemon", {NODE_MARK: mark}) as side:
            told = Serve(
                socket=path, policy=self.policy, cores=case.cores, emulated=emulated, dilation=case.dilation
            )
            serving = side.ask(told, Serving)
            job = f"bench-{os.getpid()}-{secrets.token_hex(4)}"
            yield {"socket": path, "job": job, "cache": str(scratch), "daemon": str(serving.pid)}

    @contextmanager
    def batches(self, case: Case, variant: Variant, rank: int, facts: Facts) -> Iterator[Iterator[Fed]]:
        """A loader of this rank."""
        import libhelix as hx

        del variant
        os.environ["HELIX_SOCKET"] = facts["socket"]
        os.environ["HELIX_CACHE"] = facts["cache"]  # what was learned before is no help
        regroup = case.regroup if self.regroup else 1
        most = case.batch * (case.level_bytes + 128 * 8) + _ALIGNMENT
        loader = hx.Loader(
            case.index,
            recipe=Level(spec_of(self.recipe(case)), case.level_bytes),
            batching=hx.FixedBatch(case.batch, regroup=regroup, max_bytes=most),
            seed=case.seed,
            epochs=None,
            job=facts["job"],
            dp_rank=rank,
            dp_size=case.ranks,
            micro_batches=case.micro_batches,
            ring=case.lookahead,
            on_bad="raise",
        )
        with loader:
            yield (_fed(batch) for batch in loader)

    def recipe(self, case: Case) -> Recipe:
        """What decodes."""
        return loaded(case.recipe)


def _fed(batch: object) -> Fed:
    import libhelix as hx

    assert isinstance(batch, hx.Batch), "loaders give batches"
    tensors = {k: v for k, v in batch.items() if not k.startswith(SLACK)}
    tensors |= {k: v for k, v in batch.host.items() if not k.startswith(SLACK)}
    return Fed(tensors, batch.epoch, tuple(batch.ids))


class NoSplit(Helix):
    """Long samples stay whole."""

    name = "datahelix-no-split"
    title = "DataHelix without splitting"
    policy = Policy(split=False)


class NoDeadlines(Helix):
    """Ranks take turns."""

    name = "datahelix-no-deadlines"
    title = "DataHelix without deadlines"
    policy = Policy(by_deadline=False)


class NoRegroup(Helix):
    """Steps keep the samples that the order gives them, shared out among the ranks by cost."""

    name = "datahelix-no-regroup"
    title = "DataHelix without regrouping"
    regroup = False


class Oracle(Helix):
    """It knows before what decoding will cost."""

    name = "datahelix-oracle"
    title = "DataHelix, costs known"

    def recipe(self, case: Case) -> Recipe:
        """The emulated recipe that tells; a real one is as it is."""
        recipe = loaded(case.recipe)
        return msgspec.structs.replace(recipe, oracle=True) if isinstance(recipe, Emulated) else recipe
