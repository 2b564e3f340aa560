"""The memory of rings, as helixd itself holds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from helixd.runtime.segments import Segments
from libhelix.wire import segment

NBYTES = 1 << 16
WITHOUT_ADDRESS_SPACE = """
import resource
from helixd.runtime.segments import Segments

segments = Segments()
assert segments.make(1, 1 << 30, memfd=True) is None
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), -1))
assert segments.reach(1) == "Cannot allocate memory"
assert segments.part(1, 0, 10) is None
segments.land(1, b"abc", [(0, 0, 3)])
assert segments.descriptor(1) is not None
"""


def test_what_lands_is_what_others_map_and_what_is_dropped_is_closed() -> None:
    segments = Segments()
    assert segments.make(1, NBYTES, memfd=True) is None
    descriptor = segments.descriptor(1)
    assert descriptor is not None
    segment.reserve(descriptor, NBYTES)
    assert segments.part(1, 0, 3) is None  # nobody has asked for it yet
    assert segments.reach(1) is None
    segments.land(1, b"abcdef", [(0, NBYTES - 2, 2), (2, 0, 4)])
    theirs = segment.attach(os.dup(descriptor), NBYTES)
    assert bytes(theirs[NBYTES - 2 : NBYTES]) + bytes(theirs[:4]) == b"abcdef"
    being_sent = segments.part(1, 0, 4)
    segments.drop(1)
    assert segments.descriptor(1) is None
    assert being_sent is not None
    assert being_sent.tobytes() == b"cdef"
    assert not Path(f"/proc/self/fd/{descriptor}").exists()
    segments.drop(1)
    assert segments.reach(1) is None


def test_where_there_is_no_address_space_the_cause_is_told_and_nothing_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ADDRESS_SPACE], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
