"""What is said of samples that `oversize="skip"` leaves out."""

from __future__ import annotations

from typing import NamedTuple

from libhelix.plan.opening import Opening
from libhelix.plan.planner import Window


class Skips(NamedTuple):
    """That a window skips samples, and the first of them."""

    text: str
    sample: int


def skips_of(opening: Opening, window: Window) -> Skips | None:
    """What to say of a window, once in an epoch: later ones are planned when their time comes."""
    if not window.skipped:
        return None
    first = opening.rows[window.skipped[0]].id
    text = (
        f'oversize="skip" leaves out samples of epoch {window.base.epoch} that no micro-batch can hold: '
        f"{len(window.skipped)} of the next {len(opening.taken)}, the first is sample {first}, and those of "
        "later windows; helixctl describe names all"
    )
    return Skips(text, first)
