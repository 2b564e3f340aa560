"""A node that has no rank of a loader, and decodes for nodes that are late: it offers that to the leader.

offering --Engaged--> known, with how large batches are --Acquaint--> decodes for a late node, as any other

It ends no job: what fails here fails here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from helixd.core.follower import FIRST_BEAT_S, Follower
from helixd.core.team import BEAT_S, SILENT_S
from libhelix.wire import peer as p
from libhelix.wire.settings import Settings, differences

if TYPE_CHECKING:
    from helixd.core.stream import Failure


@dataclass(eq=False, kw_only=True)
class Helping(Follower):
    """`address`: where the leader, and nodes that are late, are to reach this one."""

    address: str
    helps: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.guests.ring = max(self.guests.ring, self.stream.settings.ring)

    def beat(self, now: float) -> None:
        """Offer it again."""
        if now < self.beat_at:
            return
        self.beat_at = now + (FIRST_BEAT_S if self.heard is None else BEAT_S)
        if self.stream.failure is not None:
            return
        of = self.stream.fingerprint
        self.say(self.leader.key, p.Offer(p.PEER_PROTOCOL, self.version, of, self.address, self.load()))

    def over(self, failure: Failure) -> None:
        """It is no matter to the loader."""

    def waits_for(self, now: float) -> str | None:
        """The leader."""
        where = self.leader.address
        if self.heard is None:
            return f"the leader, helixd of rank 0's node at {where}, has never answered; is that port open?"
        if now - self.heard > SILENT_S:
            return f"the leader at {where} was last heard {now - self.heard:.0f} s ago"
        return None

    def view(self) -> dict[str, Any]:
        """How many nodes it helps, and with how many samples so far."""
        guests = self.guests
        return {**super().view(), "helps": len(guests.hosts), "decoded": guests.delivered}

    def _leader_said(self, message: p.PeerMessage, now: float) -> None:
        if isinstance(message, p.Engaged):
            self._engaged(message)
        else:
            super()._leader_said(message, now)

    def _engaged(self, engaged: p.Engaged) -> None:
        stream, guests = self.stream, self.guests
        self.joined, self._misfit = True, None
        if engaged.settings is not None and not self._go_on_with(engaged.settings):
            return
        if engaged.schema and not stream.schema:
            stream.schema = stream.planner.schema = engaged.schema
        if engaged.max_bytes and guests.state == "gathering":
            guests.wanted = stream.sized(guests, engaged.max_bytes)  # the memory is taken now

    def _go_on_with(self, settings: Settings) -> bool:
        """Weights of data sets have changed, which is nothing to who decodes; all else makes a new loader."""
        stream = self.stream
        if differences(settings, replace(stream.settings, schedule=settings.schedule)):
            stream.fail("conflict", f"loader {stream.name!r} goes on with other settings")
            return False
        stream.settings = settings
        vars(stream).pop("fingerprint", None)  # gone where this came twice
        return True
