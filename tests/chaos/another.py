"""How a process runs as another user, where we may make it so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

from tests.system.processes import ROOT

_BOUND = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'

_AGAIN = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
"""setpriv still has root's rights when it starts a program; what that starts has not."""


class As(NamedTuple):
    """A command up to and with the interpreter, and the environment that it needs beside."""

    uid: int
    python: tuple[str, ...]
    environ: dict[str, str]


def ourselves() -> As:
    """This user."""
    return As(os.geteuid(), (sys.executable,), {"PYTHONPATH": str(ROOT)})


def another(folder: Path, uid: int = 65534) -> As | None:
    """Another user; None where we are not root, or lack setpriv. `folder` is for what it needs.

    An interpreter that the other may not reach, as below /root, is bound to where it may.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None or shutil.which("unshare") is None:
        return None
    become = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    if (
        subprocess.run([*become, sys.executable, "-c", _AGAIN], capture_output=True, check=False).returncode
        == 0
    ):
        return As(uid, (*become, sys.executable), {"PYTHONPATH": str(ROOT)})
    at = folder / "python"
    at.mkdir()
    bind = ("unshare", "--mount", "--propagation", "private", "sh", "-c", _BOUND, "sh", sys.base_prefix)
    interpreter = at / "bin" / Path(sys.executable).resolve().name
    environ = {
        "PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}",
        "LD_LIBRARY_PATH": str(at / "lib"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    found = As(uid, (*bind, str(at), *become, str(interpreter)), environ)
    tried = subprocess.run(
        [*found.python, "-c", f"import av; {_AGAIN}"],
        env={**os.environ, **environ},
        capture_output=True,
        check=False,
    )
    return found if tried.returncode == 0 else None
