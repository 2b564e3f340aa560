"""helixctl doctor judges made-up machines rightly, and looks at this one without an error."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from libhelix import client
from libhelix._version import __version__
from libhelix.ctl import doctor
from libhelix.ctl.checks import accelerator, daemons, memory, settings, software
from libhelix.ctl.checks.daemons import Answer, Daemons
from libhelix.ctl.checks.finding import Finding, Ran
from libhelix.ctl.checks.settings import Cache, Settings
from libhelix.ctl.checks.software import Software
from libhelix.errors import DaemonUnreachable, ProtocolError
from libhelix.wire import channel, codec
from libhelix.wire import messages as m
from tests.ctl.test_index_commands import run

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30


def named(found: list[Finding], name: str) -> Finding:
    """The one finding of that name."""
    (one,) = [f for f in found if f.name == name]
    assert bool(one.cure) == (one.grade != "ok"), "a cure where something is wrong, and only there"
    return one


# ---- the command -----------------------------------------------------------------------------------------


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of ours, no launcher, a cache of the test's own."""
    for name in list(os.environ):
        if name.startswith(("HELIX_", "SLURM_", "OMPI_", "PMI_", "MASTER_", "LOCAL_", "TORCHELASTIC")):
            monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("bare")
def test_this_machine_is_looked_at_and_can_train(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "doctor", "--json")
    found = json.loads(out)
    assert [f for f in found["findings"] if f["grade"] == "problem"] == []
    assert (code, err, found["problems"]) == (0, "", 0)
    names = [f["name"] for f in found["findings"]]
    for name in (
        "datahelix",
        "decoders",
        "private daemon",
        "daemon",
        "variables",
        "cache",
        "cores",
        "memory",
    ):
        assert name in names
    assert "accelerator" in names
    assert not Path(os.environ["HELIX_CACHE"]).exists(), "looking leaves nothing"


def test_a_problem_is_exit_code_1_and_a_warning_is_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(grade: Any) -> None:
        monkeypatch.setattr(
            doctor, "examine", lambda: iter([Finding("disk", grade, "full of holes", "knit it")])
        )

    told("warning")
    code, out, _ = run(capsys, "doctor")
    assert code == 0
    assert re.search(r"warning +disk +full of holes\s+-> knit it\s+0 problems, 1 warning, 1 looked at", out)
    told("problem")
    assert run(capsys, "doctor")[0] == 1
    told("problem")
    code, out, _ = run(capsys, "doctor", "--json")
    assert (code, json.loads(out)) == (
        1,
        {
            "findings": [{"name": "disk", "grade": "problem", "found": "full of holes", "cure": "knit it"}],
            "problems": 1,
            "warnings": 0,
        },
    )


def test_a_check_that_cannot_be_made_is_a_finding_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> Any:
        raise FileNotFoundError(2, "No such file or directory", "/proc/meminfo")

    for module in (software, daemons, settings, accelerator, memory):
        monkeypatch.setattr(module, "read", gone)
    found = list(doctor.examine())
    assert "/proc/meminfo" in named(found, "memory").found
    assert named(found, "memory").grade == "problem"
    assert named(found, "cores").grade in ("ok", "warning")


# ---- settings --------------------------------------------------------------------------------------------

FINE = Settings({}, Ran(0, "{}", ""), None, Cache("/c", "", GIB))


def test_a_variable_that_nothing_reads_is_named_with_one_that_is_like_it() -> None:
    odd = {"HELIX_CORE": "1", "HELIXD_SOCKET": "/s", "helix_cache": "/c", "HELIX_RUNTIME": "of an editor"}
    found = settings.judge(replace(FINE, variables={**odd, "HELIX_JOB": "a", "HELIX_FUZZ": "1"}))
    assert [(f.grade, f.found.split()[0], f.cure) for f in found[:-1]] == [
        ("warning", "HELIX_CORE", "did you mean HELIX_CORES?"),
        ("warning", "HELIXD_SOCKET", "did you mean HELIX_SOCKET?"),
        ("warning", "helix_cache", "did you mean HELIX_CACHE?"),
        ("ok", "HELIX_RUNTIME", ""),
    ]
    known = settings.judge(replace(FINE, variables={"HELIX_JOB": "a", "HELIX_CORES": "0"}))
    assert named(known, "variables").found == "HELIX_JOB=a, HELIX_CORES=0"


def test_the_variables_that_doctor_knows_are_those_that_the_product_reads() -> None:
    read = set()
    for package in ("libhelix", "helixd"):
        for file in (ROOT / package).rglob("*.py"):
            if "checks" not in file.parts:
                read |= set(re.findall(r"\bHELIX_[A-Z_]+[A-Z]\b", file.read_text()))
    assert read == set(settings.KNOWN)


