"""The accelerator that device="auto" takes, and why there is none. torch is only ever imported elsewhere."""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from libhelix.ctl.checks.finding import SHOWN_CHARS, Finding, Ran, ok, problem, run_python, warning
from libhelix.ctl.figures import size

PROBE_LIMIT_S = 90.0
"""A first import of torch from a network file system takes most of that."""
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_PROBE = ("-m", "libhelix.device_probe")
_NO_AUTOLOAD = f"until then, {AUTOLOAD}=0 in the environment keeps torch from importing it"
_TIERS = {
    "registered": "the device reads rings itself",
    "staged": "batches are copied through pinned memory",
    "plain": "torch copies from pageable memory, and waits",
}
_LOCKED_BYTES = 1 << 30
_HIDING = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Probe:
    """What `libhelix.device_probe` said last, and how it ended."""

    ran: Ran
    said: Mapping[str, Any]

    def trouble(self) -> str:
        """What went wrong, or nothing."""
        if self.ran.code == 0 and self.said:
            return ""
        step = self.said.get("step", "libhelix.device_probe")
        if "error" in self.said:
            return f"{step}: {self.said['error'][:SHOWN_CHARS]}"
        if self.ran.code is None:
            return f"{step}: has not ended within {PROBE_LIMIT_S:.0f} s"
        return f"{step}: {self.ran.complaint()}"


@dataclass(frozen=True)
class Accelerators:
    """`probe`: as a trainer sees it, None without torch. `without`: the same without the backends that torch
    loads by itself, where the first went wrong. `backends`: those, by name. `nodes`: devices in /dev.
    `locked_bytes`: RLIMIT_MEMLOCK, None for unlimited."""

    probe: Probe | None
    without: Probe | None = None
    backends: tuple[str, ...] = ()
    npu: str | None = None
    nodes: tuple[str, ...] = ()
    locked_bytes: int | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


def read(environ: Mapping[str, str] = os.environ) -> Accelerators:
    """Probe, for as long as PROBE_LIMIT_S each time."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    probe = without = None
    if importlib.util.find_spec("torch") is not None:  # which does not import it
        probe = _probed()
        if probe.trouble() and environ.get(AUTOLOAD) != "0":
            without = _probed({AUTOLOAD: "0"})
    return Accelerators(
        probe=probe,
        without=without,
        backends=tuple(sorted({e.name for e in metadata.entry_points(group="torch.backends")})),
        npu=_version_of_npu(),
        nodes=tuple(sorted(glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/davinci[0-9]*"))),
        locked_bytes=None if soft == resource.RLIM_INFINITY else soft,
        environ={name: environ[name] for name in (AUTOLOAD, *_HIDING) if name in environ},
    )


def _probed(changed: Mapping[str, str] | None = None) -> Probe:
    ran = run_python(*_PROBE, limit_s=PROBE_LIMIT_S, bare=False, changed=changed)
    said: dict[str, Any] = {}
    for line in ran.out.splitlines():
        try:
            one = json.loads(line)
        except ValueError:  # what a backend printed
            continue
        said = one if isinstance(one, dict) else said
    return Probe(ran, said)


def _version_of_npu() -> str | None:
    """Of torch_npu, where it can be found; nothing is imported."""
    for name in ("torch_npu", "torch-npu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "of an unknown version" if importlib.util.find_spec("torch_npu") is not None else None


def judge(read: Accelerators) -> list[Finding]:
    """torch's accelerator, how bytes get there, and torch_npu."""
    if read.probe is None:
        return [ok("accelerator", "no torch here, so no device tensors")]
    if read.probe.trouble():
        return [_broken(read, read.probe)]
    said = read.probe.said
    if said.get("accelerator") is None:
        return [_none(read, said), *_npu(read, said)]
    return [_there(said), *_pinning(read, said), *_npu(read, said)]


def _broken(read: Accelerators, probe: Probe) -> Finding:
    """Whose fault it is: that of a backend, where torch works without."""
    trouble = probe.trouble()
    if read.without is not None and not read.without.trouble():
        whose = " or ".join(read.backends) or "a backend"
        version = f" {read.npu}" if read.npu and "torch_npu" in read.backends else ""
        return problem(
            "accelerator",
            f"{whose}{version}, which torch {read.without.said.get('torch')} loads by itself, breaks it: "
            f"{trouble}",
            f"{_matching(read, read.without.said)}, or uninstall it; {_NO_AUTOLOAD}",
        )
    if "accelerator" in probe.said:
        return problem(
            "accelerator",
            f"{probe.said.get('devices')} x {probe.said['accelerator']} with torch {probe.said['torch']} "
            f"fail at {trouble}",
            "see whether other programs can use the device (nvidia-smi, npu-smi info), or one has it alone",
        )
    return problem(
        "accelerator", f"torch does not work: {trouble}", "install torch again, for this Python and driver"
    )


