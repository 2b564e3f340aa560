"""What is said of an item that was decoded completely."""

from __future__ import annotations

from typing import Literal

import msgspec

Grade = Literal["broken", "odd", "slow"]
AGAIN = "run helixctl index --rebuild"
"""Where the index lacks what is known of an item."""


class Finding(msgspec.Struct, frozen=True):
    """What is to be said of an item, with the cure."""

    grade: Grade
    text: str
