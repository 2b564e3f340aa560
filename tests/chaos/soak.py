"""Many small batches for a long time: `python -m tests.chaos.soak --minutes 60`. Nothing may grow."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

import libhelix as hx
from bench.overhead.images import jpeg
from libhelix.index.build import build
from tests.system.processes import ROOT, eventually, of_job, open_descriptors

RANKS, BATCH = 2, 8
IMAGES = 512
LOOK_EVERY_S = 5.0
GROWS_BY = 0.05
"""More than this share, from its first quarter to its last, is growth."""


def trainer(index: str, job: str, rank: int, per_s: float, minutes: float) -> None:
    """A rank that takes so many samples a second, and says at the end how many it took."""
    taken, began = 0, time.monotonic()
    with hx.Loader(
        index,
        recipe=hx.recipes.Image(size=(64, 64)),
        batching=hx.FixedBatch(BATCH),
        epochs=None,
        job=job,
        dp_rank=rank,
        dp_size=RANKS,
    ) as loader:
        for batch in loader:
            taken += len(batch.ids)
            now = time.monotonic()
            if now - began > 60 * minutes:
                break
            time.sleep(max(0.0, began + taken / per_s - now))
    print(json.dumps({"samples": taken, "seconds": time.monotonic() - began}))


def _memory(pid: int) -> int:
    """Bytes in use that are a process's own, and no ring's: resident, without what is shared memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    kb = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith("Rss")}
    return 1024 * (int(kb["RssAnon"]) + int(kb["RssFile"]))


class Looks:
    """What processes had, at every look, by what they are."""

    def __init__(self) -> None:
        self.nbytes: dict[str, list[int]] = defaultdict(list)
        self.descriptors: dict[str, list[int]] = defaultdict(list)

    def look(self, pids: dict[str, int]) -> None:
        """Once more."""
        for name, pid in pids.items():
            self.nbytes[name].append(_memory(pid))
            self.descriptors[name].append(open_descriptors(pid))

    def summary(self) -> dict[str, dict[str, float]]:
        """Medians of the first quarter after a tenth, in which things fill, and of the last one."""
        return {name: self._of(name) for name in self.nbytes}

    def _of(self, name: str) -> dict[str, float]:
        nbytes, descriptors = self.nbytes[name], self.descriptors[name]
        first, last = _quarters(nbytes)
        few, many = _quarters(descriptors)
        return {
            "first_mb": round(first / 1e6, 1),
            "last_mb": round(last / 1e6, 1),
            "growth": round(last / first - 1, 4),
            "first_descriptors": few,
            "last_descriptors": many,
        }


def _quarters(values: list[int]) -> tuple[float, float]:
    kept = values[len(values) // 10 :]
    some = max(1, len(kept) // 4)
    return statistics.median(kept[:some]), statistics.median(kept[-some:])


def wrong(summary: dict[str, dict[str, float]]) -> list[str]:
    """What has grown."""
    found = [f"{name}: {s['growth']:+.1%} of memory" for name, s in summary.items() if s["growth"] > GROWS_BY]
    return found + [
        f"{name}: {s['first_descriptors']:.0f} descriptors, then {s['last_descriptors']:.0f}"
        for name, s in summary.items()
        if s["last_descriptors"] > s["first_descriptors"]
    ]


def run(minutes: float, per_s: float, told: Callable[[float], None]) -> dict[str, Any]:
    """A standing daemon and a job for so long, looked at all the time; `told` gets the share that is over."""
    with tempfile.TemporaryDirectory(prefix="helix-soak-") as at:
        (media := Path(at, "media")).mkdir()
        for i in range(IMAGES):
            (media / f"{i:04d}.jpg").write_bytes(jpeg(i))
        build([media], index := Path(at, "i.arrow"), jobs=1)
        address, job = Path(at, "helixd.sock"), f"soak-{os.getpid()}"
        command = [sys.executable, "-m", "helixd", "run", "--socket", str(address), "--reserve", "0"]
        daemon = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            eventually("helixd listens", address.is_socket)
            for rank in range(RANKS):
                words = (str(index), job, str(rank), str(per_s / RANKS), str(minutes))
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "tests.chaos.soak", "trainer", *words],
                        cwd=ROOT,
                        env={**os.environ, "HELIX_SOCKET": str(address), "HELIX_CACHE": at},
                        stdout=subprocess.PIPE,
                    )
                )
            looks = _looked_at(daemon.pid, job, ranks, minutes, told)
            took = [json.loads(rank.communicate(timeout=60)[0]) for rank in ranks]
        finally:
            for process in (*ranks, daemon):
                process.terminate()
                process.wait(10)
    summary = looks.summary()
    return {
        "minutes": minutes,
        "samples": sum(t["samples"] for t in took),
        "samples_per_s": round(sum(t["samples"] / t["seconds"] for t in took), 1),
        "processes": summary,
        "wrong": wrong(summary),
    }


def _looked_at(
    daemon: int, job: str, ranks: list[subprocess.Popen[bytes]], minutes: float, told: Callable[[float], None]
) -> Looks:
    eventually("workers decode", lambda: bool(of_job(job, "w")), 120.0)
    pids = {"helixd": daemon, "worker host": of_job(job, "host")[0]}
    pids |= {f"worker {i}": pid for i, pid in enumerate(sorted(of_job(job, "w")))}
    pids |= {f"rank {i}": rank.pid for i, rank in enumerate(ranks)}
    looks, began = Looks(), time.monotonic()
    while (gone := time.monotonic() - began) < 60 * minutes - LOOK_EVERY_S:
        looks.look(pids)
        told(gone / (60 * minutes))
        time.sleep(min(LOOK_EVERY_S, 0.6 * minutes))
    return looks


@click.command(epilog="Example:  python -m tests.chaos.soak --minutes 60")
@click.option("--minutes", default=60.0, show_default=True, type=click.FloatRange(0.2))
@click.option("--per-s", default=2000.0, show_default=True, help="Samples a second of the job.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def main(minutes: float, per_s: float, as_json: bool) -> None:
    """Give small batches to a job for a long time, and see that memory and descriptors do not grow.

    Exits with 1 where a process had 5 % more memory in its last quarter than in its first.
    """
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("soaking", total=1.0)
        found = run(minutes, per_s, lambda share: progress.update(task, completed=share))
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo(f"{found['samples']} samples, {found['samples_per_s']} a second")
        for name, s in found["processes"].items():
            click.echo(
                f"{name:<12} {s['first_mb']:7.1f} MB, then {s['last_mb']:7.1f} MB ({s['growth']:+.1%}); "
                f"{s['first_descriptors']:.0f} descriptors, then {s['last_descriptors']:.0f}"
            )
        click.echo("\n".join(f"grows: {text}" for text in found["wrong"]) or "nothing grows")
    sys.exit(bool(found["wrong"]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["trainer"]:
        trainer(sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]), float(sys.argv[6]))
    else:
        main()
