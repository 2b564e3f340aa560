"""The examples for clusters are what their schedulers take, and start what exists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helixd.cli import run
from tests.clips import make_clip

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "docs" / "examples"
MANIFESTS = sorted(EXAMPLES.glob("*.yaml"))


def _documents(path: Path) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="pip install kubernetes-validate, to check the manifests")
    return list(yaml.safe_load_all(path.read_text()))


def _containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    spec = document["spec"].get("template", document)["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]] if "containers" in spec else []


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.stem)
def test_a_manifest_is_what_kubernetes_takes(path: Path) -> None:
    kubernetes = pytest.importorskip(
        "kubernetes_validate", reason="pip install kubernetes-validate, to check the manifests"
    )
    documents = _documents(path)
    assert documents
    for document in documents:
        kubernetes.validate(document, kubernetes.latest_version(), strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.stem)
def test_containers_have_no_rights_and_mount_what_there_is(path: Path) -> None:
    for document in _documents(path):
        if document["kind"] == "Service":
            continue
        spec = document["spec"].get("template", document)["spec"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in _containers(document):
            rights = container["securityContext"]
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["capabilities"] == {"drop": ["ALL"]}
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.stem)
def test_trainers_look_for_the_daemon_where_it_listens(path: Path) -> None:
    containers = [
        c
        for document in _documents(path)
        for c in (_containers(document) if document["kind"] != "Service" else [])
    ]
    sockets = set()
    for container in containers:
        if container["command"][0] == "helixd":
            name, *options = container["command"][1:]
            assert name == "run"
            chosen = run.make_context("helixd run", list(options)).params
            if not chosen["helper"]:
                sockets.add(chosen["socket"])
    wanted = {e["value"] for c in containers for e in c.get("env", []) if e["name"] == "HELIX_SOCKET"}
    assert sockets == wanted


def test_pages_name_every_example() -> None:
    text = "".join((ROOT / "docs" / page).read_text() for page in ("clusters.md", "trainers.md"))
    named = set(re.findall(r"\]\(examples/([^)]+)\)", text))
    assert named == {path.name for path in EXAMPLES.iterdir() if path.is_file()}


def test_the_batch_script_is_a_script() -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    done = subprocess.run([bash, "-n", EXAMPLES / "slurm.sh"], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")


def test_ray_train_goes_through_an_epoch(tmp_path: Path) -> None:
    pytest.importorskip("ray.train", reason="pip install 'ray[train]', to run the example for Ray")
    (tmp_path / "videos").mkdir()
    make_clip(tmp_path / "videos" / "00.mp4", 8, size=(64, 64))
    for i in range(1, 16):
        shutil.copy(tmp_path / "videos" / "00.mp4", tmp_path / "videos" / f"{i:02d}.mp4")
    env = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "HELIX_CACHE": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    done = subprocess.run(
        [sys.executable, EXAMPLES / "ray_train.py", "videos", "2", "1"],
        cwd=tmp_path,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("{'step': 3")
