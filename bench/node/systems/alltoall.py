"""A rank-local DataLoader, and samples that change ranks once they are decoded, as in MindSpeed-MM.

Taken from there: ranks tell each other what their samples cost, all compute the same assignment (greedy,
dearest first, as many samples for every rank as before), and values travel by all-to-all. Here over gloo, as
batches are in host memory; there over the accelerators' network.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from bench.node import plans
from bench.node.case import Case, Facts, Variant
from bench.node.system import Fed
from bench.node.systems.dataloader import RankLocal, joined
from bench.torch_loader import TOKENS

_LIMIT = timedelta(seconds=600)
"""For a rank that waits for another; the parent ends the run before."""
_BUFFERS = 3
"""The held batch, the one that is ready and the one that arrives may each lie in one: ragged fields do."""

Place = tuple[int, int]
"""A sample before the exchange: its rank, and its place in that rank's batch."""


def level(costs: Sequence[Sequence[float]], loads: Sequence[float]) -> list[list[Place]]:
    """Which samples every rank has after the exchange, as many as before.

    costs[r][i] are those of the samples that rank r decoded; `loads` are what ranks have already. The dearest
    sample first, each to the rank with the least load that has room; of several, to the one it is at.
    """
    room = [len(own) for own in costs]
    at = list(loads)
    found: list[list[Place]] = [[] for _ in costs]
    # Of equal ones the first of every rank come first, so that they can stay.
    dearest = sorted((-cost, i, rank) for rank, own in enumerate(costs) for i, cost in enumerate(own))
    for cost, i, home in dearest:
        to = min((r for r in range(len(room)) if room[r]), key=lambda r: (at[r], r != home, r))
        found[to].append((home, i))
        at[to] -= cost
        room[to] -= 1
    return found


class AllToAll(RankLocal):
    """The exchange happens when the rank asks, or one batch before, beside its computing. Costs are what the
    accelerator takes for a sample: decoding is paid for when samples change ranks."""

    name = "alltoall"
    title = "DataLoader, levelled by all-to-all"
    overtakes = False
    """All ranks exchange the batches of one step."""

    def variants(self, case: Case) -> list[Variant]:
        """The DataLoader's splits; the exchange when asked, or before, as one batch of the look-ahead."""
        found = []
        for ahead in (0, 1) if case.lookahead > 2 else (0,):
            shorter = msgspec.structs.replace(case, lookahead=case.lookahead - ahead)
            for one in super().variants(shorter):
                if one.options["sharing"] == "file_descriptor":
                    when = "one ahead" if ahead else "when asked"
                    found.append(Variant(f"{one.name}, {when}", {**one.options, "ahead": ahead}))
        return found

    def node(self, case: Case, variant: Variant, scratch: Path, mark: str) -> AbstractContextManager[Facts]:
        """A file in which ranks find each other."""
        del case, variant, mark
        return nullcontext({"store": str(scratch / "gloo")})

    @contextmanager
    def batches(self, case: Case, variant: Variant, rank: int, facts: Facts) -> Iterator[Iterator[Fed]]:
        """A DataLoader of batches, and the exchange."""
        order = plans.slices(case, rank)
        with (
            _group(facts["store"], rank, case.ranks),
            self.loader(case, variant, plans.slices(case, rank)) as decoded,
        ):
            exchange = Exchange(case, rank)

            def fed() -> Fed:
                return exchange(next(decoded), next(order))

            if variant.options["ahead"]:
                with _ahead(fed) as batches:
                    yield batches
            else:
                yield (fed() for _ in itertools.count())


@contextmanager
def _ahead(make: Callable[[], Fed]) -> Iterator[Iterator[Fed]]:
    """Batches, of which the next is always being made in a thread."""

    with ThreadPoolExecutor(1, "exchange") as pool:
        work = [pool.submit(make)]

        def batches() -> Iterator[Fed]:
            while True:
                fed = work.pop().result()
                work.append(pool.submit(make))
                yield fed

        yield batches()
        # All ranks took as many batches, so that every one has this exchange outstanding.
        work[0].result()


