"""Files that vanish, shrink or change after they were indexed: each is one clear error, and counted."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image as Pil

import libhelix as hx
from libhelix.errors import TooManyBadSamples
from libhelix.index.build import build
from tests.clips import make_clip, picture
from tests.index.sources import image, tar
from tests.sounds import tones, write_wav
from tests.system.processes import Trainer, of_job
from tests.system.recipes import Plain

FILES = 12


class Kind(NamedTuple):
    """How file number i of a kind is made, and what reads it."""

    suffix: str
    make: Callable[[Path, int], object]
    recipe: hx.Recipe


def _picture(path: Path, number: int) -> None:
    Pil.fromarray(picture(number, (48, 64))).save(path)


KINDS = {
    "video": Kind("mp4", lambda path, i: make_clip(path, 20, first_number=20 * i), Plain()),
    "jpeg": Kind("jpg", _picture, hx.recipes.Image(size=(48, 64))),
    "png": Kind("png", _picture, hx.recipes.Image(size=(48, 64))),
    "wav": Kind(
        "wav",
        lambda path, i: write_wav(path, tones(0.5, 16_000) * (i + 1) / FILES, 16_000),
        hx.recipes.Audio(seconds=0.4, layout="stack"),
    ),
    "array": Kind("npy", lambda path, i: np.save(path, np.full((50, 40), i)), hx.recipes.Tensor()),
    "tar": Kind(
        "tar", lambda path, i: tar(path, [(f"{i}.jpg", image(i, "jpeg"))]), hx.recipes.Image(size=(24, 36))
    ),
}


def _made(kind: Kind, folder: Path) -> tuple[Path, list[Path]]:
    """An index, and its files."""
    folder.mkdir()
    files = [folder / f"{i}.{kind.suffix}" for i in range(FILES)]
    for i, path in enumerate(files):
        kind.make(path, i)
    build([folder], folder.parent / "x.arrow", jobs=1)
    return folder.parent / "x.arrow", files


def _loader(index: Path, job: str, kind: Kind, **options: Any) -> hx.Loader:
    options = {"bad_budget": hx.BadBudget(count=FILES), "epochs": 2, **options}
    return hx.Loader(
        index, recipe=kind.recipe, batching=hx.FixedBatch(2), job=job, dp_rank=0, dp_size=1, **options
    )


def _replaced(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _rewritten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "vanishes": (Path.unlink, "No such file or directory; index it again if it moved"),
    "shrinks": (
        lambda path: os.truncate(path, min(600, path.stat().st_size // 2)),
        "changed since it was indexed; run helixctl index again, or fetch it again: ",
    ),
    "is emptied": (
        lambda path: os.truncate(path, 0),
        "changed since it was indexed; run helixctl index again, or fetch it again: 0 of ",
    ),
    "has other bytes": (_rewritten, "changed since it was indexed; run helixctl index again"),
    "becomes a folder": (_a_folder, "is no file any more; index it again"),
    "becomes a pipe": (_replaced, "is no file any more; index it again"),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_is_one_error_that_names_file_cause_and_cure_and_the_job_goes_on(
    kind: Kind, tmp_path: Path, job: str
) -> None:
    index, files = _made(kind, tmp_path / "media")
    victims = dict(zip(files[1::2], CHANGES.values(), strict=True))
    for victim, (change, _) in victims.items():
        change(victim)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with _loader(index, job, kind) as loader:
            valid = [v for batch in loader for v in batch.valid.tolist()]
    assert (len(valid), valid.count(False)) == (2 * FILES, 2 * len(victims))
    said = [str(w.message) for w in told if issubclass(w.category, hx.HelixWarning)]
    assert len(said) == 2 * len(victims), "one in an epoch"
    for victim, (_, cause) in victims.items():
        assert len([text for text in said if f"a sample is masked: {victim}: {cause}" in text]) == 2, said


def test_each_is_counted(tmp_path: Path, job: str) -> None:
    kind = KINDS["jpeg"]
    index, files = _made(kind, tmp_path / "media")
    for path in files[:3]:
        path.unlink()
    too_few = hx.BadBudget(count=2, rate=0.0)
    with _loader(index, job, kind, bad_budget=too_few) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore", hx.HelixWarning)
        said = r"3 samples failed in epoch 0, 2 are allowed; the last: .*/media/[012]\.jpg: No such file"
        with pytest.raises(TooManyBadSamples, match=said):
            list(loader)


def test_a_file_that_goes_while_the_job_runs_is_told_when_it_is_due_again(tmp_path: Path, job: str) -> None:
    index, files = _made(KINDS["video"], tmp_path / "media")
    trainer = Trainer(index, job, epochs=4, step_by_step=True)
    masked: dict[int, list[str]] = {epoch: [] for epoch in range(4)}
    for step in range(4 * FILES // 2):
        event = trainer.event("batch")
        if step == 1:
            files[3].unlink()
        masked[event["at"][0]] += [Path(k).name for k, v in zip(event["keys"], event["valid"]) if not v]
        trainer.go()
    end = trainer.event("end")
    trainer.finish()
    assert masked[2] == masked[3] == ["3.mp4"], "what was ready or read ahead is given"
    assert [w for w in end["warnings"] if f"{files[3]}: No such file or directory" in w]


@contextmanager
def _rewriting(files: list[Path]) -> Iterator[None]:
    """One file after the other is cut, is half itself, and is as it was, all the time."""
    whole = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
    over = threading.Event()

    def rewrite() -> None:
        while not over.is_set():
            for path, (body, mtime_ns) in whole.items():
                os.truncate(path, len(body) // 3)
                time.sleep(0.002)
                path.write_bytes(body)
                os.utime(path, ns=(mtime_ns, mtime_ns))
                time.sleep(0.002)

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("name", ["video", "jpeg", "wav", "array"])
def test_files_that_are_rewritten_while_they_are_read_are_right_or_masked(
    name: str, tmp_path: Path, job: str
) -> None:
    kind = KINDS[name]
    index, files = _made(kind, tmp_path / "media")
    all_bad = hx.BadBudget(count=1 << 40, in_a_row=1 << 40)
    with _loader(index, job, kind, backend="inline", epochs=1) as loader:
        right = {key: _of(b, i) for b in loader for i, key in enumerate(b.sample_keys)}
    given = masked = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hx.HelixWarning)
        with _loader(index, job, kind, epochs=None, bad_budget=all_bad) as loader:
            batches = iter(loader)
            next(batches)  # all that fail from the first sample on would end the loader
            workers = sorted(of_job(job, "w"))
            with _rewriting(files):
                for _ in range(200):
                    batch = next(batches)
                    for i, (key, valid) in enumerate(zip(batch.sample_keys, batch.valid.tolist())):
                        given, masked = given + 1, masked + (not valid)
                        assert not valid or torch.equal(_of(batch, i), right[key]), key
            assert sorted(of_job(job, "w")) == workers, "no worker died of it"
    assert 0 < masked < given


def _of(batch: hx.Batch, i: int) -> torch.Tensor:
    """The sample's one field."""
    (field,) = batch.values()
    found: torch.Tensor = field[i].clone()
    return found
