"""The command helixd: what it refuses, with which exit code, and what it says."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from helixd import cli, config, daemon
from helixd.errors import ConfigError
from libhelix.errors import HelixError


def _run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """Exit code and all output."""
    monkeypatch.setattr("sys.argv", ["helixd", *args])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code, "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--cores", "abc"], "--cores: 'abc' is no list of cores; write it like 0-3,8"),
        (["--cores", "3-1"], "--cores: '3-1' is no range of cores"),
        (["--cores", "65000"], "--cores: there is no core 65000; this machine has 0-"),
        (["--reserve", "-1"], "--reserve: '-1' is no number of cores; write it like 1, or 0 for none"),
        (["--log-level", "debug"], "--log-level: 'debug' is no log level; use one of info, warning, error"),
        (["--socket", "/nodir/s.sock"], "/nodir/s.sock: there is no directory /nodir; create it"),
        (["--frobnicate"], "No such option"),
    ],
)
def test_a_wrong_flag_is_wrong_usage(
    args: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = _run(monkeypatch, capsys, "run", *args)
    assert (code, said in text) == (2, True), text
    assert not Path("/nodir").exists()


def test_the_version_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = _run(monkeypatch, capsys, "--version")
    assert (code, text.startswith("helixd, version ")) == (0, True)


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="HELIX_CORES: there is no core 65000"):
        config.load(environ={"HELIX_CORES": "0,65000"})
    with pytest.raises(ConfigError, match="HELIX_RESERVE: 'one' is no number of cores"):
        config.load(environ={"HELIX_RESERVE": "one"})


def test_a_flag_goes_before_the_environment_and_that_before_the_default() -> None:
    environ = {"HELIX_RESERVE": "2"}
    assert config.load(environ={}).reserve is None
    assert config.load(environ=environ).reserve == 2
    assert config.load(environ=environ, reserve="0").reserve == 0


def test_a_file_at_the_path_of_the_socket_is_kept_and_told(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ConfigError, match="mine: exists and is no socket; remove it"):
        daemon.listen(tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_path_that_is_too_long_for_a_socket_is_told_the_limit(tmp_path: Path) -> None:
    longest = tmp_path / ("x" * (107 - len(os.fsencode(tmp_path)) - 1))
    daemon.listen(longest).close()
    with pytest.raises(ConfigError, match="xy: has 108 bytes, and a socket's path at most 107"):
        daemon.listen(Path(f"{longest}y"))


def test_the_socket_of_another_program_is_kept(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as theirs:
        theirs.bind(str(tmp_path / "s"))
        theirs.listen()
        with pytest.raises(HelixError, match="another helixd serves it"):
            daemon.listen(tmp_path / "s")
    assert (tmp_path / "s").is_socket()


def test_the_directory_of_the_default_socket_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tmp_path / "helix" / "helixd.sock"
    monkeypatch.setattr(daemon, "default_socket", lambda: str(ours))
    daemon.listen(ours).close()
    assert ours.is_socket()
