"""`python -m helixd.worker ADDRESS JOB`: a worker host, as trainers start it. ADDRESS is a path, or @name."""

from __future__ import annotations

import os
import sys


def _start(address: str, job: str) -> int:
    # The trainer waits for the process it started; the host itself is nobody's child.
    if os.fork():
        os._exit(0)
    os.setsid()
    from helixd.worker import host

    return host.main("\0" + address[1:] if address.startswith("@") else address, job)


if __name__ == "__main__":
    sys.exit(_start(sys.argv[1], sys.argv[2]))