@pytest.mark.usefixtures("bare")
def test_a_setting_that_keeps_helixd_from_starting_is_a_problem_with_its_own_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HELIX_RESERVE", "some")
    one = named(settings.judge(settings.read()), "variables")
    assert one.grade == "problem"
    assert one.found.startswith("HELIX_RESERVE: 'some' is no number of cores")


def test_settings_of_a_private_daemon_beside_a_standing_one_are_told_to_do_nothing() -> None:
    one = named(
        settings.judge(replace(FINE, variables={"HELIX_CORES": "1"}, socket="/run/s.sock")), "variables"
    )
    assert (one.grade, "the standing daemon at /run/s.sock does not see that" in one.found) == (
        "warning",
        True,
    )


def test_a_cache_that_cannot_be_written_to_is_a_problem_and_a_full_one_a_warning(tmp_path: Path) -> None:
    assert settings.read_cache(tmp_path / "not" / "yet").error == ""
    assert list(tmp_path.iterdir()) == []
    file = tmp_path / "file"
    file.write_text("")
    wrong = settings.read_cache(file / "cache")
    assert wrong.error.endswith("Not a directory")
    one = named(settings.judge(replace(FINE, cache=wrong)), "cache")
    assert (one.grade, one.cure) == ("problem", "set HELIX_CACHE to a writable folder")
    assert named(settings.judge(replace(FINE, cache=Cache("/c", "", 1 << 20))), "cache").grade == "warning"


# ---- software --------------------------------------------------------------------------------------------

INSTALLED = Software(
    python=(3, 11, 7),
    distribution=__version__,
    installed={"numpy": "2.4.6", "msgspec": "0.23.0", "av": "18.1.0", "torch": "2.13.0+cpu"},
    least={"numpy": "1.24", "msgspec": "0.18", "av": "14", "torch": "2.1"},
    extras=frozenset({"torch"}),
    av=Ran(0, "18.1.0 8.1.2\n", ""),
    daemon=Ran(0, json.dumps({"version": __version__, "protocol": m.PROTOCOL}), ""),
    release="6.1",
)


def test_versions_are_told_and_those_that_are_missing_or_too_old_with_a_cure() -> None:
    found = software.judge(INSTALLED)
    assert {f.grade for f in found} == {"ok"}
    assert named(found, "datahelix").found.endswith("Python 3.11.7; Linux 6.1")
    assert "torch 2.13.0+cpu" in named(found, "packages").found
    assert named(found, "decoders").found == "av 18.1.0 with FFmpeg 8.1.2"

    def packages(**installed: str) -> Finding:
        return named(software.judge(replace(INSTALLED, installed=installed)), "packages")

    rest = {"msgspec": "0.23.0", "av": "18.1.0"}
    assert (packages(**rest).grade, packages(**rest).found[:20]) == ("problem", "not installed: numpy")
    old = packages(numpy="1.21.9rc1", torch="2.3", **rest)
    assert (old.grade, old.found) == ("problem", "too old: numpy 1.21.9rc1 (needs 1.24)")
    assert old.cure == "pip install -U numpy"
    assert packages(numpy="2", torch="2.0", **rest).grade == "warning"
    without = packages(numpy="2", **rest)
    assert (without.grade, without.found) == ("warning", "numpy 2, msgspec 0.23.0; no torch")


def test_a_python_that_is_too_old_and_two_installations_are_told() -> None:
    assert named(software.judge(replace(INSTALLED, python=(3, 9, 1))), "datahelix").grade == "problem"
    two = named(software.judge(replace(INSTALLED, distribution="0.0.1")), "datahelix")
    assert (two.grade, "but 0.0.1 is what is installed" in two.found) == ("warning", True)


def test_what_av_or_helixd_says_as_it_fails_is_told() -> None:
    ran = Ran(1, "", "Traceback:\n  ...\nImportError: libavcodec.so.62: cannot open shared object file\n")
    found = software.judge(replace(INSTALLED, av=ran, daemon=ran))
    assert named(found, "decoders").found.endswith(
        "ImportError: libavcodec.so.62: cannot open shared object file"
    )
    assert named(found, "private daemon").grade == "problem"
    for other, why in (
        (Ran(None, "", ""), "it did not end in time"),
        (Ran(-11, "", ""), "killed by signal 11"),
        (Ran(3, "", ""), "exit code 3"),
    ):
        one = named(software.judge(replace(INSTALLED, daemon=other)), "private daemon")
        assert one.found.endswith(why)
    said = json.dumps({"version": "9", "protocol": 99})
    mixed = named(software.judge(replace(INSTALLED, daemon=Ran(0, said, ""))), "private daemon")
    assert "helixd 9, protocol 99, beside" in mixed.found
    assert (
        named(software.judge(replace(INSTALLED, daemon=Ran(0, "?", ""))), "private daemon").grade == "problem"
    )


