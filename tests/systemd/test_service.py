"""`systemctl start helixd`: a job of another user through the system's daemon, and what happens to that."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.system.processes import ROOT, eventually
from tests.systemd.machine import PREFIX, USER, Machine, booted, why_not

UNITS = ROOT / "systemd"
MOST_EXPOSED = 1.5
"""By `systemd-analyze security`, of 10."""
_CLIPS = """
import sys
sys.path.insert(0, "/opt/datahelix/source")
from pathlib import Path
from tests.clips import make_clip
from libhelix.index.build import build
folder = Path("/tmp/trainer")
folder.mkdir()
for i in range(8):
    make_clip(folder / f"{i}.mp4", 30)
build([folder], folder / "i.arrow", jobs=1)
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with booted() as found:
        made = found.python("-c", _CLIPS, uid=USER)
        out, err = made.communicate(timeout=60)
        assert made.returncode == 0, out + err
        found.run("systemctl", "start", "helixd.socket")
        yield found


class Job:
    """A trainer of the other user, that goes on a step at a time."""

    def __init__(self, machine: Machine, name: str = "night", **options: object) -> None:
        told = {"index": "/tmp/trainer/i.arrow", "epochs": None, "step_by_step": True, "job": name, **options}
        self._machine, self._name = machine, name
        self._process = machine.python("-m", "tests.system.trainer", json.dumps(told), uid=USER)

    def batch(self) -> dict[str, object]:
        """The next one. Fails with what the trainer said where it ends."""
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        for line in self._process.stdout:
            said: dict[str, object] = json.loads(line)
            if said["event"] == "batch":
                self._process.stdin.write("\n")
                self._process.stdin.flush()
                return said
        raise AssertionError(self._process.communicate(timeout=10))

    def end(self) -> None:
        """It is killed; nsenter, our own child, is only its parent."""
        killing = self._machine.start("pkill", "-KILL", "-u", str(USER), "-f", f'"job": "{self._name}"')
        killing.communicate(timeout=10)
        self._process.communicate(timeout=10)


@pytest.fixture
def job(machine: Machine) -> Iterator[Job]:
    found = Job(machine)
    yield found
    found.end()


@pytest.fixture(scope="module")
def expected(machine: Machine) -> list[object]:
    """What a job gets whose daemon nothing happens to."""
    quiet = Job(machine, "quiet", backend="inline")
    found = [quiet.batch() for _ in range(12)]
    quiet.end()
    return [(b["at"], b["ids"], b["checksum"]) for b in found]


def _told(batches: list[dict[str, object]]) -> list[object]:
    return [(b["at"], b["ids"], b["checksum"]) for b in batches]


def test_a_job_of_another_user_starts_it_through_its_socket(machine: Machine, job: Job) -> None:
    assert machine.show("ActiveState") == "inactive"
    job.batch()
    assert machine.run("systemctl", "is-active", "helixd.service").strip() == "active"
    assert machine.run("ps", "-o", "user=", "-p", machine.show("MainPID")).strip() == "helixd"
    eventually("it says how it stands", lambda: "1 job, 1 trainer" in machine.show("StatusText"), 10)
    assert machine.run("helixd", "check").count("default") == 9


def test_after_a_kill_it_is_started_again_and_the_job_goes_on(
    machine: Machine, job: Job, expected: list[object]
) -> None:
    got = [job.batch() for _ in range(3)]
    before = machine.show("MainPID")
    began = time.monotonic()
    machine.run("kill", "-9", before)
    got += [job.batch() for _ in range(9)]
    assert time.monotonic() - began < 30
    assert machine.show("MainPID") != before
    assert machine.show("ActiveState") == "active"
    assert _told(got) == expected


def test_a_hung_loop_is_ended_by_the_watchdog_and_the_job_goes_on(
    machine: Machine, expected: list[object]
) -> None:
    machine.run("mkdir", "-p", "/run/systemd/system/helixd.service.d")
    machine.run(
        "sh", "-c", "printf '[Service]\nWatchdogSec=1\n' > /run/systemd/system/helixd.service.d/soon.conf"
    )
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "helixd.service")
    job = Job(machine)
    got = [job.batch() for _ in range(3)]
    before = machine.show("MainPID")
    machine.run("kill", "-STOP", before)
    got += [job.batch() for _ in range(9)]
    job.end()
    assert machine.show("MainPID") != before
    assert _told(got) == expected


