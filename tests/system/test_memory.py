"""Too little shared memory is an error with a cure, or a memfd; never a SIGBUS, never the OOM killer."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.processes import Trainer, of_job

BIG = {"frames": 16, "size": [448, 448]}  # 19 MB a batch of two, 58 MB of ring


def _can_mount() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0


@pytest.mark.skipif(not _can_mount(), reason="mounting a small /dev/shm needs root and mount namespaces")
def test_a_small_dev_shm_is_no_obstacle(index: Path, job: str) -> None:
    small = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$@"', "sh"]
    events, _ = Trainer(index, job, under=small, recipe="Plain", parameters=BIG).finish()
    assert len([e for e in events if e["event"] == "batch"]) == 4


def _remove(folder: Path) -> None:
    # A process that has ended is in its cgroup until its parent, here init, has seen it.
    for _ in range(100):
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"processes are left in {folder}: {(folder / 'cgroup.procs').read_text()}")


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A memory cgroup of 400 MiB: enough for the processes, too little for a ring of 500 MB."""
    if os.geteuid() != 0:
        pytest.skip("making a memory cgroup needs root")
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        folder = root / f"helix-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(900 << 20))
        except OSError:
            folder.rmdir()
            continue
        yield folder
        _remove(folder)
        return
    pytest.skip("no memory cgroup can be made here")


def test_a_ring_beyond_the_memory_limit_is_refused_with_what_is_missing(
    index: Path, job: str, cgroup: Path
) -> None:
    inside = ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$@"', "sh"]
    huge = {"frames": 64, "size": [1024, 1024]}
    _, stderr = Trainer(index, job, under=inside, recipe="Plain", parameters=huge, ring=3).finish(1)
    assert "OutOfSharedMemory: the ring needs 1152 MiB and the memory limit of this cgroup leaves" in stderr
    assert "set a smaller ring=, batch or max_bytes=" in stderr
    events = (cgroup / "memory.oom_control", cgroup / "memory.events")
    for file in events:
        if file.exists():
            kills = [line for line in file.read_text().splitlines() if line.startswith("oom_kill ")]
            assert kills == ["oom_kill 0"]


def test_a_ring_within_the_memory_limit_is_served(index: Path, job: str, cgroup: Path) -> None:
    inside = ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$@"', "sh"]
    events, _ = Trainer(index, job, under=inside, recipe="Plain", parameters=BIG).finish()
    assert len([e for e in events if e["event"] == "batch"]) == 4


def test_another_daemon_finds_room_for_its_ring_beside_what_is_held_of_the_last(
    index: Path, job: str, cgroup: Path
) -> None:
    inside = ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$@"', "sh"]
    half = {"frames": 16, "size": [1152, 1152]}  # 127 MB a batch of two, 382 MB of ring
    trainer = Trainer(index, job, under=inside, recipe="Plain", parameters=half, step_by_step=True, epochs=4)
    killed = 0
    while killed < 3:
        trainer.event("batch")
        # Batches that were ready when it was killed are still given; the next daemon comes after them.
        if running := of_job(job, "helixd"):
            os.kill(running[0], signal.SIGKILL)
            killed += 1
        trainer.go()
    for _ in range(4):
        trainer.event("batch")
        trainer.go()
    trainer.kill()
