"""Which cores a job decodes on: those that its ranks, its host, its limit and the operator leave it.

Of the cores where ranks may run and the host may too, `reserve` per trainer process stay free for launching
kernels. The rest decode, as far as the operator allows them and as many as the cgroup's CPU limit pays for;
trainers are paid for first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

CORES_PER_TRAINER_TO_RESERVE = 4
"""With so many cores per trainer process, one is reserved by default: at most a quarter of all is."""


@dataclass(frozen=True)
class Share:
    """`owned` cores decode, `reserved` ones stay free. `outside`: the operator allows none of the job's."""

    owned: frozenset[int] = frozenset()
    reserved: frozenset[int] = frozenset()
    outside: bool = False


def share(
    trainers: Collection[frozenset[int]],
    *,
    host: frozenset[int] | None = None,
    limit_millis: int | None = None,
    allowed: frozenset[int] | None = None,
    reserve: int | None = None,
    most: int | None = None,
) -> Share:
    """A job's share, at least one core of those that there are; a function of the sets, not of their order.

    `trainers`: the affinity of each; `host`: the cores of its cpuset, None while unknown; `limit_millis`: of
    its CPU limit, in thousandths of a core; `reserve`: per trainer process, None for the default; `most`:
    cores that may decode for one job.
    """
    ranks = sorted(trainers, key=sorted)
    seen: frozenset[int] = frozenset().union(*ranks)
    here = (seen & host or host) if host else seen
    if not here:
        return Share()
    decoding = here if allowed is None else here & allowed
    outside = not decoding
    decoding = decoding or here
    paid = len(here) if limit_millis is None else min(len(here), max(1, -(-limit_millis // 1000)))
    if reserve is None:
        reserve = int(paid >= CORES_PER_TRAINER_TO_RESERVE * len(ranks))
    reserved = _reserved([rank & here for rank in ranks], decoding, min(reserve * len(ranks), paid - 1))
    rest = [core for core in _in_turn(ranks, here) if core in decoding and core not in reserved]
    owned = paid - len(reserved) if most is None else min(most, paid - len(reserved))
    return Share(frozenset(rest[:owned]), reserved, outside)


def _reserved(ranks: list[frozenset[int]], decoding: frozenset[int], most: int) -> frozenset[int]:
    """Up to `most` cores, one rank's after the other's: its lowest, those first that do not decode anyway.

    One core that decodes remains.
    """
    chosen: set[int] = set()
    took = True
    while took:
        took = False
        for rank in ranks:
            left = sorted(rank - chosen, key=lambda core: (core in decoding, core))
            if not left or len(chosen) >= most or decoding - chosen == {left[0]}:
                continue
            chosen.add(left[0])
            took = True
    return frozenset(chosen)


def _in_turn(ranks: list[frozenset[int]], here: frozenset[int]) -> Iterator[int]:
    """The cores `here`, each rank's lowest in turn, so that any number of the first lies near all ranks."""
    given: set[int] = set()
    queues = [sorted(rank & here) for rank in dict.fromkeys(ranks)] or [[]]
    queues.append(sorted(here.difference(*ranks)))
    for turn in range(max(map(len, queues))):
        for queue in queues:
            if turn < len(queue) and queue[turn] not in given:
                given.add(queue[turn])
                yield queue[turn]
