"""Who touches what: no torch in our processes, no media in helixd, and no peer that can block another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import libhelix as hx
from libhelix.wire import channel
from tests.system.processes import Trainer, eventually, maps, of_job
from tests.system.recipes import Plain

NONE_RESERVED = {"HELIX_RESERVE": "0"}


def _open_files(pid: int) -> list[str]:
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:  # the one that listed the others
            continue
    return found


def test_no_daemon_host_or_worker_of_a_built_in_recipe_has_torch_loaded(index: Path, job: str) -> None:
    trainer = Trainer(index, job, epochs=None, step_by_step=True, env=NONE_RESERVED)
    trainer.event("batch")
    pids = of_job(job)
    assert len(pids) == 2 + len(os.sched_getaffinity(0))
    for pid in pids:
        assert "torch" not in maps(pid)
    assert "torch" in maps(trainer.process.pid)
    trainer.kill()


def test_helixd_opens_no_index_and_no_media_and_maps_no_arena(index: Path, clips: Path, job: str) -> None:
    trainer = Trainer(index, job, epochs=None, step_by_step=True)
    trainer.event("batch")
    (daemon,) = of_job(job, "helixd")
    assert "libav" not in maps(daemon)
    assert "pyarrow" not in maps(daemon)
    assert "helix-" not in maps(daemon)
    for path in _open_files(daemon):
        assert not path.startswith((str(clips), str(index)))
    (worker, *_) = of_job(job, "w")
    assert str(index) in maps(worker)  # so that the test can see what it looks for
    trainer.kill()


def test_a_stopped_trainer_blocks_nobody_else(index: Path, job: str) -> None:
    options: dict[str, Any] = {"dp_size": 2, "samples": 1, "epochs": 50}
    stopped = Trainer(index, job, dp_rank=0, **options, step_by_step=True)
    stopped.event("batch")
    stopped.process.send_signal(signal.SIGSTOP)
    events, _ = Trainer(index, job, dp_rank=1, **options).finish()
    assert len([e for e in events if e["event"] == "batch"]) == 200
    stopped.kill()


def test_workers_are_pinned_and_give_way(index: Path, job: str) -> None:
    real_time = ["chrt", "-f", "1"] if os.geteuid() == 0 else []  # as some trainers are
    trainer = Trainer(index, job, epochs=None, step_by_step=True, under=real_time, env=NONE_RESERVED)
    trainer.event("batch")
    cores = []
    for pid in of_job(job, "w"):
        (core,) = os.sched_getaffinity(pid)
        cores.append(core)
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
        assert os.sched_getscheduler(pid) == os.SCHED_OTHER
    assert sorted(cores) == sorted(os.sched_getaffinity(trainer.process.pid))
    trainer.kill()


def test_workers_stay_on_the_cores_that_the_ranks_may_use(index: Path, job: str) -> None:
    core = min(os.sched_getaffinity(0))
    trainer = Trainer(index, job, epochs=None, step_by_step=True, under=["taskset", "-c", str(core)])
    trainer.event("batch")
    assert [os.sched_getaffinity(pid) for pid in of_job(job, "w")] == [{core}]
    trainer.kill()


def test_garbage_on_the_socket_is_cut_off_and_nobody_else_notices(index: Path, job: str) -> None:
    trainer = Trainer(index, job, epochs=2, step_by_step=True)
    trainer.event("batch")
    address = f"\0helix/{os.geteuid()}/{job}"
    for garbage in (b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\x90", b"\x97" + b"\xc0" * 7):
        with channel.new_socket() as sock:
            sock.connect(address)
            sock.send(garbage)
            sock.settimeout(5)
            assert sock.recv(100) == b""
    idle = [channel.new_socket() for _ in range(20)]
    for sock in idle:
        sock.connect(address)
    for _ in range(8):
        trainer.go()
    events, _ = trainer.finish()
    assert len([e for e in events if e["event"] == "batch"]) == 7
    for sock in idle:
        sock.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="taking another user's place needs root")
def test_an_address_of_another_user_is_refused(index: Path, job: str) -> None:
    script = (
        "import os, socket, sys, time; os.setuid(65534); "
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
        f"s.bind('\\0helix/0/{job}'); s.listen(); print('bound', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", script], stdout=subprocess.PIPE, text=True, cwd="/"
    ) as squatter:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "bound\n"
        _, stderr = Trainer(index, job).finish(1)
        squatter.kill()
    assert "belongs to user 65534, not to this one; choose another job= name" in stderr


def test_one_socket_per_process_serves_all_its_loaders(index: Path, job: str) -> None:
    def sockets() -> int:
        table = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        seqpacket = {f"socket:[{row[6]}]" for row in table if row[4] == "0005"}
        return sum(path in seqpacket for path in _open_files(os.getpid()))

    before = sockets()
    with (
        hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2)) as train,
        hx.Loader(index, recipe=Plain(), batching=hx.FixedBatch(2), name="eval") as test,
    ):
        first = (next(iter(train)), next(iter(test)))
        assert sockets() == before + 1
        del first
    eventually("the socket is closed", lambda: sockets() == before)
