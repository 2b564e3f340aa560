"""helixctl doctor on accelerators: torch and backends that are broken, hang, or have no device, and why."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from libhelix.ctl.checks import accelerator
from libhelix.ctl.checks.accelerator import AUTOLOAD, Accelerators, Probe
from libhelix.ctl.checks.finding import Ran
from libhelix.device_probe import _tier
from tests.ctl.test_doctor import named
from tests.late import Late

torch = pytest.importorskip("torch")


def probe(**said: Any) -> Probe:
    return Probe(Ran(0, "", ""), {"torch": "2.13.0", "cuda_build": None, "hip_build": None, **said})


CPU = Accelerators(probe(step="done", accelerator=None))
CUDA = {"step": "done", "accelerator": "cuda", "devices": 8, "cuda_build": "13.0", "device": "cuda:0"}


# ---- made-up readings ------------------------------------------------------------------------------------


def test_cpu_users_notice_nothing() -> None:
    for one in (
        Accelerators(None),
        CPU,
        replace(CPU, probe=probe(accelerator=None, cuda_build="13.0", warnings=["no NVIDIA driver"])),
        replace(CPU, locked_bytes=65536),
    ):
        assert {f.grade for f in accelerator.judge(one)} == {"ok"}


def test_a_cuda_build_without_a_gpu_is_explained() -> None:
    build = probe(accelerator=None, cuda_build="13.0", warnings=["The NVIDIA driver is too old"])
    found = 'torch 2.13.0 (built for CUDA 13.0) sees none; device="auto" gives host tensors'
    one = named(accelerator.judge(Accelerators(build)), "accelerator")
    assert (one.grade, one.found) == ("ok", f"{found}: The NVIDIA driver is too old")
    there = named(accelerator.judge(Accelerators(build, nodes=("/dev/nvidia0",))), "accelerator")
    assert (there.grade, there.found) == (
        "warning",
        f"{found}, though /dev/nvidia0 is there: The NVIDIA driver is too old",
    )
    assert "nvidia-smi" in there.cure
    hidden = Accelerators(build, nodes=("/dev/nvidia0",), environ={"CUDA_VISIBLE_DEVICES": ""})
    assert "CUDA_VISIBLE_DEVICES='' hides devices" in named(accelerator.judge(hidden), "accelerator").found


def test_a_device_that_this_torch_has_no_code_for_is_told() -> None:
    gpu = named(accelerator.judge(replace(CPU, nodes=("/dev/nvidia0",))), "accelerator")
    assert (gpu.grade, gpu.cure) == ("warning", "install a CUDA build of torch")
    npu = named(accelerator.judge(replace(CPU, nodes=("/dev/davinci0",))), "accelerator")
    assert (npu.grade, "datahelix[npu]" in npu.cure) == ("warning", True)
    old = named(accelerator.judge(replace(CPU, probe=probe(accelerator=None, old=True))), "accelerator")
    assert (old.grade, "needs torch 2.7 or newer" in old.found) == ("warning", True)


def test_a_device_is_told_with_its_tier_and_what_keeps_memory_from_being_pinned() -> None:
    found = accelerator.judge(Accelerators(probe(**CUDA, tier="registered"), locked_bytes=65536))
    assert [f.grade for f in found] == ["ok"]
    assert found[0].found == (
        '8 x cuda with torch 2.13.0 (built for CUDA 13.0); device="auto" takes cuda:0 here, tier registered: '
        "the device reads rings itself"
    )
    staged = Accelerators(probe(**CUDA, tier="staged"))
    assert named(accelerator.judge(staged), "pinning").grade == "ok"
    limited = named(accelerator.judge(replace(staged, locked_bytes=65536)), "pinning")
    assert (limited.grade, "64.0 KiB may be locked (RLIMIT_MEMLOCK)" in limited.found) == ("warning", True)
    plain = named(accelerator.judge(replace(staged, probe=probe(**CUDA, tier="plain"))), "pinning")
    assert plain.grade == "warning"


def test_a_device_that_fails_or_hangs_is_a_problem_with_how_far_it_came() -> None:
    said = {**CUDA, "torch": "2.13.0", "hip_build": None, "step": "a copy"}
    failed = Probe(Ran(1, "", ""), {**said, "error": "RuntimeError: CUDA error: out of memory"})
    one = named(accelerator.judge(Accelerators(failed, without=failed)), "accelerator")
    assert one.grade == "problem"
    assert one.found == ("8 x cuda with torch 2.13.0 fail at a copy: RuntimeError: CUDA error: out of memory")
    hangs = accelerator.judge(Accelerators(Probe(Ran(None, "", ""), said)))[0]
    assert hangs.found.endswith("fail at a copy: has not ended within 90 s")
    crashed = accelerator.judge(Accelerators(Probe(Ran(-11, "", ""), {"step": "import torch"})))[0]
    assert crashed.found == "torch does not work: import torch: killed by signal 11"


def test_torch_npu_beside_a_cuda_build_is_told_to_be_refused() -> None:
    broken = Probe(Ran(1, "", ""), {"step": "import torch", "error": "RuntimeError: Failed to load"})
    works = probe(step="done", accelerator=None, cuda_build="13.0")
    read = Accelerators(broken, without=works, backends=("torch_npu",), npu="2.13.0")
    one = named(accelerator.judge(read), "accelerator")
    assert one.grade == "problem"
    assert one.found.startswith(
        "torch_npu 2.13.0, which torch 2.13.0 loads by itself, breaks it: import torch"
    )
    assert one.cure.startswith("torch_npu refuses CUDA builds (2.13.0): install torch's CPU build")
    assert f"{AUTOLOAD}=0" in one.cure


def test_torch_npu_that_is_installed_and_not_loaded_is_told() -> None:
    loaded = replace(CPU, npu="2.13.0", probe=probe(accelerator=None, npu_loaded=True))
    assert named(accelerator.judge(loaded), "torch_npu").grade == "ok"
    kept = named(accelerator.judge(replace(CPU, npu="2.13.0", environ={AUTOLOAD: "0"})), "torch_npu")
    assert (kept.grade, f"{AUTOLOAD}=0 keeps torch from importing it" in kept.found) == ("warning", True)
    assert named(accelerator.judge(replace(CPU, npu="2.13.0")), "torch_npu").grade == "warning"


@pytest.mark.parametrize(
    ("late", "tier"),
    [
        (Late(), "registered"),
        (Late(registers=False), "staged"),
        (Late(registers=False, pins=False), "plain"),
    ],
)
def test_the_tier_is_found_out_by_a_copy_that_has_to_come_back_as_it_was(late: Late, tier: str) -> None:
    assert _tier(late) == tier
    assert (late.registered, late.unregistered) == ((1, 1) if tier == "registered" else (0, 0))


def test_a_device_that_copies_nothing_is_an_error() -> None:
    late = Late()
    late.finish = lambda *_: True  # type: ignore[method-assign]  # says so, and has not copied
    with pytest.raises(RuntimeError, match="not what came back"):
        _tier(late)


# ---- real processes --------------------------------------------------------------------------------------

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a package of one file where this process and those that it starts find it first."""
    monkeypatch.delenv(AUTOLOAD, raising=False)

    def installed(name: str, text: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
        about = tmp_path / f"{name}-2.13.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.13.0\n")
        (about / "entry_points.txt").write_text(f"[torch.backends]\n{name} = {name}:_autoload\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")

    return installed


