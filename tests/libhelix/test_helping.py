"""How nodes without ranks find a job, and take the places that it has for them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from click.testing import CliRunner

from helixd.cli import cli
from libhelix import helping
from libhelix._version import __version__
from libhelix.client import Client, ConnectionLost
from libhelix.errors import Conflict, DaemonUnreachable, UsageError
from libhelix.helping import Helper, help_job
from libhelix.meeting import ATTEMPT, Expected, Wanted, helpers_of
from libhelix.session import Attachment
from libhelix.wire import messages as m
from libhelix.wire.settings import IndexRef
from tests.helixd.core.nodes import fixed
from tests.helixd.core.world import start_at

dist: Any = pytest.importorskip("torch.distributed", reason="torch is not installed")
LIMIT_S = 60.0


def _expects(store: Any, places: int, attempt: str = "helix/0") -> None:
    keys = [m.Keys(f"{i:040d}", "s" * 40) for i in range(places)]
    store.set(f"{attempt}/helping/expected", msgspec.json.encode(Expected("job", keys)))
    store.set(ATTEMPT, attempt)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helping, "SILENT_S", 0.01)


@pytest.fixture
def store() -> Any:
    return dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=LIMIT_S)
    )


class Placed(Helper):
    """Takes a place, and has no daemon."""

    said: list[str]

    def __init__(self, store: Any) -> None:
        self.said = []
        super().__init__(store, "127.0.0.1", self.said.append)

    def _attach(self, place: Any) -> None:
        place.client = self

    def tell_cores(self) -> None:
        """As a client does."""

    def wait(self, until: Any, limit_s: float) -> bool:
        """As a client does."""
        return until() or limit_s < 0

    def close(self) -> None:
        """As a client does."""

    @property
    def number(self) -> int | None:
        return self._place.number if self._place is not None else None


@pytest.mark.usefixtures("quick")
def test_places_are_taken_once_and_again_when_their_owner_is_silent(store: Any) -> None:
    _expects(store, 2)
    first, second, third = Placed(store), Placed(store), Placed(store)
    for _ in range(2):
        first.look()
        second.look()
    assert {first.number, second.number} == {0, 1}
    assert first.said == ["helps job 'job', as helper 1 of 2"]

    alive = second.number
    beats = f"helix/0/helping/place/{alive}/beats"
    real = time.sleep

    def beating(seconds: float) -> None:
        real(seconds)
        store.add(beats, 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", beating)
        third.look()  # in place of the first, which says nothing any more
        assert third.number == first.number != alive
        store.add(f"helix/0/helping/place/{third.number}/beats", 1)

    def both(seconds: float) -> None:
        real(seconds)
        for i in range(2):
            store.add(f"helix/0/helping/place/{i}/beats", 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", both)
        with pytest.raises(
            Conflict, match=r"has its 2 helpers; start its trainers with a larger HELIX_HELPERS"
        ):
            first.look()  # it stood still for long: its place is another's
    assert first.number is None


def test_helpers_that_come_at_once_do_not_take_each_others_places(store: Any) -> None:
    _expects(store, 2)
    taken = [Placed(store)._claimed("helix/0/helping").number for _ in range(2)]  # before either is alive
    assert taken == [0, 1]


@pytest.mark.usefixtures("quick")
def test_the_next_attempt_of_a_job_has_places_of_its_own(store: Any) -> None:
    _expects(store, 1)
    helper = Placed(store)
    helper.look()
    _expects(store, 3, "helix/1")
    helper.look()
    assert helper.said[-1] == "helps job 'job', as helper 1 of 3"
    assert store.add("helix/1/helping/place/0/beats", 0) == 1


def test_jobs_of_one_name_are_helped_by_daemons_of_their_own(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def started(name: str, address: str) -> Client:
        del address
        names.append(name)
        raise ConnectionLost

    monkeypatch.setattr(helping, "client_for", started)
    for key in ("a" * 40, "b" * 40):
        expected = Expected("job", [m.Keys(key, "s" * 40)])
        store.set(f"{key}/helping/expected", msgspec.json.encode(expected))
        store.set(ATTEMPT, key)
        Helper(store, "127.0.0.1", print).look()
    first, second = names
    assert first != second
    assert all(name.startswith("job-helper-0") for name in names)


def test_other_versions_are_not_helped(store: Any) -> None:
    _expects(store, 1)
    attach = m.Attach(1, "train", 0, 0, fixed(2), (IndexRef("i", "r"),), (), start_at(0, 0).packed())
    wanted = Wanted("0.0", m.Peer("k" * 40, "h:1"), attach)
    store.add("helix/0/helping/loaders", 1)
    store.set("helix/0/helping/loader/1", msgspec.json.encode(wanted))
    helper = Placed(store)
    helper.look()
    assert "rank 0 runs 0.0; install one version" in helper.said[-1]


@pytest.mark.parametrize(("code", "kept"), [("closed", True), ("recipe", False)])
def test_a_loader_that_was_closed_may_come_again(store: Any, code: str, kept: bool) -> None:
    _expects(store, 1)
    helper = Placed(store)
    helper.look()
    place = helper._place
    assert place is not None
    attach = m.Attach(1, "train", 0, 0, fixed(2), (IndexRef("i", "r"),), (), start_at(0, 0).packed())
    place.wanted["train"] = Wanted(__version__, m.Peer("k" * 40, "h:1"), attach)
    place.client = None
    attachment = place.attached["train"] = Attachment(1)
    attachment.failure = m.Failed(1, code, "its trainers have closed it")
    helper._hear(place)
    assert helper.said[-1] == "loader 'train' is not helped any more: its trainers have closed it"
    assert ("train" in place.wanted, "train" in place.attached) == (kept, False)


@pytest.mark.parametrize("text", ["x", "-1", "65", "1.5", ""])
def test_a_number_of_helpers_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"HELIX_HELPERS='.*' is no number of nodes from 0 to 64"):
        helpers_of({"HELIX_HELPERS": text})


def test_what_keeps_a_helper_from_its_job_is_said(store: Any) -> None:
    for address in ("29500", "host:", ":29500", "host:port"):
        with pytest.raises(UsageError, match="write it like host:29500"):
            help_job(address, 0.0, print)
    with pytest.raises(DaemonUnreachable, match=r"within 0 s; start its trainers with HELIX_HELPERS=1"):
        help_job(f"127.0.0.1:{store.port}", 0.0, print)
    with pytest.raises(DaemonUnreachable, match="is that MASTER_ADDR and MASTER_PORT of the job"):
        help_job("127.0.0.1:9", 0.0, print)


def test_a_rendezvous_that_comes_back_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []

    class Cut(Helper):
        def expected(self) -> bool:
            return True

        def look(self) -> None:
            looks.append(self.store)
            raise RuntimeError("Connection reset by peer")

    reached = iter(["before", "after"])

    def reach(host: str, port: int, wait_s: float) -> Any:
        found = next(reached, None)
        if found is None:
            raise DaemonUnreachable(f"nothing answers at {host}:{port} within {wait_s:.0f} s")
        return found

    said: list[str] = []
    monkeypatch.setattr(helping, "Helper", Cut)
    monkeypatch.setattr(helping, "_store_at", reach)
    help_job("h:1", 0.0, said.append)
    assert looks == ["before", "after"]
    assert said == ["the job's rendezvous at h:1 is gone, and the job with it"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_helper_whose_rendezvous_does_not_answer(number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(LIMIT_S)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        helper = subprocess.Popen([sys.executable, "-m", "libhelix.helping", address, "60"])
        try:
            silent.accept()[0].close()  # is anybody there?
            asks, _ = silent.accept()
            with asks:
                assert asks.recv(1)
                helper.send_signal(number)
                assert helper.wait(10) == -number
        finally:
            helper.kill()
            helper.wait()


def _helixd(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    bare = {k: v for k, v in os.environ.items() if not k.startswith("MASTER_")}
    command = [sys.executable, "-m", "helixd", "run", *words]
    return subprocess.run(
        command, env={**bare, **env}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_the_command_says_what_it_needs() -> None:
    ended = _helixd("--helper")
    assert (ended.returncode, ended.stderr) == (
        2,
        "error: whom to help? Give --store HOST:PORT, or set MASTER_ADDR and MASTER_PORT\n",
    )
    ended = _helixd("--store", "h:1")
    assert (ended.returncode, ended.stderr) == (2, "error: --store is for --helper\n")
    ended = _helixd("--helper", "--store", "h:1", "--cores", "x")
    assert ended.returncode == 2
    assert "is no list of cores" in ended.stderr
    ended = _helixd("--helper", "--wait", "0", MASTER_ADDR="127.0.0.1", MASTER_PORT="9")
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: nothing answers at 127.0.0.1:9 within 0 s")


def test_what_a_file_says_holds_for_a_helper_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ: dict[str, str] = {}

    def become(path: str, words: list[str], env: dict[str, str]) -> NoReturn:
        del path, words
        environ.update(env)
        raise SystemExit

    cores: list[frozenset[int]] = []
    monkeypatch.setattr(os, "execve", become)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, some: cores.append(some))
    file = tmp_path / "helixd.toml"
    file.write_text('cores = "0"\nmetrics = "127.0.0.1:9464"\nlog_level = "info"\n')
    words = ["run", "--helper", "--store", "h:1", "--log-level", "error", "--config", str(file)]
    CliRunner().invoke(cli, words)
    assert [environ.get(name) for name in ("HELIX_METRICS", "HELIX_LOG")] == ["127.0.0.1:9464", "error"]
    assert cores == [{0}]  # whichever daemon it has
