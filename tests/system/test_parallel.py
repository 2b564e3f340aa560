"""Tensor-parallel peers: four real processes of a torch DeviceMesh, over gloo."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.system.processes import LIMIT_S, ROOT


def _run(index: Path, notes: Path, job: str, names: tuple[str, ...], **options: Any) -> list[dict[str, Any]]:
    """What each of 4 processes saw."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    what = {"index": str(index), "notes": str(notes), "names": names, "shape": (2, 2), **options}
    command = [sys.executable, "-m", "tests.system.parallel", json.dumps(what)]
    env = {**os.environ, "HELIX_JOB": job, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env |= {"WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            command, env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
        )
        for rank in range(4)
    ]
    try:
        ended = [process.communicate(timeout=LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, stderr) in zip(processes, ended):
        assert process.returncode == 0, stderr.decode()
    return [json.loads(stdout.splitlines()[-1]) for stdout, _ in ended]


def _samples(seen: list[Any]) -> list[tuple[int, int, int]]:
    """(epoch, id, random number) of what a process saw."""
    return [(epoch, i, x) for epoch, _, ids, numbers, _ in seen for i, x in zip(ids, numbers)]


def _decoded(notes: Path) -> list[tuple[int, int]]:
    """(id, random number) of every call of `fill`."""
    lines = [line.split() for line in notes.read_text().splitlines()]
    return [(int(i), int(x)) for i, x in lines]


def test_two_by_two_peers_see_the_same_tensors_and_every_sample_is_decoded_once(
    index: Path, job: str, tmp_path: Path
) -> None:
    ranks = _run(index, tmp_path / "notes", job, ("tp", "dp"), epochs=2)
    for rank in ranks:
        assert all(same for *_, same in rank["seen"])
        assert rank["seen"] == ranks[3 * rank["at"][1]]["seen"]  # of (0, 0) and (1, 1)
        assert rank["state"] == ranks[0]["state"]
    delivered = [s for rank in (ranks[0], ranks[3]) for s in _samples(rank["seen"])]
    assert sorted((epoch, i) for epoch, i, _ in delivered) == [(e, i) for e in range(2) for i in range(8)]
    decoded = _decoded(tmp_path / "notes")
    assert len(decoded) == len(set(decoded)) <= 16 + 2 * 3 * 2  # two rings of batches of the epoch after
    assert {(i, x) for _, i, x in delivered} <= set(decoded)


def test_peers_see_without_a_daemon_what_they_see_with_one(index: Path, job: str, tmp_path: Path) -> None:
    served = _run(index, tmp_path / "served", job, ("dp", "tp"))
    inline = _run(index, tmp_path / "inline", job, ("dp", "tp"), backend="inline")
    assert [rank["seen"] for rank in served] == [rank["seen"] for rank in inline]
    assert len(_decoded(tmp_path / "inline")) == 16  # each for itself
