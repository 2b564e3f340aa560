"""How much of a node a user may have. Pure arithmetic; the machine asks before it gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quota:
    """Limits of each user; None: no limit. `job_cores`: that decode for one job."""

    jobs: int | None = None
    ring_bytes: int | None = None
    job_cores: int | None = None

    def refuses_job(self, jobs: int) -> str | None:
        """Why a user who has so many jobs may have no further one; None where there is no reason."""
        if self.jobs is None or jobs < self.jobs:
            return None
        return (
            f"this user has {jobs} jobs on the node, and {self.jobs} are allowed; end one, or ask for a "
            "larger quota.jobs in /etc/helix/helixd.toml"
        )

    def refuses_ring(self, used: int, nbytes: int) -> str | None:
        """Why a user whose rings have `used` bytes may have no further one of `nbytes`."""
        if self.ring_bytes is None or used + nbytes <= self.ring_bytes:
            return None
        return (
            f"a ring of {nbytes >> 20} MiB beside the {used >> 20} MiB of this user's other rings exceeds "
            f"the {self.ring_bytes >> 20} MiB allowed; set a smaller ring=, batch or max_bytes=, or ask for "
            "a larger quota.ring_bytes in /etc/helix/helixd.toml"
        )
