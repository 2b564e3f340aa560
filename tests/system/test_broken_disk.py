"""A disk that fails in the middle of a file: that sample is bad, and named; all others are what they were."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import libhelix as hx
from libhelix.index.build import build
from tests.clips import make_clip
from tests.system.recipes import Plain

BLOCK = 4096
LAST = 5
Make = Callable[[Path, int], object]


def _ran(*command: str | Path) -> str:
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


class Disk:
    """A file system in a file, of which the end can be lost."""

    def __init__(self, folder: Path) -> None:
        self._image, self.folder = folder / "image", folder / "disk"
        self.folder.mkdir()
        with self._image.open("wb") as file:
            file.truncate(32 << 20)
        _ran("mkfs.ext4", "-q", "-b", str(BLOCK), self._image)
        _ran("mount", "-o", "loop", self._image, self.folder)

    def unmount(self) -> None:
        """It is there no more, or will not be when nobody reads it any longer."""
        _ran("umount", "--lazy", self.folder)

    def lose_from_the_middle_of(self, path: Path) -> None:
        """Whatever lies behind that place of the disk cannot be read any more."""
        extents = _ran("filefrag", "-v", path)
        (first, blocks), *others = re.findall(
            r"^ +\d+: +\d+\.\. +\d+: +(\d+)\.\. +\d+: +(\d+):", extents, re.M
        )
        assert not others, "in one piece"
        _ran("mount", "-o", "remount,ro", self.folder)  # all that was written is on it
        for each in self.folder.iterdir():
            if each.is_file():
                with each.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.truncate(self._image, (int(first) + int(blocks) // 2) * BLOCK)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    try:
        found = Disk(tmp_path)
    except (OSError, subprocess.CalledProcessError) as e:
        pytest.skip(f"no file system in a file can be mounted here: {getattr(e, 'stderr', '') or e}")
    yield found
    found.unmount()


def _clip(path: Path, number: int) -> None:
    make_clip(path, 250, size=(192, 256), first_number=20 * number)
    _keep(path)


def _array(path: Path, number: int) -> None:
    np.save(path, np.full((600, 40), number))
    _keep(path)


def _keep(path: Path) -> None:
    """Behind the one before, on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


@pytest.mark.parametrize(
    ("suffix", "make", "recipe"),
    [("mp4", _clip, Plain()), ("mkv", _clip, Plain()), ("npy", _array, hx.recipes.Tensor())],
)
def test_a_file_that_cannot_be_read_to_its_end_is_one_bad_sample(
    job: str, tmp_path: Path, disk: Disk, suffix: str, make: Make, recipe: hx.Recipe
) -> None:
    files = [disk.folder / f"{i}.{suffix}" for i in range(LAST + 1)]
    for number, path in enumerate(files):
        make(path, number)
    build([disk.folder], index := tmp_path / "x.arrow", jobs=1)

    def samples(backend: str) -> dict[int, tuple[bool, list[float]]]:
        chosen = {"recipe": recipe, "batching": hx.FixedBatch(1), "backend": backend, "name": backend}
        with hx.Loader(index, **chosen) as loader:  # type: ignore[arg-type]
            return {
                batch.ids[0]: (bool(batch.valid[0]), [float(v[0].double().mean()) for v in batch.values()])
                for batch in loader
            }

    whole = samples("inline")
    disk.lose_from_the_middle_of(files[LAST])
    assert files[LAST].stat().st_size > 16 * BLOCK
    with pytest.raises(OSError, match="Input/output error"):
        files[LAST].read_bytes()
    with pytest.warns(
        hx.HelixWarning, match=rf"{LAST}\.{suffix}.*Input/output error.*; see to its disk or mount"
    ):
        found = samples("daemon")
    (broken,) = [i for i, (valid, _) in found.items() if not valid]
    assert {i: s for i, s in found.items() if i != broken} == {i: s for i, s in whole.items() if i != broken}
    assert len(found) == len(files)
