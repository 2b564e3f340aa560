"""Workers of jobs that share a core get of it by the weights of their jobs."""

from __future__ import annotations

import os
import struct
import time

from helixd.worker.process import lower_priority, yield_to_other_sessions

BURN_S = 2.0


def _burn(core: int, weight: float, begin: int, out: int) -> int:
    """A process of a session of its own, as a job's worker is, that computes once told; its pid."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    yield_to_other_sessions(weight)
    lower_priority(core, weight)
    os.read(begin, 1)
    end = time.monotonic() + BURN_S
    while time.monotonic() < end:
        pass
    os.write(out, struct.pack("d", time.process_time()))
    os._exit(0)


def test_a_job_of_weight_3_gets_about_three_times_as_much() -> None:
    core = min(os.sched_getaffinity(0))
    begin, go = os.pipe()
    pipes = [os.pipe() for _ in range(2)]
    pids = [_burn(core, weight, begin, out) for weight, (_, out) in zip((3.0, 1.0), pipes)]
    time.sleep(0.1)
    os.write(go, b"xx")
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    heavy, light = (struct.unpack("d", os.read(end, 8))[0] for end, _ in pipes)
    for fd in (begin, go, *(fd for pair in pipes for fd in pair)):
        os.close(fd)
    assert 1.8 < heavy / light < 5
