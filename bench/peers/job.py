"""A job on several nodes: torchrun on each, and what its ranks wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bench.peers.net import Net

ROOT = Path(__file__).resolve().parents[2]
PORT = 29_511
END_LIMIT_S = 10.0


def write_data(folder: Path, samples: int) -> Path:
    """A source of so many samples."""
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"id": i, "text": f"sample {i}"}) + "\n" for i in range(samples)))
    return data


class Job:
    """Ranks of `bench.peers.trainer` on the first `nodes` of a net, so many each, that write to `out`."""

    def __init__(
        self,
        net: Net,
        ranks_per_node: int,
        index: Path,
        out: Path,
        options: Sequence[str],
        env: Mapping[str, str] | None = None,
        env_of: Mapping[int, Mapping[str, str]] | None = None,
        nodes: int | None = None,
    ) -> None:
        self.net = net
        self.out = out
        self.count = net.count if nodes is None else nodes
        self.ranks = self.count * ranks_per_node
        self._logs: list[IO[str]] = []
        out.mkdir(parents=True, exist_ok=True)
        self._nodes: list[subprocess.Popen[str]] = []
        common = {
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "HELIX_JOB": f"nodes-{net.name(0)}-{out.name}",
        }
        for i in range(self.count):
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(self.count)]
            torchrun += ["--nproc-per-node", str(ranks_per_node), "--node-rank", str(i)]
            torchrun += ["--master-addr", net.address(0), "--master-port", str(PORT)]
            command = [*torchrun, "-m", "bench.peers.trainer", str(index), str(out), *options]
            log = open(out / f"node-{i}.log", "w")  # noqa: SIM115  # closed by `end`
            self._logs.append(log)
            merged = {**common, **(env or {}), **((env_of or {}).get(i) or {})}
            self._nodes.append(net.start(i, command, merged, stdout=log, stderr=subprocess.STDOUT))

    def wait(self, limit_s: float) -> list[int]:
        """Exit codes of the nodes' torchruns. Raises TimeoutError."""
        until = time.monotonic() + limit_s
        try:
            return [node.wait(max(0.1, until - time.monotonic())) for node in self._nodes]
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the job has not ended within {limit_s:.0f} s:\n{self.log()}") from None

    def log(self) -> str:
        """The end of what the nodes said."""
        return "\n".join(
            f"--- node {i}\n{(self.out / f'node-{i}.log').read_text()[-3000:]}" for i in range(self.count)
        )

    def steps(self) -> list[list[dict[str, Any]]]:
        """What ranks took: [rank][step]."""
        found = []
        for rank in range(self.ranks):
            path = self.out / f"rank-{rank}.jsonl"
            lines = path.read_text().splitlines() if path.exists() else []
            found.append([json.loads(line) for line in lines if line.endswith("}")])
        return found

    def reached(self, step: int, limit_s: float) -> None:
        """Wait until all ranks have taken a step. Raises TimeoutError."""
        until = time.monotonic() + limit_s
        while min(len(of) for of in self.steps()) <= step:
            if time.monotonic() > until or any(node.poll() for node in self._nodes):
                raise TimeoutError(f"step {step} is not reached:\n{self.log()}")
            time.sleep(0.05)

    def pids(self, i: int, name: bytes) -> list[int]:
        """Processes of a node whose command line has a text."""
        told = subprocess.run(
            ["ip", "netns", "pids", self.net.name(i)], capture_output=True, text=True, check=True
        )
        found = []
        for pid in map(int, told.stdout.split()):
            try:
                if name in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
            except OSError:
                continue  # ended meanwhile
        return found

    def signal_daemon(self, i: int, number: signal.Signals) -> None:
        """Send a node's helixd a signal."""
        for pid in self.pids(i, b"\0helixd\0embedded\0"):
            os.kill(pid, number)

    def end(self) -> None:
        """See all of its processes gone."""
        for i in range(self.net.count):
            told = subprocess.run(
                ["ip", "netns", "pids", self.net.name(i)], capture_output=True, text=True, check=False
            )
            for pid in map(int, told.stdout.split()):
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue  # ended meanwhile
        for node in self._nodes:
            node.wait(END_LIMIT_S)
        for log in self._logs:
            log.close()
