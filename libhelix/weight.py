"""A job's weight: what share its workers get of cores on which other jobs' workers run, too."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from libhelix.errors import UsageError

VARIABLE = "HELIX_WEIGHT"
HEAVIEST = 3.0
_PER_NICE = 1.25
"""A step of nice values is so much more CPU time, in the kernel's own table."""


def weight_of(environ: Mapping[str, str] = os.environ) -> float:
    """The weight in $HELIX_WEIGHT, 1 where none is said. Raises UsageError."""
    text = environ.get(VARIABLE, "1")
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 1.0 <= weight <= HEAVIEST:
        raise UsageError(
            f"{VARIABLE}={text!r} is no number from 1 to {HEAVIEST:.0f}: with 2 this job's workers get twice "
            "as much of the cores that it shares with other jobs"
        )
    return weight


def nicer_by(weight: float) -> int:
    """Steps of nice values that make up for a weight."""
    return round(math.log(weight, _PER_NICE))