def _matching(read: Accelerators, said: Mapping[str, Any]) -> str:
    """How torch_npu and torch go together."""
    if "torch_npu" not in read.backends and read.npu is None:
        return "install a version of it that belongs to this torch"
    if said.get("cuda_build"):
        return f"torch_npu refuses CUDA builds ({said.get('torch')}): install torch's CPU build"
    return (
        "install torch_npu and torch of one version (pip install 'datahelix[npu]'), source CANN's set_env.sh"
    )


def _none(read: Accelerators, said: Mapping[str, Any]) -> Finding:
    torch, build = said.get("torch"), _build(said)
    found = f'torch {torch} ({build}) sees none; device="auto" gives host tensors'
    if said.get("old"):
        return warning("accelerator", f"{found}: device= needs torch 2.7 or newer", "pip install -U torch")
    hidden = [name for name in _HIDING if read.environ.get(name) in ("", "-1")]
    if hidden:
        return ok("accelerator", f"{found}: {hidden[0]}={read.environ[hidden[0]]!r} hides devices")
    why = "; ".join(said.get("warnings", ()))
    nvidia = [node for node in read.nodes if "nvidia" in node]
    ascend = [node for node in read.nodes if "davinci" in node]
    if nvidia and not said.get("cuda_build"):
        return warning(
            "accelerator", f"{found}, though {nvidia[0]} is there", "install a CUDA build of torch"
        )
    if nvidia:
        return warning(
            "accelerator",
            f"{found}, though {nvidia[0]} is there{': ' + why if why else ''}",
            f"see what nvidia-smi says; the driver has to be new enough for CUDA {said.get('cuda_build')}",
        )
    if ascend:
        return warning(
            "accelerator",
            f"{found}, though {ascend[0]} is there",
            "pip install 'datahelix[npu]', see docs/devices.md",
        )
    return ok("accelerator", f"{found}{': ' + why if why else ''}")


def _build(said: Mapping[str, Any]) -> str:
    if said.get("cuda_build"):
        return f"built for CUDA {said['cuda_build']}"
    return f"built for ROCm {said['hip_build']}" if said.get("hip_build") else "a CPU build"


def _there(said: Mapping[str, Any]) -> Finding:
    return ok(
        "accelerator",
        f"{said['devices']} x {said['accelerator']} with torch {said['torch']} ({_build(said)}); "
        f'device="auto" takes {said["device"]} here, tier {said["tier"]}: {_TIERS[said["tier"]]}',
    )


def _pinning(read: Accelerators, said: Mapping[str, Any]) -> list[Finding]:
    """Memory that may be locked, by which some drivers count what is pinned; only where that did not work."""
    if said["tier"] == "registered":
        return []
    found = f"rings cannot be registered with the driver ({said['accelerator']})"
    if read.locked_bytes is not None and read.locked_bytes < _LOCKED_BYTES:
        return [
            warning(
                "pinning",
                f"{found}; {size(read.locked_bytes)} may be locked (RLIMIT_MEMLOCK): some drivers go by it",
                "ulimit -l unlimited (docker --ulimit memlock=-1) and look again",
            )
        ]
    if said["tier"] == "plain":
        return [warning("pinning", f"{found}, and no memory can be pinned", "see docs/devices.md")]
    return [ok("pinning", f"{found}; one more copy for each batch")]


def _npu(read: Accelerators, said: Mapping[str, Any]) -> list[Finding]:
    if read.npu is None:
        return []
    if said.get("npu_loaded"):
        return [ok("torch_npu", f"torch_npu {read.npu} beside torch {said.get('torch')} can be imported")]
    if read.environ.get(AUTOLOAD) == "0":
        why, cure = (
            f"{AUTOLOAD}=0 keeps torch from importing it",
            f"unset {AUTOLOAD}, if trainers are to use it",
        )
    else:
        why, cure = "torch does not import it by itself", "import torch_npu in the trainer"
    return [warning("torch_npu", f"torch_npu {read.npu} is installed; {why}", cure)]