def test_requirements_are_read_as_they_are_written() -> None:
    lines = [
        *("numpy>=1.24", "posix_ipc>=1.1", 'tomli>=2; python_version < "3.11"', "click"),
        *('torch>=2.1; extra == "torch"', 'torch-npu>=2.7; sys_platform == "linux" and extra == "npu"'),
    ]
    least, extras = software.requirements_in(lines)
    assert least == {"numpy": "1.24", "posix_ipc": "1.1", "torch": "2.1", "torch-npu": "2.7"}
    assert extras == {"torch", "torch-npu"}


# ---- daemons ---------------------------------------------------------------------------------------------


def status(**other: Any) -> dict[str, Any]:
    ring = {"ring_bytes": {"total": 1000}}
    job = {"job": "a", "trainers": [1, 2], "loaders": [{"consumers": [ring, ring]}]}
    return {"version": __version__, "draining": False, "loop": {"longest_ms": 3.0}, "jobs": [job], **other}


def test_the_daemon_that_trainers_use_is_told_with_what_it_does() -> None:
    none = named(daemons.judge(Daemons(None)), "daemon")
    assert (none.grade, "each job starts a private one" in none.found) == ("ok", True)
    there = Daemons(Answer("/s", status=status()), (Answer("@helix/0/b", status=status()),))
    found = daemons.judge(there)
    assert named(found, "daemon").found == f"trainers use helixd {__version__} at /s, 1 job, 2 trainers"
    assert named(found, "private daemons").found == "1 runs, 1 job, 2 trainers"
    assert there.rings_bytes() == 4000


@pytest.mark.parametrize(
    ("answer", "grade", "said"),
    [
        (Answer("/s", status=status(draining=True)), "problem", "is being drained and takes no new job"),
        (Answer("/s", status=status(version="0.0.1")), "warning", "this is libhelix"),
        (Answer("/s", status=status(loop={"longest_ms": 2500.0})), "warning", "once took 2.5 s"),
        (Answer("/s", error=ProtocolError("helixd 1 speaks protocol 1")), "problem", "speaks protocol 1"),
        (Answer("/s", error=DaemonUnreachable("did not answer")), "problem", "get no answer: did not answer"),
        (Answer("/s", access="Permission denied"), "problem", "trainers use /s: Permission denied"),
    ],
)
def test_a_standing_daemon_that_serves_no_job_is_a_problem(answer: Answer, grade: str, said: str) -> None:
    one = named(daemons.judge(Daemons(answer)), "daemon")
    assert one.grade == grade
    assert said in one.found


def test_private_daemons_of_other_versions_or_without_an_answer_are_warned_of() -> None:
    odd = (
        Answer("@a", status=status(version="0.0.1")),
        Answer("@b", error=ProtocolError("speaks protocol 1")),
        Answer("@c", status=status()),
    )
    found = daemons.judge(Daemons(None, odd))
    assert [f.grade for f in found] == ["ok", "warning", "warning"]
    assert "helixd 0.0.1 at @a" in found[1].found
    assert found[2].found == "helixd at @b: speaks protocol 1"


@pytest.fixture
def other_helixd(tmp_path: Path) -> Iterator[Path]:
    """A daemon of a later protocol: it refuses the first that comes."""
    path = tmp_path / "s.sock"

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            channel.receive(connection)
            channel.send(connection, codec.encode(m.Refused("protocol", "helixd 9 speaks protocol 99")))
            while channel.receive(connection) is not None:
                pass

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(1)
        thread = threading.Thread(target=serve)
        thread.start()
        yield path
        thread.join(10)


@pytest.mark.usefixtures("bare")
def test_a_daemon_that_speaks_another_protocol_is_a_problem(
    other_helixd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIX_SOCKET", str(other_helixd))
    one = named(daemons.judge(daemons.read())[:1], "daemon")
    assert (one.grade, one.found) == ("problem", "helixd 9 speaks protocol 99")
    assert "unset HELIX_SOCKET" in one.cure


@pytest.mark.usefixtures("bare")
def test_a_socket_that_is_not_there_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SYSTEM_SOCKET", "/nowhere/helixd.sock")
    assert daemons.read().standing is None
    monkeypatch.setenv("HELIX_SOCKET", str(tmp_path / "s"))
    one = named(daemons.judge(daemons.read())[:1], "daemon")
    assert (one.grade, one.found) == ("problem", f"trainers use {tmp_path / 's'}: No such file or directory")
    (tmp_path / "s").write_text("")
    assert daemons.judge(daemons.read())[0].found.endswith("it is no socket")
