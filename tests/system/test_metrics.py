"""A daemon is scraped, pestered, and serves its job all the same."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.processes import ROOT, Trainer, eventually


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A standing daemon's socket, and the socket of its metrics."""
    where, metrics = tmp_path / "s.sock", tmp_path / "m.sock"
    command = [sys.executable, "-m", "helixd", "run", "--socket", str(where), "--metrics", str(metrics)]
    daemon = subprocess.Popen(command, cwd=ROOT)
    eventually("helixd listens", lambda: where.exists() and metrics.exists())
    yield where, metrics
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(timeout=10) == 0
    assert not metrics.exists()


def _connected(metrics: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(10)
    sock.connect(str(metrics))
    return sock


def _said(sock: socket.socket, request: bytes) -> bytes:
    answer = b""
    try:
        sock.sendall(request)
        while part := sock.recv(1 << 16):
            answer += part
    except (ConnectionResetError, BrokenPipeError):
        pass
    finally:
        sock.close()
    return answer


def _get(metrics: Path, path: str) -> tuple[int, str]:
    answer = _said(_connected(metrics), f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def _value(text: str, name: str) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(name + " ")]
    return float(line.rpartition(" ")[2])


def test_a_job_is_counted_and_names_no_file(index: Path, job: str, served: tuple[Path, Path]) -> None:
    where, metrics = served
    assert _get(metrics, "/healthz") == (200, "ok\n")
    assert _get(metrics, "/readyz") == (200, "ok\n")
    assert _get(metrics, "/nothing")[0] == 404
    trainer = Trainer(index, job, env={"HELIX_SOCKET": str(where)}, step_by_step=True)
    trainer.event("batch")
    trainer.go()
    trainer.event("batch")
    code, text = _get(metrics, "/metrics")
    assert code == 200
    assert _value(text, "helix_jobs") == 1
    assert _value(text, 'helix_ring_bytes{state="leased"}') > 0
    assert _value(text, "helix_input_wait_seconds_count") >= 1
    assert _value(text, 'helix_stage_seconds_total{stage="decode"}') > 0
    assert job not in text
    assert ".mp4" not in text
    trainer.kill()
    eventually("the job has left", lambda: _value(_get(metrics, "/metrics")[1], "helix_jobs") == 0)


def test_garbage_slow_clients_and_crowds_disturb_no_job(
    index: Path, job: str, served: tuple[Path, Path]
) -> None:
    where, metrics = served
    trainer = Trainer(index, job, env={"HELIX_SOCKET": str(where)}, step_by_step=True)
    assert _said(_connected(metrics), b"\x00\xff\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert _said(_connected(metrics), b"POST /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 405 ")
    assert _said(_connected(metrics), os.urandom(64) * 1000)[:13] in (b"", b"HTTP/1.1 400 ")
    began = time.monotonic()
    slow = [_connected(metrics) for _ in range(16)]
    slow[0].sendall(b"GET /metr")
    assert _said(_connected(metrics), b"GET /healthz HTTP/1.1\r\n\r\n") == b"", "one more than 16"
    trainer.event("batch")
    for _ in range(3):
        trainer.go()
        trainer.event("batch")
    assert all(sock.recv(1) == b"" for sock in slow), "slow ones are cut off"
    assert 4 < time.monotonic() - began < 9
    for sock in slow:
        sock.close()
    assert _get(metrics, "/healthz")[0] == 200
    trainer.go()
    trainer.finish()


def test_a_private_daemon_goes_on_where_its_metrics_cannot_be(index: Path, job: str) -> None:
    trainer = Trainer(index, job, env={"HELIX_METRICS": "/nowhere/at/all.sock"})
    events, stderr = trainer.finish()
    assert len([e for e in events if e["event"] == "batch"]) == 4
    assert "no metrics" in stderr
