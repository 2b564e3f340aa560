"""What a standing daemon needs of its operator and of systemd: settings, quotas, and being told about."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from helixd import config, daemon
from helixd.errors import ConfigError
from helixd.quota import Quota
from helixd.runtime.notify import Notify

ROOT = Path(__file__).parents[2]


def _file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "helixd.toml"
    path.write_text(text)
    return str(path)


def test_a_flag_goes_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = _file(tmp_path, 'cores = "0"\nreserve = 3\nlog_level = "info"\n[quota]\njobs = 2\n')
    found = config.load(file=file, reserve="1", environ={"HELIX_LOG": "error"})
    assert (found.cores, found.reserve, found.log_level, found.quota) == (
        frozenset({0}), 1, "error", Quota(jobs=2)
    )  # fmt: skip
    origins = {name: setting["origin"] for name, setting in found.shown().items()}
    assert origins == {
        "socket": "default",
        "cores": f"{file}: cores",
        "reserve": "--reserve",
        "log_level": "HELIX_LOG",
        "metrics": "default",
        "quota.jobs": f"{file}: quota.jobs",
        "quota.ring_bytes": "default",
        "quota.job_ring_bytes": "default",
        "quota.job_cores": "default",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("core = 1", "core: no such setting; did you mean cores?"),
        ("[quota]\nrings = 1", "quota.rings: no such setting; did you mean quota.ring_bytes?"),
        ("[quota]\njobs = 0", "quota.jobs: 0 is no number of 1 or more"),
        ("quota = 3", r"quota is 3; write a table: \[quota\]"),
        ('log_level = "loud"', "log_level: 'loud' is no log level"),
        ("reserve = 1.5", "reserve: 1.5 is neither a text nor a number"),
        ("cores =", "is no TOML"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_its_file(text: str, said: str, tmp_path: Path) -> None:
    file = _file(tmp_path, text)
    with pytest.raises(ConfigError, match=said) as told:
        config.load(file=file, environ={})
    assert file in str(told.value)


def test_the_file_that_is_installed_says_the_defaults() -> None:
    found = config.load(file=str(ROOT / "systemd" / "helixd.toml"), environ={})
    assert {setting["origin"] for setting in found.shown().values()} == {"default"}
    uncommented = [
        line.removeprefix("# ")
        for line in (ROOT / "systemd" / "helixd.toml").read_text().splitlines()
        if line.startswith("# ") and " = " in line
    ]
    assert {line.split(" = ")[0] for line in uncommented} == {
        name.rpartition(".")[2] for name in found.shown()
    }


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"/nowhere\.toml: No such file"):
        config.load(file="/nowhere.toml", environ={})


def test_systemd_is_told_that_the_loop_is_alive_and_how_it_stands(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "4000000"}
        notify = Notify(environ)
        notify.say("READY=1")
        notify.alive(100.0, lambda: "1 job")
        assert notify.deadline() == 102.0
        notify.alive(100.5, lambda: "2 jobs")  # too soon for either
        notify.alive(102.0, lambda: "2 jobs")
        said = []
        while True:
            try:
                said.append(systemd.recv(1000).decode())
            except BlockingIOError:
                break
        assert said == ["READY=1", "WATCHDOG=1", "STATUS=1 job", "WATCHDOG=1", "STATUS=2 jobs"]
        notify.close()


@pytest.mark.parametrize(
    "environ", [{}, {"NOTIFY_SOCKET": "/nowhere/notify"}, {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "x"}]
)
def test_without_systemd_nothing_is_told(environ: dict[str, str]) -> None:
    notify = Notify(environ)
    notify.say("READY=1")
    notify.alive(1.0, lambda: "1 job")
    assert notify.deadline() is None
    notify.close()


def test_a_watchdog_of_another_process_is_not_fed() -> None:
    environ = {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
    notify = Notify(environ)
    assert notify.deadline() is None
    notify.close()


def test_only_one_socket_and_of_the_right_kind_is_taken_over() -> None:
    assert daemon.passed_socket({}) is None
    assert daemon.passed_socket({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) is None
    with pytest.raises(ConfigError, match="passes 2 sockets"):
        daemon.passed_socket({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"})
