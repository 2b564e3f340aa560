"""Single faults that are none of a process's death: what stops, what goes on, what is left."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

import libhelix as hx
from libhelix.ctl.daemons import ask
from libhelix.index.build import build
from libhelix.index.read import Index
from tests.system.processes import Trainer, eventually, of_job, open_descriptors
from tests.system.recipes import Plain
from tests.system.test_standing_daemon import standing as standing

CYCLES = int(os.environ.get("HELIX_CYCLES", "40"))
"""The more, the surer: 10,000 take some minutes."""


def _rss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def test_a_trainer_that_is_stopped_stops_nobody_of_another_job(index: Path, job: str, standing: Path) -> None:
    env = {"HELIX_SOCKET": str(standing)}
    stopped = Trainer(index, f"{job}-a", epochs=None, step_by_step=True, env=env)
    stopped.event("batch")
    stopped.process.send_signal(signal.SIGSTOP)
    other = Trainer(index, f"{job}-b", epochs=20, env=env)
    events, _ = other.finish()
    assert len([e for e in events if e["event"] == "batch"]) == 20 * 4
    stopped.process.send_signal(signal.SIGCONT)
    stopped.go()
    stopped.event("batch")
    stopped.kill()


@pytest.mark.parametrize("how", ["vanishes", "shrinks", "becomes another"])
def test_a_file_that_changes_after_indexing_is_masked_and_told(
    index: Path, job: str, tmp_path: Path, how: str
) -> None:
    (media := tmp_path / "media").mkdir()
    videos = [i.path for sample in Index.open(index) for i in sample.items if i.kind == "video"]
    for path in sorted(videos)[:4]:
        shutil.copy(path, media)
    names = sorted(path.name for path in media.iterdir())
    build([media], tmp_path / "i.arrow")
    victim = sorted(media.iterdir())[1]
    if how == "vanishes":
        victim.unlink()
    elif how == "shrinks":
        os.truncate(victim, victim.stat().st_size // 2)
    else:
        victim.write_bytes(b"something else")
    loader = hx.Loader(
        tmp_path / "i.arrow", recipe=Plain(), batching=hx.FixedBatch(2), job=job, dp_rank=0, dp_size=1
    )
    with pytest.warns(hx.HelixWarning, match=victim.name):
        valid = _validity(loader)
    assert valid == {name: name != victim.name for name in names}


def _validity(loader: hx.Loader) -> dict[str, bool]:
    """Which samples were decoded, by key."""
    found: dict[str, bool] = {}
    with loader:
        for batch in loader:
            found |= zip(batch.sample_keys, batch.valid.tolist())
    return found


def test_attaching_and_leaving_many_times_grows_nothing(
    index: Path, job: str, standing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIX_SOCKET", str(standing))
    pid = ask(str(standing))["pid"]
    before = (0, 0)
    for cycle in range(CYCLES):
        loader = hx.Loader(
            index, recipe=Plain(), batching=hx.FixedBatch(2), job=job, dp_rank=0, dp_size=1, epochs=1
        )
        with loader:
            next(iter(loader))
        if cycle == CYCLES // 2:
            eventually("the job is over", lambda: not ask(str(standing))["jobs"])
            before = (open_descriptors(pid), _rss_kib(pid))
    eventually("the job is over", lambda: not ask(str(standing))["jobs"])
    eventually("its processes are gone", lambda: not of_job(job), 5.0)
    assert open_descriptors(pid) <= before[0]
    assert _rss_kib(pid) < before[1] * 1.05 + 1024
