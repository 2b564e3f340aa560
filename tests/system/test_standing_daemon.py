"""`helixd run`: several jobs, in turn and at once, and what helixctl says of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from libhelix.ctl import main as ctl
from libhelix.ctl.daemons import ask
from libhelix.errors import DaemonUnreachable
from libhelix.wire import channel
from tests.system.processes import ROOT, Trainer, eventually, of_job


@pytest.fixture
def standing() -> Iterator[Path]:
    """The socket of a standing daemon, where every user may come."""
    folder = Path(tempfile.mkdtemp(prefix="helix-test-"))
    folder.chmod(0o755)
    socket = folder / "helixd.sock"
    daemon = subprocess.Popen(
        [sys.executable, "-m", "helixd", "run", "--socket", str(socket)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    eventually("helixd listens", socket.exists)
    yield socket
    daemon.send_signal(signal.SIGTERM)
    _, stderr = daemon.communicate(timeout=10)
    assert daemon.returncode == 0, stderr
    assert not socket.exists()
    folder.rmdir()


def _batches(trainer: Trainer) -> int:
    events, _ = trainer.finish()
    return len([e for e in events if e["event"] == "batch"])


def test_jobs_are_served_at_once_and_in_turn(index: Path, job: str, standing: Path) -> None:
    env = {"HELIX_SOCKET": str(standing)}
    first = [Trainer(index, f"{job}-a", dp_rank=r, dp_size=2, samples=1, env=env) for r in range(2)]
    second = Trainer(index, f"{job}-b", env=env)
    assert [_batches(t) for t in (*first, second)] == [4, 4, 4]
    eventually("the jobs' processes end with them", lambda: not of_job(job), 2.0)
    assert _batches(Trainer(index, f"{job}-a", env=env)) == 4
    eventually("again", lambda: not of_job(job), 2.0)
    assert ask(str(standing))["jobs"] == []


def test_a_job_of_one_name_belongs_to_its_user(index: Path, job: str, standing: Path) -> None:
    trainer = Trainer(index, job, env={"HELIX_SOCKET": str(standing)}, step_by_step=True)
    trainer.event("batch")
    mine = ask(str(standing))
    assert [j["job"] for j in mine["jobs"]] == [job]
    if os.geteuid() == 0:
        script = (
            "import os; from libhelix.ctl.daemons import ask; os.setuid(65534); "
            f"print(ask({str(standing)!r})['jobs'])"
        )
        theirs = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30
        )
        assert theirs.stdout.strip() == "[]", theirs.stderr
    trainer.kill()


def test_a_trainer_goes_on_when_its_standing_daemon_is_restarted(
    index: Path, job: str, tmp_path: Path
) -> None:
    socket = tmp_path / "s.sock"

    def start() -> subprocess.Popen[bytes]:
        daemon = subprocess.Popen([sys.executable, "-m", "helixd", "run", "--socket", str(socket)], cwd=ROOT)
        eventually("helixd answers", lambda: _answers(socket))
        return daemon

    daemon = start()
    trainer = Trainer(index, job, epochs=2, env={"HELIX_SOCKET": str(socket)}, step_by_step=True)
    trainer.event("batch")
    daemon.kill()
    daemon.wait()
    daemon = start()
    for _ in range(8):
        trainer.go()
    assert _batches(trainer) == 7
    daemon.terminate()
    assert daemon.wait(timeout=10) == 0


def _answers(socket: Path) -> bool:
    try:
        ask(str(socket))
    except DaemonUnreachable:
        return False
    return True


def _ctl(*args: str) -> Result:
    return CliRunner().invoke(ctl.cli, args, standalone_mode=False, catch_exceptions=False)


def test_status_shows_jobs_ranks_rings_and_workers(
    index: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"HELIX_RESERVE": "0"}
    trainer = Trainer(index, job, epochs=None, step_by_step=True, env=env)
    for _ in range(3):
        trainer.event("batch")
        trainer.go()
    trainer.event("batch")
    found = json.loads(_ctl("status", "--json").output)
    (state,) = [j for daemon in found for j in daemon["jobs"] if j["job"] == job]
    assert state["trainers"] == [trainer.process.pid]
    assert [w["core"] for w in state["workers"]] == sorted(os.sched_getaffinity(0))
    assert state["cores"]["owned"] == sorted(os.sched_getaffinity(0))
    assert state["cores"]["reserved"] == []
    (loader,) = state["loaders"]
    (consumer,) = loader["consumers"]
    assert consumer["at"] == [0, 3, 0]
    assert consumer["samples_per_s"] > 0
    assert 0 < consumer["ring_bytes"]["leased"] <= consumer["ring_bytes"]["total"]
    (loop,) = [d["loop"] for d in found if state in d["jobs"]]
    assert 0 < loop["turns"] == sum(loop["by_wall"]) == sum(loop["by_cpu"])
    assert 0 < loop["longest_cpu_ms"] <= loop["longest_ms"] + 0.1, "two clocks, read one after the other"
    text = _ctl("status").output
    assert job in text
    assert "longest turn" in text
    assert "0/3/0" in text
    assert "epoch/step/micro" in text
    assert " decode" in text
    assert "…" not in text
    trainer.kill()


@pytest.mark.parametrize("named_by", ["--socket", "HELIX_SOCKET"])
def test_status_of_nothing_is_exit_code_3_and_names_where_its_socket_came_from(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    none = str(tmp_path / "none")
    args = ("--socket", none) if named_by == "--socket" else ()
    if not args:
        monkeypatch.setenv("HELIX_SOCKET", none)
        monkeypatch.setattr("libhelix.ctl.daemons.private_addresses", list)  # of other jobs on this machine
    with pytest.raises(DaemonUnreachable, match=f"no helixd at {none} ") as raised:
        _ctl("status", *args)
    cure = "leave out --socket" if args else "unset HELIX_SOCKET"
    assert str(raised.value).endswith(f"; start it with helixd run --socket {none}, or {cure}")
    assert ctl._exit_code(raised.value) == 3


def test_a_path_that_is_too_long_for_a_socket_is_told_so() -> None:
    with pytest.raises(DaemonUnreachable, match="AF_UNIX path too long"):
        ask("/tmp/" + "x" * 107)


def test_a_second_daemon_on_one_socket_is_refused(standing: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "helixd", "run", "--socket", str(standing)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert "another helixd serves it; stop it, or choose another --socket" in done.stderr


_CONTAINER = """
set -e
mount -t tmpfs -o size=64m tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir -p /run/helixd
touch /run/helixd/helixd.sock
mount --bind "$1" /run/helixd/helixd.sock
mount -t tmpfs tmpfs "$(dirname "$1")"
shift
exec "$@"
"""
"""Another mount, pid, ipc and network namespace, where one path leads to the daemon."""


@pytest.mark.skipif(os.geteuid() != 0, reason="making namespaces needs root")
def test_a_container_needs_the_socket_and_nothing_else(index: Path, job: str, standing: Path) -> None:
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--ipc", "--net"]
    inside = [*namespaces, "sh", "-c", _CONTAINER, "sh", str(standing)]
    big = {"frames": 16, "size": [720, 720]}  # 100 MB of ring, beside 64 MB of /dev/shm
    contained = Trainer(index, job, under=inside, recipe="Plain", parameters=big, env={"HELIX_SOCKET": ""})
    outside = Trainer(index, f"{job}-o", recipe="Plain", parameters=big, env={"HELIX_SOCKET": str(standing)})
    events, _ = contained.finish()
    others, _ = outside.finish()
    got, expected = (
        [(e["at"], e["checksum"]) for e in said if e["event"] == "batch"] for said in (events, others)
    )
    assert len(got) == 4
    assert got == expected
    eventually("the job's processes end with it", lambda: not of_job(job), 2.0)


def _sees_ends_across_namespaces() -> bool:
    """Whether this kernel gives a descriptor of a peer whose pid is not known here."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        os.close(ends[0].getsockopt(socket.SOL_SOCKET, channel._SO_PEERPIDFD))
    except OSError:
        return False
    finally:
        for end in ends:
            end.close()
    return True


