"""Records of the daemon reach the journal with their fields, and stderr where the journal takes none."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from helixd.core.actions import About
from helixd.errors import place_of
from helixd.runtime.journal import MOST_BYTES, Journal


def _under_systemd() -> dict[str, str]:
    """What systemd would say of the stderr that we have."""
    status = os.fstat(2)
    return {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}


def _fields(datagram: bytes) -> dict[str, str]:
    """A record as the journal reads it."""
    found: dict[str, str] = {}
    while datagram:
        line, _, datagram = datagram.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            length = int.from_bytes(datagram[:8], "little")
            value, datagram = datagram[8 : 8 + length], datagram[8 + length :]
            assert datagram[:1] == b"\n"
            datagram = datagram[1:]
        found[name.decode()] = value.decode()
    return found


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "socket"))
        sock.setblocking(False)
        yield sock


@pytest.fixture
def journal(journald: socket.socket) -> Iterator[Journal]:
    made = Journal(_under_systemd(), journald.getsockname())
    yield made
    made.close()


def test_a_record_has_the_fields_of_what_it_is_about(journal: Journal, journald: socket.socket) -> None:
    journal.write("warning", "bad sample 7: café\udcff", About(1000, job="night", loader="train", sample=7))
    assert _fields(journald.recv(1 << 20)) == {
        "MESSAGE": "bad sample 7: café\\udcff",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "helixd",
        "HELIX_USER": "1000",
        "HELIX_JOB": "night",
        "HELIX_LOADER": "train",
        "HELIX_SAMPLE": "7",
    }


def test_a_name_with_lines_of_its_own_makes_no_fields(journal: Journal, journald: socket.socket) -> None:
    evil = "a\nPRIORITY=0\nHELIX_USER=0"
    journal.write("info", f"job {evil!r}", About(1000, job=evil))
    found = _fields(journald.recv(1 << 20))
    assert (found["HELIX_JOB"], found["PRIORITY"], found["HELIX_USER"]) == (evil, "6", "1000")


def test_a_mistake_of_ours_says_where_it_is(journal: Journal, journald: socket.socket) -> None:
    try:
        About(1, 2, "three", "four", 5, None, 7)  # type: ignore[call-arg]
    except TypeError as e:
        journal.write("error", "cut off after it:\nTraceback", About(code=place_of(e)))
    found = _fields(journald.recv(1 << 20))
    assert found["MESSAGE"] == "cut off after it:\nTraceback"
    assert found["CODE_FILE"] == __file__
    assert "About(1, 2" in Path(__file__).read_text().splitlines()[int(found["CODE_LINE"]) - 1]


def test_a_record_is_bounded(journal: Journal, journald: socket.socket) -> None:
    journal.write("error", "x" * 10_000_000, About(job="y" * 10_000_000, loader="z" * 10_000_000))
    assert len(_fields(journald.recv(1 << 20))["MESSAGE"]) == MOST_BYTES


def test_what_the_journal_does_not_take_goes_to_stderr_at_once(
    journal: Journal, journald: socket.socket, capfd: pytest.CaptureFixture[str]
) -> None:
    # capfd has put another stderr in place; the journal was chosen for the one before.
    for number in range(2_000):  # nobody reads
        journal.write("info", f"record {number}")
    taken = []
    while True:
        try:
            taken.append(_fields(journald.recv(1 << 20))["MESSAGE"])
        except BlockingIOError:
            break
    refused = [line.removeprefix("helixd: info: ") for line in capfd.readouterr().err.splitlines()]
    assert taken
    assert refused
    assert taken + refused == [f"record {n}" for n in range(2_000)]


def test_records_go_to_stderr_while_the_journal_is_restarted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "restarted")
    journal = Journal(_under_systemd(), path)
    journal.write("error", "nobody is there")
    assert capfd.readouterr().err == "helixd: error: nobody is there\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
        journald.bind(path)
        journal.write("error", "it is back")
        assert _fields(journald.recv(1 << 20))["MESSAGE"] == "it is back"
    assert not capfd.readouterr().err
    journal.close()


@pytest.mark.parametrize("stream", [None, "", "0:0", "nonsense"])
def test_a_stderr_that_is_not_the_journals_is_written_to(
    stream: str | None, journald: socket.socket, capfd: pytest.CaptureFixture[str]
) -> None:
    environ = {} if stream is None else {"JOURNAL_STREAM": stream}
    journal = Journal(environ, journald.getsockname())
    journal.write("warning", "as ever", About(1000, job="night"))
    assert capfd.readouterr().err == "helixd: warning: as ever\n"
    with pytest.raises(BlockingIOError):
        journald.recv(1)