def test_settings_are_read_again_and_shown_with_their_origin(machine: Machine, job: Job) -> None:
    job.batch()
    before = machine.show("MainPID")
    machine.run("sh", "-c", "printf '[quota]\njobs = 1\n' > /etc/helix/helixd.toml")
    machine.run("systemctl", "reload", "helixd.service")

    def quota() -> object:
        said = machine.python("-m", "libhelix.ctl", "config", "--json").communicate(timeout=30)[0]
        return json.loads(said)["quota.jobs"]

    eventually(
        "it has them",
        lambda: quota() == {"value": 1, "origin": "/etc/helix/helixd.toml: quota.jobs"},
        20,
    )
    assert machine.show("MainPID") == before
    second = Job(machine, "second")
    with pytest.raises(AssertionError, match="QuotaExceeded: this user has 1 jobs"):
        second.batch()
    second.end()
    machine.run("sh", "-c", "printf 'cores = nonsense' > /etc/helix/helixd.toml")
    machine.run("systemctl", "reload", "helixd.service")
    job.batch()
    assert quota() == {"value": 1, "origin": "/etc/helix/helixd.toml: quota.jobs"}
    machine.run("helixd", "check", code=2)
    machine.run("sh", "-c", ": > /etc/helix/helixd.toml")
    machine.run("systemctl", "reload", "helixd.service")


def test_the_journal_can_be_asked_for_a_job(machine: Machine, job: Job) -> None:
    job.batch()
    machine.run("pkill", "-KILL", "-x", "helix-host")
    job.batch()

    def records() -> list[dict[str, str]]:
        said = machine.run("journalctl", "--quiet", "-o", "json", "-u", "helixd.service", "HELIX_JOB=night")
        return [json.loads(line) for line in said.splitlines()]

    eventually("its record is there", lambda: bool(records()), 10)
    record = records()[-1]
    assert record["MESSAGE"].startswith("job 'night': the worker host is gone")
    assert (record["PRIORITY"], record["HELIX_USER"]) == ("4", str(USER))
    assert (record["SYSLOG_IDENTIFIER"], record["_TRANSPORT"]) == ("helixd", "journal")


def test_the_socket_that_systemd_passed_is_shown(machine: Machine, job: Job) -> None:
    job.batch()
    machine.run("systemctl", "reload", "helixd.service")
    said = machine.python("-m", "libhelix.ctl", "config", "--json").communicate(timeout=30)[0]
    assert json.loads(said)["socket"] == {"value": "/run/helixd/helixd.sock", "origin": "systemd"}


def test_a_drained_service_keeps_its_job_while_its_socket_is_stopped_and_ends_with_it(
    machine: Machine,
) -> None:
    job = Job(machine)
    job.batch()
    before = machine.show("MainPID")
    asked = machine.python("-m", "libhelix.ctl", "drain")
    out, err = asked.communicate(timeout=30)
    assert (asked.returncode, "takes no new job" in out) == (0, True), out + err
    machine.run("systemctl", "stop", "helixd.socket")
    for _ in range(9):
        job.batch()
    assert machine.show("MainPID") == before
    job.end()
    eventually("it ends with its last job", lambda: machine.show("ActiveState") == "inactive", 10)
    assert machine.show("Result") == "success"
    machine.run("systemctl", "start", "helixd.socket")


def test_it_stops_within_seconds_and_leaves_nothing(machine: Machine) -> None:
    job = Job(machine)
    job.batch()
    began = time.monotonic()
    machine.run("systemctl", "stop", "helixd.socket", "helixd.service")
    assert time.monotonic() - began < 5
    assert machine.show("Result") == "success"
    job.end()

    def left() -> str:
        return subprocess.run(
            ["nsenter", "-t", str(machine.pid), "-m", "-p", "-r", "-w", "ps", "-eo", "args"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    eventually("no process is left", lambda: "helixd" not in left(), 5)
    assert not machine.run("find", "/dev/shm", "-name", "helix*")
    machine.run("test", "-e", "/run/helixd/helixd.sock", code=1)


def test_the_units_have_no_mistake_and_little_exposure(machine: Machine) -> None:
    for unit in ("helixd.service", "helixd.socket"):
        assert not machine.run("systemd-analyze", "verify", unit)
    machine.run(
        "systemd-analyze", "security", "--no-pager", f"--threshold={int(MOST_EXPOSED * 10)}", "helixd.service"
    )
    assert PREFIX in machine.show("ExecStart")
