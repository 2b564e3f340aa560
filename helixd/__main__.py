"""`python -m helixd`: the command, or, as trainers start it, `python -m helixd embedded NAME`."""

from __future__ import annotations

import errno
import os
import socket
import sys


def _embedded(name: str) -> int:
    # Binding the abstract address is the election: of the daemons that the ranks of a job start at once, one
    # gets it, and the others leave before they have imported anything.
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        listener.bind("\0" + name)
        listener.listen(1024)
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            return 0
        raise
    from helixd import config
    from helixd.errors import ConfigError

    try:
        settings = config.load()
    except ConfigError as e:
        print(f"helixd: {e}", file=sys.stderr)
        return 2
    # The trainer waits for the process it started; the daemon itself is nobody's child.
    if os.fork():
        os._exit(0)
    os.setsid()
    from helixd import daemon

    return daemon.run_embedded(listener, settings)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "embedded":
        sys.exit(_embedded(sys.argv[2]))
    from helixd.cli import main

    main()