def test_a_broken_torch_npu_is_found_out_without_importing_it(install: Install) -> None:
    install("torch_npu", "raise ImportError('libhccl.so: cannot open shared object file')")
    read = accelerator.read()
    assert "torch_npu" not in sys.modules
    assert (read.npu, "torch_npu" in read.backends) == ("2.13.0", True)
    one = named(accelerator.judge(read), "accelerator")
    assert one.grade == "problem"
    assert "torch_npu 2.13.0, which torch" in one.found
    assert "breaks it: import torch: ImportError: libhccl.so: cannot open shared object file" in one.found
    assert f"{AUTOLOAD}=0" in one.cure


def test_a_backend_that_hangs_is_found_out_within_the_limit(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("torch_npu", "import time\ntime.sleep(600)")
    probed = accelerator._probed
    monkeypatch.setattr(accelerator, "PROBE_LIMIT_S", 6.0)
    monkeypatch.setattr(
        accelerator, "_probed", lambda changed=None: probed(changed) if changed is None else CPU.probe
    )
    one = named(accelerator.judge(accelerator.read()), "accelerator")
    assert one.grade == "problem"
    assert "breaks it: import torch: has not ended within 6 s" in one.found


def test_a_backend_that_crashes_is_found_out(install: Install) -> None:
    install("torch_npu", "import os\nos.abort()")
    one = named(accelerator.judge(accelerator.read()), "accelerator")
    assert one.grade == "problem"
    assert "breaks it: import torch: " in one.found


def test_a_torch_for_cuda_that_sees_no_gpu_is_asked_why(install: Install) -> None:
    text = """
import types, warnings
__version__ = "2.13.0+cu130"
version = types.SimpleNamespace(cuda="13.0", hip=None)
def _no(): warnings.warn("CUDA initialization: Found no NVIDIA driver on your system."); return False
accelerator = types.SimpleNamespace(is_available=_no, current_accelerator=lambda: None)
"""
    install("torch", text)
    read = accelerator.read()
    one = named(accelerator.judge(replace(read, nodes=(), npu=None)), "accelerator")
    assert (one.grade, one.found) == (
        "ok",
        'torch 2.13.0+cu130 (built for CUDA 13.0) sees none; device="auto" gives host tensors: '
        "CUDA initialization: Found no NVIDIA driver on your system.",
    )


def test_torch_that_is_here_is_probed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(AUTOLOAD, raising=False)
    read = accelerator.read()
    assert read.probe is not None
    assert (read.probe.trouble(), read.probe.said["torch"]) == ("", torch.__version__)
    assert read.without is None
