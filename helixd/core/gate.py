"""Whether it pays to have a sample decoded by another node: what that takes, against waiting for it here.

    it comes after   bias * (latency + pace * work + (bytes on their way + its own) / goodput)
    it pays          where that, and a margin of it, is less than the time until it would be ready here

`work` is the decoding that is predicted here, of the sample and of those before it over the cores that the
other node has to spare. Latency, pace (the other node's time to that work) and goodput are measured with
every sample, and the bias is what samples took to the sum of these; the margin is the usual error of what was
predicted. A link that is not known, or was found too slow, is tried with one sample at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

WEIGHT = 0.3
"""Of the newest measurement."""
LEAST_MARGIN, FIRST_MARGIN, MOST_MARGIN = 0.1, 0.5, 2.0
TRY_AGAIN_S = 5.0
"""How long a link that seems too slow is left alone."""
LATENCY_S = 0.002
FADING = 0.95
"""What a sample counts for, after each further one."""
MOST_BIAS = 2.0
MOST_AT_ONCE = 4.0
"""One sample counts as no more than so many times what was predicted."""
SMALL_BYTES = 64 << 10
"""So much takes no time worth knowing on any link."""


@dataclass(eq=False)
class Gate:
    """Of the link to one node. Bytes per second; `goodput` is None while it is not known."""

    goodput: float | None = None
    latency_s: float = LATENCY_S
    margin: float = FIRST_MARGIN
    tried: float = float("-inf")
    """When a sample was last sent for."""
    _there_s: float = 1.0
    _work_s: float = 1.0
    _took_s: float = 1.0
    _expected_s: float = 1.0

    @property
    def pace(self) -> float:
        """The other node's time to the work that was predicted."""
        return self._there_s / self._work_s

    def takes_s(self, work_s: float, coming: int) -> float:
        """Until a sample is there that was sent for now, when all bytes that are to come are."""
        moving_s = coming / self.goodput if self.goodput is not None else 0.0
        return self.bias * (self.latency_s + self.pace * work_s + moving_s)

    @property
    def bias(self) -> float:
        """What samples took to what the sum of these is: parts overlap, and who seems quick is asked most."""
        return min(MOST_BIAS, max(1 / MOST_BIAS, self._took_s / self._expected_s))

    def passes(self, takes_s: float, here_s: float, nbytes: int, on_the_way: int, now: float) -> bool:
        """Whether a sample that would be ready here after `here_s` should be sent for."""
        known = self.goodput is not None or on_the_way + nbytes <= SMALL_BYTES
        if known and takes_s * (1 + self.margin) < here_s:
            return True
        if self.goodput is None:
            return not on_the_way and takes_s < here_s
        # What is known may be old. One sample does no harm: it is decoded here if it does not come.
        return not on_the_way and now >= self.tried + TRY_AGAIN_S and takes_s < 2 * here_s

    def came(
        self,
        predicted_s: float,
        expected_s: float,
        took_s: float,
        there_s: float,
        work_s: float,
        rate: float | None,
    ) -> None:
        """A sample came after `took_s`, `there_s` of it with the other node; its bytes came at `rate`."""
        self._erred(abs(took_s / max(predicted_s, 1e-6) - 1))
        # A stall says nothing of what comes after it, and nobody would be asked again to find out.
        usual_s = MOST_AT_ONCE * self.pace * work_s
        self._expected_s = FADING * self._expected_s + expected_s
        self._took_s = FADING * self._took_s + min(took_s, MOST_AT_ONCE * predicted_s)
        self._there_s = FADING * self._there_s + min(there_s, usual_s)
        self._work_s = FADING * self._work_s + work_s
        if rate is not None:
            self.goodput = rate if self.goodput is None else _mixed(self.goodput, rate)

    def answered(self, latency_s: float) -> None:
        """The first bytes came so much later than they were decoded, with nothing else on the way."""
        self.latency_s = _mixed(self.latency_s, max(0.0, latency_s))

    def failed(self, nbytes: int, waited_s: float) -> None:
        """A sample did not come in time: at best it would have been slower than that."""
        self._erred(MOST_MARGIN)
        if nbytes <= SMALL_BYTES:
            return
        rate = nbytes / max(waited_s, 1e-3)
        self.goodput = min(rate, self.goodput / 2) if self.goodput is not None else rate

    def _erred(self, error: float) -> None:
        self.margin = min(MOST_MARGIN, max(LEAST_MARGIN, _mixed(self.margin, error)))


def _mixed(old: float, new: float) -> float:
    return old + WEIGHT * (new - old)
