"""How much of a node a user may have. Pure arithmetic; the machine asks before it gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quota:
    """Limits of each user; None: no limit. `job_ring_bytes`, `job_cores`: in the rings of one job, and cores
    that decode for it."""

    jobs: int | None = None
    ring_bytes: int | None = None
    job_ring_bytes: int | None = None
    job_cores: int | None = None

    def refuses_job(self, jobs: int) -> str | None:
        """Why a user who has so many jobs may have no further one; None where there is no reason."""
        if self.jobs is None or jobs < self.jobs:
            return None
        return (
            f"this user has {jobs} jobs on the node, and {self.jobs} are allowed; end one, or ask for a "
            "larger quota.jobs in /etc/helix/helixd.toml"
        )

    def refuses_ring(self, used: int, of_job: int, nbytes: int) -> str | None:
        """Why a user whose rings have `used` bytes, of which one job has `of_job`, may have no further one of
        `nbytes` for it."""
        for whose, has, name in (("user", used, "ring_bytes"), ("job", of_job, "job_ring_bytes")):
            most = getattr(self, name)
            if most is not None and has + nbytes > most:
                return (
                    f"a ring of {nbytes >> 20} MiB beside the {has >> 20} MiB of this {whose}'s other rings "
                    f"exceeds the {most >> 20} MiB allowed; set a smaller ring=, batch or max_bytes=, or ask "
                    f"for a larger quota.{name} in /etc/helix/helixd.toml"
                )
        return None