@contextmanager
def _group(store: str, rank: int, ranks: int) -> Iterator[None]:
    """torch's process group of all ranks."""
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # host names may not resolve
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=_LIMIT
    )
    try:
        yield
        dist.barrier()  # nobody leaves while another still reads from it
    finally:
        dist.destroy_process_group()


class Exchange:
    """The exchange of a rank; all ranks make as many. Loads of a step add up over its micro-batches."""

    def __init__(self, case: Case, rank: int) -> None:
        import torch

        self._case, self._rank = case, rank
        self._count = 0
        self._loads = [0.0] * case.ranks
        self._sent = torch.empty(0, dtype=torch.uint8)
        self._received = [self._sent] * _BUFFERS

    def __call__(self, batch: dict[str, Any], visits: plans.Batch) -> Fed:
        """The batch of this rank after the exchange."""
        from bench.node.flat import packed_bytes, split, unpack

        samples = split(batch, len(visits))
        told = self._tell(
            [
                (visit.sample, int(sample[TOKENS]), packed_bytes(sample))
                for visit, sample in zip(visits, samples, strict=True)
            ]
        )
        owners = self._assign([[row[1] for row in rows] for rows in told])
        mine = owners[self._rank]
        pieces = self._move(samples, told, owners)
        tensors = joined([samples[i] if home == self._rank else unpack(pieces[home, i]) for home, i in mine])
        return Fed(tensors, visits[0].epoch, tuple(told[home][i][0] for home, i in mine))

    def _tell(self, rows: list[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
        """(sample, tokens, bytes) of every rank's samples."""
        import torch
        import torch.distributed as dist

        own = torch.tensor(rows, dtype=torch.int64)
        found = [torch.empty_like(own) for _ in range(self._case.ranks)]
        dist.all_gather(found, own)
        return [[(row[0], row[1], row[2]) for row in one.tolist()] for one in found]

    def _assign(self, tokens: list[list[int]]) -> list[list[Place]]:
        window, step = self._case.window, self._case.micro_batches
        if self._count % step == 0:
            self._loads = [0.0] * self._case.ranks
        self._count += 1
        costs = [[window.per_token_s * t + window.per_square_s * t * t for t in own] for own in tokens]
        owners = level(costs, self._loads)
        self._loads = [
            load + sum(costs[home][i] for home, i in own)
            for load, own in zip(self._loads, owners, strict=True)
        ]
        return owners

    def _move(
        self,
        samples: list[dict[str, Any]],
        told: list[list[tuple[int, int, int]]],
        owners: list[list[Place]],
    ) -> dict[Place, Any]:
        """The samples that come from other ranks, in one piece each; those that stay are not moved."""
        import torch.distributed as dist

        from bench.node.flat import pack

        ranks = range(self._case.ranks)
        leave = [
            [] if to == self._rank else [i for home, i in owners[to] if home == self._rank] for to in ranks
        ]
        come = [
            [] if home == self._rank else [i for h, i in owners[self._rank] if h == home] for home in ranks
        ]
        leaving = [sum(told[self._rank][i][2] for i in some) for some in leave]
        coming = [sum(told[home][i][2] for i in some) for home, some in enumerate(come)]
        self._sent = _grown(self._sent, sum(leaving))
        slot = self._count % _BUFFERS
        self._received[slot] = _grown(self._received[slot], sum(coming))
        at = 0
        for i in (i for some in leave for i in some):
            nbytes = told[self._rank][i][2]
            pack(samples[i], self._sent[at : at + nbytes])
            at += nbytes
        received = self._received[slot][: sum(coming)]
        dist.all_to_all_single(received, self._sent[:at], coming, leaving)
        found, at = {}, 0
        for home, some in enumerate(come):
            for i in some:
                nbytes = told[home][i][2]
                found[home, i] = received[at : at + nbytes]
                at += nbytes
        return found


def _grown(buffer: Any, nbytes: int) -> Any:
    """The buffer, or a larger one: fresh memory costs a page fault for every page."""
    return buffer if len(buffer) >= nbytes else buffer.new_empty(nbytes + nbytes // 4)