@pytest.mark.skipif(os.geteuid() != 0, reason="making namespaces needs root")
@pytest.mark.skipif(not _sees_ends_across_namespaces(), reason="needs Linux 6.5")
def test_a_daemon_that_cannot_see_a_trainers_pid_sees_that_it_ended(
    index: Path, job: str, tmp_path: Path
) -> None:
    address = tmp_path / "s.sock"
    inside = ["unshare", "--pid", "--fork", "--kill-child=SIGTERM"]
    run = [sys.executable, "-m", "helixd", "run", "--socket", str(address)]
    daemon = subprocess.Popen([*inside, *run], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        eventually("helixd answers", lambda: _answers(address))
        env = {"HELIX_SOCKET": str(address)}
        trainer = Trainer(index, job, epochs=None, fork="in C", step_by_step=True, env=env)
        trainer.event("forked")
        pid = trainer.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert ask(str(address))["jobs"]
        trainer.process.send_signal(signal.SIGKILL)
        trainer.process.wait(10)
        try:
            eventually("its place is free", lambda: not ask(str(address))["jobs"], 1.0)
        finally:
            for child in children:  # the forked one holds the socket; the worker host may have ended
                with suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            trainer.process.communicate(timeout=10)
    finally:
        daemon.kill()
        _, stderr = daemon.communicate(timeout=10)
    assert "Traceback" not in stderr
