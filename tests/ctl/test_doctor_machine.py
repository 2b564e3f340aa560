"""helixctl doctor on machines: shared memory, limits of cgroups, cores, and what processes may use."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest

from helixd.core.cores import share as decided_by_helixd
from libhelix.ctl.checks import cgroup, cores, memory
from libhelix.ctl.checks.cgroup import CpuLimit, MemoryLimit
from libhelix.ctl.checks.cores import Cores
from libhelix.ctl.checks.memory import Memory
from tests.ctl.test_doctor import GIB, named

# ---- memory ----------------------------------------------------------------------------------------------

LARGE = Memory(
    shm_bytes=64 * GIB,
    shm_free_bytes=60 * GIB,
    memfd="",
    available_bytes=100 * GIB,
    total_bytes=128 * GIB,
    limit=None,
    rings_bytes=0,
    files=(1024, 1 << 20),
)


def test_a_small_dev_shm_does_not_matter_where_memfds_can_be_sealed() -> None:
    small = replace(LARGE, shm_bytes=64 << 20, shm_free_bytes=60 << 20)
    one = named(memory.judge(small), "shared memory")
    assert one.grade == "ok"
    assert one.found == (
        "/dev/shm has 64.0 MiB, 60.0 MiB of them free; sealed memfds can be made, and are what larger rings "
        "are made of"
    )
    without = named(memory.judge(replace(small, memfd="Operation not permitted")), "shared memory")
    assert without.grade == "problem"
    assert "--shm-size" in without.cure
    nowhere = replace(small, shm_bytes=None, shm_free_bytes=0, memfd="Operation not permitted")
    assert "no /dev/shm that can be written to" in named(memory.judge(nowhere), "shared memory").found
    only = named(memory.judge(replace(LARGE, memfd="Operation not permitted")), "shared memory")
    assert (only.grade, "standing daemon" in only.found) == ("warning", True)


def test_memory_is_what_the_machine_or_the_cgroup_leaves() -> None:
    assert named(memory.judge(LARGE), "memory").found == "100.0 GiB of 128.0 GiB are left"
    limited = replace(LARGE, limit=MemoryLimit(4 * GIB, 7 * GIB // 2, "/c/memory.max"), rings_bytes=3 * GIB)
    one = named(memory.judge(limited), "memory")
    assert one.grade == "warning"
    assert "/c/memory.max leaves 512.0 MiB of 4.0 GiB; rings of your jobs here have 3.0 GiB" in one.found
    assert "cgroup" in one.cure
    full = replace(LARGE, limit=MemoryLimit(4 * GIB, 4 * GIB, "/c/memory.max"))
    assert named(memory.judge(full), "memory").grade == "problem"
    assert "cgroup" not in named(memory.judge(replace(LARGE, available_bytes=GIB // 2)), "memory").cure


@pytest.mark.parametrize(
    ("files", "grade"),
    [((1024, 1 << 20), "ok"), ((1024, 1024), "warning"), ((64, 1 << 20), "problem"), ((-1, -1), "ok")],
)
def test_few_descriptors_are_told(files: tuple[int, int], grade: str) -> None:
    assert named(memory.judge(replace(LARGE, files=files)), "descriptors").grade == grade


def test_what_is_read_of_memory_is_of_this_machine() -> None:
    read = memory.read(5)
    assert 0 < read.available_bytes < read.total_bytes
    assert (read.memfd, read.rings_bytes) == ("", 5)


# ---- cgroups and cores -----------------------------------------------------------------------------------


def test_limits_of_both_versions_are_read_and_the_tightest_on_the_way_up_counts(tmp_path: Path) -> None:
    own = tmp_path / "own"

    def write(folder: str, **files: str) -> None:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / folder / name.replace("_", ".", 1)).write_text(text)

    own.write_text("0::/job/step\n")
    stat = "anon 5\ninactive_file 100\n"
    write("job", memory_max="3000", memory_current="1000", memory_stat=stat, cpu_max="150000 100000")
    write("job/step", memory_max="max", memory_current="900", memory_stat=stat, cpu_max="400000 100000")
    (tmp_path / "job" / "cpuset.cpus.effective").write_text("0-3,8\n")
    assert cgroup.memory_limit(own, tmp_path) == (3000, 900, str(tmp_path / "job" / "memory.max"))
    assert cgroup.cpu_limit(own, tmp_path) == (1.5, str(tmp_path / "job" / "cpu.max"))
    assert cgroup.cpuset(own, tmp_path) == frozenset({0, 1, 2, 3, 8})

    own.write_text("4:memory:/a\n1:cpu,cpuacct:/a\n0::/\n")
    write("memory/a", memory_stat="total_inactive_file 24\n")
    (tmp_path / "memory/a/memory.limit_in_bytes").write_text("4096")
    (tmp_path / "memory/a/memory.usage_in_bytes").write_text("1024")
    write("cpu,cpuacct/a")
    (tmp_path / "cpu,cpuacct/a/cpu.cfs_quota_us").write_text("400000")
    (tmp_path / "cpu,cpuacct/a/cpu.cfs_period_us").write_text("100000")
    memory_found, cpu_found = cgroup.memory_limit(own, tmp_path), cgroup.cpu_limit(own, tmp_path)
    assert memory_found is not None
    assert cpu_found is not None
    assert (memory_found[:2], cpu_found.cores) == ((4096, 1000), 4.0)
    assert cgroup.memory_limit(tmp_path / "missing", tmp_path) is None


def all_of(n: int) -> frozenset[int]:
    return frozenset(range(n))


def test_a_rank_that_is_bound_to_one_core_of_many_is_warned_of() -> None:
    bound = named(cores.judge(Cores(all_of(16), frozenset({3}), cpuset=all_of(8))), "cores")
    assert bound.grade == "warning"
    assert "1 core (3) of 16 online; the cgroup's cpuset is 0-7" in bound.found
    assert "beside 7 others" in bound.found
    assert "--bind-to none" in bound.cure
    alone = named(cores.judge(Cores(all_of(1), all_of(1))), "cores")
    assert (alone.grade, alone.cure) == ("warning", "give this node more cores")
    assert named(cores.judge(Cores(all_of(16), all_of(4))), "cores").grade == "ok"


def test_a_cpu_limit_that_ranks_and_decoding_do_not_fit_into_is_warned_of() -> None:
    machine = Cores(all_of(16), all_of(16))
    assert named(cores.judge(machine), "CPU limit").grade == "ok"
    limited = replace(machine, limit=CpuLimit(1.5, "/c/cpu.max"))
    one = named(cores.judge(limited), "CPU limit")
    assert (one.grade, "1.5 cores' worth of CPU time (/c/cpu.max), 16 may be used" in one.found) == (
        "warning",
        True,
    )
    assert named(cores.judge(replace(limited, limit=CpuLimit(8, ""))), "CPU limit").grade == "ok"
    assert (
        named(cores.judge(replace(limited, limit=CpuLimit(8, ""), ranks=8)), "CPU limit").grade == "warning"
    )


def test_helix_cores_that_this_process_may_not_use_are_warned_of() -> None:
    machine = Cores(all_of(8), all_of(4), allowed=frozenset({6, 7}))
    one = named(cores.judge(machine), "decoding")
    assert (one.grade, "HELIX_CORES=6-7 has none of the cores 0-3" in one.found) == ("warning", True)
    assert named(cores.judge(replace(machine, allowed=frozenset({3, 7}))), "decoding").grade == "ok"


def test_cores_are_shared_out_as_helixd_does() -> None:
    limits = (None, 0.5, 1.0, 2.5, 6.0, 20.0)
    allowed = (None, frozenset({0}), frozenset({2, 3}), all_of(5), frozenset({40}))
    for n, ranks, limit, some, reserve in itertools.product(
        (1, 2, 3, 4, 8, 9), (1, 2, 3), limits, allowed, (None, 0, 1, 2)
    ):
        expected = decided_by_helixd(
            [all_of(n)] * ranks,
            host=all_of(n),
            limit_millis=int(limit * 1000) if limit is not None else None,
            allowed=some,
            reserve=reserve,
        )
        machine = Cores(
            all_of(n), all_of(n), None, CpuLimit(limit, "") if limit else None, ranks, some, reserve
        )
        found = cores.share(machine)
        assert found == (len(expected.owned), len(expected.reserved), expected.outside), machine


def test_what_is_read_of_cores_is_of_this_process() -> None:
    read = cores.read({"HELIX_CORES": "0-1,5", "HELIX_RESERVE": "2", "LOCAL_WORLD_SIZE": "4"})
    assert read.affinity == frozenset(os.sched_getaffinity(0))
    assert (read.ranks, read.allowed, read.reserve) == (4, frozenset({0, 1, 5}), 2)
    assert read.affinity <= read.online
    nonsense = cores.read({"HELIX_CORES": "a-b", "HELIX_RESERVE": "-1"})
    assert (nonsense.allowed, nonsense.reserve, nonsense.ranks) == (None, None, 1)
