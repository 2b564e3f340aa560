"""The CPU limit of a process's cgroups, read from folders like the kernel's; its cpuset, from the kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helixd.worker.limits import cpu_limit_millis, spread_out


def _write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("cpu_", "cpu.", 1)).write_text(text)


@pytest.fixture
def fs(tmp_path: Path) -> Path:
    """The mount point of cgroups; `own` beside it is /proc/self/cgroup."""
    return tmp_path / "fs"


def _read(fs: Path, own: str) -> int | None:
    (fs.parent / "own").write_text(own)
    return cpu_limit_millis(fs.parent / "own", fs)


def test_the_smallest_limit_on_the_way_up_counts(fs: Path) -> None:
    _write(fs / "a" / "b" / "c", cpu_max="max 100000\n")
    _write(fs / "a" / "b", cpu_max="150000 100000\n")
    _write(fs / "a", cpu_max="800000 100000\n")
    _write(fs / "a" / "other", cpu_max="1000 100000\n")
    assert _read(fs, "0::/a/b/c\n") == 1500


def test_no_limit_is_none(fs: Path) -> None:
    _write(fs / "a", cpu_max="max 100000\n")
    assert _read(fs, "0::/a\n") is None
    assert _read(fs, "") is None
    assert cpu_limit_millis(fs / "not there", fs) is None


def test_the_limit_of_a_container_that_sees_only_its_own_folder_is_found(fs: Path) -> None:
    _write(fs, cpu_max="400000 100000\n")
    assert _read(fs, "0::/kubepods/pod7/c3\n") == 4000


def test_version_1_has_its_own_files_and_minus_one_for_none(fs: Path) -> None:
    _write(fs / "cpu,cpuacct" / "a", cpu_cfs_quota_us="-1\n", cpu_cfs_period_us="100000\n")
    own = "4:cpu,cpuacct:/a\n3:cpuset:/x\n0::/\n"
    assert _read(fs, own) is None
    _write(fs / "cpu,cpuacct", cpu_cfs_quota_us="50000\n", cpu_cfs_period_us="20000\n")
    assert _read(fs, own) == 2500


def test_a_limit_is_never_nothing(fs: Path) -> None:
    _write(fs, cpu_max="1 1000000\n")
    assert _read(fs, "0::/\n") == 1


@pytest.mark.parametrize("text", ["", "max", "garbage garbage", "100000 0"])
def test_what_no_kernel_writes_is_no_limit(fs: Path, text: str) -> None:
    _write(fs, cpu_max=text)
    assert _read(fs, "0::/\n") is None


def test_a_pinned_process_spreads_out_over_its_cpuset() -> None:
    before = os.sched_getaffinity(0)
    try:
        everywhere = set(spread_out())
        os.sched_setaffinity(0, {min(everywhere)})
        assert set(spread_out()) == everywhere == os.sched_getaffinity(0)
    finally:
        os.sched_setaffinity(0, before)
