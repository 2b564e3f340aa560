"""The levers of co-scheduling. All are on; ablations switch them off to show what each is worth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """by_deadline    what is due first comes first; else consumers take turns, batch by batch
    split          long samples are cut at key frames
    by_piece       the pieces of a batch go to all workers; else a batch is decoded by one
    stage          what takes longer than the ring looks ahead is begun before its batch has its place
    """

    by_deadline: bool = True
    split: bool = True
    by_piece: bool = True
    stage: bool = True


PRODUCTION = Policy()
