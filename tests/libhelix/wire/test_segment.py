"""Shared memory: too little of it is an error in time, and nothing stays behind."""

from __future__ import annotations

import errno
import json
import mmap
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from libhelix.errors import OutOfSharedMemory
from libhelix.wire import segment

MIB = 1 << 20
ROOT = Path(__file__).parents[3]
MEMORY_V1 = Path("/sys/fs/cgroup/memory")


@pytest.fixture(params=[False, True], ids=["shm", "memfd"])
def memfd(request: pytest.FixtureRequest) -> bool:
    if not request.param and segment._shm_free() < 64 * MIB:
        pytest.skip("/dev/shm has less than 64 MiB")
    return bool(request.param)


def _python(code: str, *before: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run code in a Python of its own, below a command such as unshare."""
    return subprocess.run(
        [*before, sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=check,
        timeout=60,
    )


# ---- create ----------------------------------------------------------------------------------------------


def test_a_new_segment_has_its_size_and_leaves_no_name(memfd: bool) -> None:
    before = set(os.listdir(segment.SHM))
    fd = segment.create(MIB, memfd=memfd)
    try:
        assert os.fstat(fd).st_size == MIB
        assert {n for n in set(os.listdir(segment.SHM)) - before if n.startswith("helix")} == set()
        assert os.fstat(fd).st_nlink == 0
        assert not os.get_inheritable(fd)
        assert segment.is_shm(fd) != memfd
    finally:
        os.close(fd)


def test_a_segment_lives_as_long_as_its_descriptor(memfd: bool) -> None:
    fd = segment.create(segment.PAGE, memfd=memfd)
    segment.attach(os.dup(fd), segment.PAGE)[:5] = b"bytes"
    assert bytes(segment.attach(fd, segment.PAGE)[:5]) == b"bytes"


def test_a_memfd_is_made_where_dev_shm_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    small: Any = SimpleNamespace(f_bavail=1, f_frsize=MIB)
    monkeypatch.setattr(os, "statvfs", lambda _: small)
    fd = segment.create(2 * MIB)
    try:
        assert not segment.is_shm(fd)
    finally:
        os.close(fd)


def test_a_memfd_is_made_where_dev_shm_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "no /dev/shm")

    monkeypatch.setattr(os, "statvfs", missing)
    fd = segment.create(MIB)
    try:
        assert not segment.is_shm(fd)
    finally:
        os.close(fd)


def test_a_memfd_cannot_be_resized_by_those_who_get_it() -> None:
    fd = segment.create(MIB, memfd=True)
    try:
        for nbytes in (0, 2 * MIB):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, nbytes)
    finally:
        os.close(fd)


def test_names_that_killed_processes_left_are_removed_and_those_of_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "SHM", str(tmp_path))
    done = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True)
    names = {
        f"helix-{done.stdout.strip()}-0123456789abcdef": False,  # that process is over
        f"helix-{os.getpid()}-0123456789abcdef": True,
        "torch_123_456_0": True,
    }
    for name in names:
        (tmp_path / name).touch()
    os.close(segment.create(segment.PAGE))
    assert {name: (tmp_path / name).exists() for name in names} == names


# ---- reserve ---------------------------------------------------------------------------------------------


def test_reserving_makes_every_page_present(memfd: bool) -> None:
    nbytes = 3 * MIB + segment.PAGE
    fd = segment.create(nbytes, memfd=memfd)
    try:
        assert os.fstat(fd).st_blocks == 0
        segment.reserve(fd, nbytes)
        assert os.fstat(fd).st_blocks * 512 >= nbytes
    finally:
        os.close(fd)


def test_pages_are_touched_where_the_kernel_cannot_populate_them(
    monkeypatch: pytest.MonkeyPatch, memfd: bool
) -> None:
    monkeypatch.setattr(segment, "_POPULATE_WRITE", 9999)  # as on Linux before 5.14
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: None)  # only touching is left
    fd = segment.create(MIB, memfd=memfd)
    try:
        segment.reserve(fd, MIB)
        assert os.fstat(fd).st_blocks * 512 >= MIB
    finally:
        os.close(fd)


def test_a_ring_costs_page_tables_once_although_it_is_mapped_twice() -> None:
    told = _python(
        """
        import os, re
        from libhelix.wire import segment
        def tables_kib():
            return int(re.search(r"VmPTE:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
        nbytes = 64 << 20
        fd = segment.create(nbytes, memfd=True)
        segment.reserve(fd, nbytes)
        before = tables_kib()
        view = segment.attach(os.dup(fd), nbytes, populate=True)
        print(segment._libc.madvise(None, 0, segment._POPULATE_WRITE), tables_kib() - before)
        """
    )
    populates, kib = map(int, told.stdout.split())
    if populates != 0:
        pytest.skip("this kernel does not populate pages: Linux before 5.14")
    assert 128 <= kib < 192  # 8 bytes for each of 16,384 pages


def test_reserving_pings_between_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "_CHUNK", MIB)
    pings: list[None] = []
    fd = segment.create(5 * MIB // 2, memfd=True)
    try:
        segment.reserve(fd, 5 * MIB // 2, lambda: pings.append(None))
    finally:
        os.close(fd)
    assert len(pings) == 3


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM])
def test_memory_that_is_not_there_is_an_error_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(*_: object) -> None:
        raise OSError(code, "no")

    monkeypatch.setattr(os, "posix_fallocate", full)
    fd = segment.create(MIB, memfd=True)
    try:
        with pytest.raises(OutOfSharedMemory, match="set a smaller ring=, batch or max_bytes=") as caught:
            segment.reserve(fd, MIB)
    finally:
        os.close(fd)
    assert not caught.value.limited


def test_an_error_that_is_not_about_memory_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "posix_fallocate", broken)
    fd = segment.create(MIB, memfd=True)
    try:
        with pytest.raises(OSError, match="broken"):
            segment.reserve(fd, MIB)
    finally:
        os.close(fd)


def test_a_small_dev_shm_is_full_in_time_and_a_memfd_takes_its_place() -> None:
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    if os.geteuid() != 0 or probe.returncode != 0:
        pytest.skip("mounting a small /dev/shm needs root and a mount namespace")
    done = _python(
        """
        import json, os, subprocess
        from libhelix.errors import OutOfSharedMemory
        from libhelix.wire import segment

        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", "/dev/shm"], check=True)
        MIB = 1 << 20
        large = segment.create(32 * MIB)          # more than there is: a memfd
        one, two = segment.create(12 * MIB), segment.create(12 * MIB)   # each fits, both do not
        segment.reserve(one, 12 * MIB)
        try:
            segment.reserve(two, 12 * MIB)
        except OutOfSharedMemory as e:
            text, limited = str(e), e.limited
        where = [segment.is_shm(fd) for fd in (large, one, two)]
        segment.reserve(large, 32 * MIB)
        os.close(two)
        free = segment._shm_free()
        print(json.dumps([where, text, limited, free, os.listdir("/dev/shm")]))
        """,
        "unshare",
        "-m",
    )
    where, text, limited, free, left = json.loads(done.stdout)
    assert where == [False, True, True]
    assert "the ring needs 12 MiB of shared memory" in text
    assert not limited
    assert free == 4 * MIB  # what the failed reservation took has come back
    assert left == []


# ---- memory limits ---------------------------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory cgroup with 160 MiB, below this process's own."""
    group = _own_group() / f"helix-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as e:
        pytest.skip(f"no memory cgroup can be made at {group}: {e.strerror}")
    try:
        (group / "memory.limit_in_bytes").write_text(str(160 * MIB))
        yield group
    finally:
        (group / "memory.force_empty").write_text("0")
        group.rmdir()


def _own_group() -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") and (MEMORY_V1 / path.lstrip("/")).is_dir():
            return MEMORY_V1 / path.lstrip("/")
    pytest.skip("this process is in no version 1 memory cgroup")


def test_a_ring_above_the_memory_limit_is_refused_before_the_kernel_kills(group: Path) -> None:
    done = _python(
        f"""
        import json, os
        from pathlib import Path
        Path({str(group / "cgroup.procs")!r}).write_text(str(os.getpid()))
        from libhelix.errors import OutOfSharedMemory
        from libhelix.wire import segment

        room = segment.memory_headroom()
        MIB = 1 << 20
        small = segment.create(8 * MIB, memfd=True)
        segment.reserve(small, 8 * MIB)
        large = segment.create(128 * MIB, memfd=True)
        try:
            segment.reserve(large, 128 * MIB)
        except OutOfSharedMemory as e:
            print(json.dumps([room, str(e), e.limited, os.fstat(large).st_blocks]))
        """,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    room, text, limited, blocks = json.loads(done.stdout)
    assert 64 * MIB < room < 160 * MIB
    assert "the memory limit of this cgroup leaves" in text
    assert "raise the limit, or set a smaller ring=" in text
    assert limited
    assert blocks == 0


def _fake_groups(monkeypatch: pytest.MonkeyPatch, *groups: tuple[Path, str, str]) -> None:
    monkeypatch.setattr(segment, "_memory_cgroups", lambda: iter(groups))


def _write_group(at: Path, limit: str, used: int, stat: str) -> tuple[Path, str, str]:
    at.mkdir()
    (at / "memory.max").write_text(f"{limit}\n")
    (at / "memory.current").write_text(f"{used}\n")
    (at / "memory.stat").write_text(stat)
    return at, "memory.max", "memory.current"


def test_the_tightest_group_decides_and_cached_files_are_not_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = _write_group(tmp_path / "inner", str(900 * MIB), 100 * MIB, "anon 5\ninactive_file 0\n")
    outer = _write_group(tmp_path / "outer", str(600 * MIB), 500 * MIB, f"inactive_file {300 * MIB}\n")
    _fake_groups(monkeypatch, inner, outer)
    assert segment.memory_headroom() == 400 * MIB


def test_groups_without_a_limit_limit_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = _write_group(tmp_path / "endless", "max", 5 * MIB, "")
    huge = _write_group(tmp_path / "huge", str((1 << 63) - segment.PAGE), 5 * MIB, "")  # version 1's "none"
    gone = (tmp_path / "gone", "memory.max", "memory.current")
    _fake_groups(monkeypatch, endless, huge, gone)
    assert segment.memory_headroom() is None


def test_a_group_that_is_over_its_limit_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = _write_group(tmp_path / "over", str(100 * MIB), 130 * MIB, "")
    _fake_groups(monkeypatch, over)
    assert segment.memory_headroom() == 0


# ---- attach ----------------------------------------------------------------------------------------------


def test_a_segment_smaller_than_said_is_refused_and_its_descriptor_closed() -> None:
    fd = segment.create(segment.PAGE, memfd=True)
    with pytest.raises(OutOfSharedMemory, match=f"of {segment.PAGE} bytes was passed as one of"):
        segment.attach(fd, 2 * segment.PAGE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_attaching_closes_the_descriptor_and_maps_for_writing() -> None:
    fd = segment.create(segment.PAGE, memfd=True)
    keep = os.dup(fd)
    view = segment.attach(fd, segment.PAGE)
    view[-1] = 7
    assert os.pread(keep, 1, segment.PAGE - 1) == b"\x07"
    os.close(keep)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_segment_is_mapped_twice_in_a_row(memfd: bool) -> None:
    nbytes = 3 * segment.PAGE
    view = segment.attach(segment.create(nbytes, memfd=memfd), nbytes)
    assert (len(view), view.format, view.itemsize, view.readonly) == (2 * nbytes, "B", 1, False)
    over_the_end = bytes(range(200))
    view[nbytes - 100 : nbytes + 100] = over_the_end
    assert view[nbytes - 100 : nbytes] == over_the_end[:100]
    assert view[:100] == over_the_end[100:]
    assert view[2 * nbytes - 100 :] == over_the_end[:100]


def test_a_mapping_goes_with_the_last_of_its_slices() -> None:
    nbytes = 5 * segment.PAGE
    mapped = _mappings()
    view: memoryview | None = segment.attach(segment.create(nbytes, memfd=True), nbytes)
    assert view is not None
    part = view[10:20]
    view = None
    assert _mappings() == mapped + 2
    part[0] = 1
    del part
    assert _mappings() == mapped


def _mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:helix-arena")


def test_a_ring_that_is_no_whole_pages_is_an_error_and_leaves_no_mapping() -> None:
    mapped = _mappings()
    with pytest.raises(OutOfSharedMemory, match="cannot be mapped: Invalid argument"):
        segment.attach(segment.create(2 * segment.PAGE, memfd=True), segment.PAGE + 1)
    assert _mappings() == mapped


def test_a_ring_beyond_the_address_space_is_an_error() -> None:
    with pytest.raises(OutOfSharedMemory, match="bytes of address space for a ring: Cannot allocate memory"):
        segment.attach(segment.create(1 << 50, memfd=True), 1 << 50)


def test_a_forked_child_does_not_inherit_the_mapping() -> None:
    done = _python(
        """
        import os
        from libhelix.wire import segment

        view = segment.attach(segment.create(segment.PAGE, memfd=True), segment.PAGE)
        view[0] = 1
        child = os.fork()
        if child == 0:
            view[0] = 2                     # not mapped here
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), view[0])
        """
    )
    assert done.stdout.split() == [str(-signal.SIGSEGV), "1"]


@pytest.mark.parametrize(("nbytes", "pages"), [(0, 0), (1, 1), (mmap.PAGESIZE, 1), (mmap.PAGESIZE + 1, 2)])
def test_sizes_are_rounded_up_to_whole_pages(nbytes: int, pages: int) -> None:
    assert segment.whole_pages(nbytes) == pages * mmap.PAGESIZE
