"""`python -m tests.npu.environment` (make npu-env) makes what the tests here need, in the folder of caches.

That is the torch_npu of PyPI, used with the torch that runs this, and an AscendCL of our own for it to find.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from libhelix.index.cache import user_cache

VERSION = "2.13.0"
SOURCE = Path(__file__).with_name("ascendcl.cpp")
LIBRARY = "libascendcl.so"
OTHERS = ("hccl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "ascend_ml")
"""Libraries of CANN that torch_npu asks for by name; the one has it all."""
OURS = ("acl", "Hccl", "hccl", "rt", "Msprof")
"""How the calls of CANN begin."""

REFUSING = """#include <cstdio>
#define REFUSED(name) \\
    extern "C" int name() { std::fputs("AscendCL: " #name " is not emulated\\n", stderr); return 500002; }
"""


def folder() -> Path:
    """Where the environment lies, by all that it is made of."""
    digest = hashlib.sha256(SOURCE.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:12]
    python = f"{sys.version_info.major}{sys.version_info.minor}"
    return Path(user_cache(), f"npu-{VERSION}-{python}-{digest}")


def problem() -> str:
    """Why the environment cannot be made with this interpreter; nothing if it can."""
    import torch

    if torch.__version__.split("+")[0] != VERSION or torch.version.cuda is not None:
        return f"torch_npu {VERSION} needs torch {VERSION} without CUDA, this is {torch.__version__}"
    missing = [tool for tool in ("g++", "nm") if shutil.which(tool) is None]
    return f"{' and '.join(missing)} is missing" if missing else ""


def variables(at: Path) -> dict[str, str]:
    """What a process needs in its environment to find it."""
    paths = [str(at / "site"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "LD_LIBRARY_PATH": str(at / "lib")}


def make(at: Path) -> None:
    """Make it beside, and put it into its place once it is whole."""
    making = at.with_name(f"{at.name}.{os.getpid()}")
    shutil.rmtree(making, ignore_errors=True)
    try:
        _install(making / "site")
        _build(making / "site" / "torch_npu", making / "lib")
        shutil.rmtree(at, ignore_errors=True)
        making.rename(at)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _install(site: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", str(site), f"torch_npu=={VERSION}", "pyyaml"], check=True, timeout=600)


def _build(package: Path, lib: Path) -> None:
    lib.mkdir()
    gpp = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-pthread"]
    known = lib / "known.so"
    subprocess.run([*gpp, str(SOURCE), "-o", str(known)], check=True, timeout=120)
    asked = {s for library in package.rglob("*.so") for s in _symbols(library, "--undefined-only")}
    refused = sorted(s for s in asked - _symbols(known, "--defined-only") if s.startswith(OURS))
    refusing = lib / "refusing.cpp"
    refusing.write_text("".join([REFUSING, *(f"REFUSED({name})\n" for name in refused)]))
    subprocess.run([*gpp, str(SOURCE), str(refusing), "-o", str(lib / LIBRARY)], check=True, timeout=120)
    known.unlink()
    for name in OTHERS:
        (lib / f"lib{name}.so").symlink_to(LIBRARY)


def _symbols(library: Path, which: str) -> set[str]:
    listed = subprocess.run(["nm", "-D", which, str(library)], check=True, capture_output=True, timeout=60)
    return {line.split()[-1].split("@")[0] for line in listed.stdout.decode().splitlines() if line.strip()}


if __name__ == "__main__":
    here = folder()
    if here.is_dir():
        print(f"{here} is there")
    elif why := problem():
        sys.exit(f"not made: {why}")
    else:
        here.parent.mkdir(parents=True, exist_ok=True)
        make(here)
        print(f"made {here}")
