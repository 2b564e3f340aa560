"""A machine: a systemd that was booted in namespaces, with helixd's units and two users in it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.system.processes import ROOT, eventually

HERE = Path(__file__).parent
PREFIX = "/opt/datahelix"
USER = 4711
"""Who trains."""
_SETUP = """#!/bin/bash
set -eu
R=$1
mkdir -p "$R{prefix}/python" "$R{prefix}/site" "$R{prefix}/source" "$R{prefix}/bin" "$R/etc/helix"
mount --bind {base} "$R{prefix}/python"
mount --bind {site} "$R{prefix}/site"
mount --bind {source} "$R{prefix}/source"
cp {here}/helixd.sh "$R{prefix}/bin/helixd"
sed 's|@PREFIX@|{prefix}|' {units}/helixd.service > "$R/etc/systemd/system/helixd.service"
cp {units}/helixd.socket "$R/etc/systemd/system/helixd.socket"
cp {units}/helixd.toml "$R/etc/helix/helixd.toml"
mkdir -p "$R/etc/sysusers.d" "$R/etc/tmpfiles.d"
cp {units}/helixd.sysusers "$R/etc/sysusers.d/helixd.conf"
cp {units}/helixd.tmpfiles "$R/etc/tmpfiles.d/helixd.conf"
chroot "$R" systemd-sysusers
echo 'trainer:x:{user}:{user}::/tmp/trainer:/bin/sh' >> "$R/etc/passwd"
"""


def why_not() -> str | None:
    """Why no machine can be booted here; None where one can."""
    if os.geteuid() != 0:
        return "booting a systemd needs root"
    for program in ("unshare", "nsenter", "setpriv", "/lib/systemd/systemd", "systemd-sysusers"):
        if shutil.which(program) is None:
            return f"booting a systemd needs {program}"
    flags = ["--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "--cgroup"]
    with tempfile.TemporaryDirectory() as at:
        script = (
            f"mount -t tmpfs t {at} && cd {at} && mkdir u w r && "
            "mount -t overlay o -o lowerdir=/,upperdir=u,workdir=w r"
        )
        tried = subprocess.run(["unshare", *flags, "sh", "-c", script], capture_output=True, check=False)
    return None if tried.returncode == 0 else f"no namespaces or overlays here: {tried.stderr.decode()[:200]}"


class Machine:
    """Commands in it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def start(self, *command: str, uid: int = 0) -> subprocess.Popen[str]:
        """A process inside."""
        namespaces = ["nsenter", "-t", str(self.pid), "-m", "-p", "-u", "-i", "-n", "-C", "-r", "-w"]
        who = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
        env = {
            "PATH": f"{PREFIX}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": f"{PREFIX}/source:{PREFIX}/site",
            "LD_LIBRARY_PATH": f"{PREFIX}/python/lib",  # not the system's libpython
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
        }
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*namespaces, *who, *command], env=env, text=True, stdin=pipe, stdout=pipe, stderr=pipe
        )

    def run(self, *command: str, uid: int = 0, code: int = 0) -> str:
        """Output of a command, which has to end with this code."""
        process = self.start(*command, uid=uid)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, f"{command}: {process.returncode}: {out}{err}"
        return out + err

    def show(self, name: str) -> str:
        """A property of helixd.service."""
        return self.run("systemctl", "show", "-P", name, "helixd.service").strip()

    def python(self, *args: str, uid: int = 0) -> subprocess.Popen[str]:
        """A Python process inside."""
        return self.start(f"{PREFIX}/python/bin/{Path(sys.executable).resolve().name}", *args, uid=uid)


@contextmanager
def booted() -> Iterator[Machine]:
    """A machine, until the end."""
    folder = Path(tempfile.mkdtemp(prefix="helix-machine-"))
    setup = folder / "setup"
    setup.write_text(
        _SETUP.format(
            prefix=PREFIX,
            base=sys.base_prefix,
            site=sysconfig.get_path("purelib"),
            source=ROOT,
            units=ROOT / "systemd",
            here=HERE,
            user=USER,
        )
    )
    setup.chmod(0o755)
    console = (folder / "console").open("w")
    process = subprocess.Popen(
        ["bash", str(HERE / "boot.sh"), str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=console,
        stderr=console,
        start_new_session=True,
    )
    pid = None
    try:
        pid = _first_process(process, folder)
        machine = Machine(pid)
        eventually("the machine is up", lambda: _is_up(machine), 60)
        yield machine
    finally:
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait(10)
        console.close()
        _remove(folder)


def _first_process(process: subprocess.Popen[bytes], folder: Path) -> int:
    """The machine's PID 1: the child of unshare."""
    deadline = time.monotonic() + 30
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while time.monotonic() < deadline:
        assert process.poll() is None, (folder / "console").read_text()
        with suppress(OSError):
            for child in children.read_text().split():
                if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                    return int(child)
        time.sleep(0.02)
    raise AssertionError(f"no systemd within 30 s: {(folder / 'console').read_text()}")


def _is_up(machine: Machine) -> bool:
    process = machine.start("systemctl", "is-system-running")
    out, _ = process.communicate(timeout=60)
    return out.strip() in ("running", "degraded")


def _remove(folder: Path) -> None:
    told = folder / "cgroup"
    if told.exists():
        eventually("its cgroup is gone", lambda: _removed(Path(told.read_text().strip())), 10)
    shutil.rmtree(folder, ignore_errors=True)


def _removed(cgroup: Path) -> bool:
    """Whether a cgroup and those below it are removed; what still ends in one holds it for a moment."""
    try:
        for at, _, _ in os.walk(cgroup, topdown=False):
            os.rmdir(at)
    except OSError:
        return False
    return True
