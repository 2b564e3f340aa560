"""What all connections of one user together may take of the daemon, so that there is enough for others."""

from __future__ import annotations

from typing import Literal

MAX_STRANGERS = 256
"""Connections that have said no hello yet."""
MAX_CONNECTIONS = 4096
"""Or, where fewer descriptors may be open, a quarter of these."""
MAX_QUEUED_BYTES = 64 << 20
"""What waits to be read by the user's processes."""
TOLD_A_MINUTE = 10
"""Records of connections that are cut off; more would push others' out of the journal."""


class User:
    """Counts what a user has."""

    def __init__(self, descriptors: int) -> None:
        self._most = min(MAX_CONNECTIONS, max(MAX_STRANGERS, descriptors // 4))
        self.connections = self.strangers = self.queued_bytes = 0
        self._told, self._told_since_s = 0, 0.0

    @property
    def full(self) -> bool:
        """Whether there is no room for another connection."""
        return self.strangers >= MAX_STRANGERS or self.connections >= self._most

    def has_room(self, nbytes: int) -> bool:
        """Whether so many bytes more may wait."""
        return self.queued_bytes + nbytes <= MAX_QUEUED_BYTES

    def told(self, now_s: float) -> Literal["all", "last", "none"]:
        """Whether a record of a connection that is cut off is written; "last": as the last of a minute."""
        if now_s >= self._told_since_s + 60:
            self._told, self._told_since_s = 0, now_s
        self._told += 1
        return "all" if self._told < TOLD_A_MINUTE else "last" if self._told == TOLD_A_MINUTE else "none"
