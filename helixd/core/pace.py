"""How much of what recipes predict this node decodes in a second, and how much more it could."""

from __future__ import annotations

from dataclasses import dataclass

LATELY_S = 0.9
FADING = 0.99
"""What a task that has ended counts for, after each further one."""


@dataclass
class Pace:
    """Predicted CPU time to the time that it took, of the last hundred tasks or so."""

    _predicted_us: float = 0.0
    _took_us: float = 0.0
    _busy_s: float = 0.0
    """Of all workers, since `_since`."""
    _since: float = 0.0
    _spare: int = 0

    def add(self, predicted_us: int, took_s: float) -> None:
        """A task has ended."""
        self._predicted_us = self._predicted_us * FADING + predicted_us
        self._took_us = self._took_us * FADING + took_s * 1e6
        self._busy_s += took_s

    def spare(self, cores: int, now: float) -> int:
        """Thousandths of cores that had nothing to decode lately; what is not done yet counts when it is."""
        passed_s = now - self._since
        if passed_s >= LATELY_S:
            self._spare = max(0, int(1000 * (cores - self._busy_s / passed_s)))
            self._busy_s, self._since = 0.0, now
        return self._spare

    def capacity(self, cores: int) -> int:
        """Thousandths of a core's predicted time per second, on so many cores; 0: unknown."""
        if not self._took_us:
            return 0
        return max(1, int(1000 * cores * self._predicted_us / self._took_us))
