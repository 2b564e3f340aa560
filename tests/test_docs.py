"""What the documents show works when it is done as shown."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from libhelix.ctl.main import main
from tests.clips import make_clip
from tests.index.sources import image, tar
from tests.sounds import tones, write_wav

ROOT = Path(__file__).resolve().parents[1]


def _blocks(page: str) -> list[tuple[str, str]]:
    """(file name or '', code) of every Python block."""
    text = (ROOT / "docs" / page).read_text()
    return re.findall(r"^```python(?: file=(\S+))?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_recipes_page_does_what_it_says(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        (tmp_path / "videos" / name).mkdir(parents=True)
        for i in range(2):
            make_clip(tmp_path / "videos" / name / f"{i}.mp4", 20, size=(64, 64))
    (tmp_path / "speech").mkdir()
    for i in range(2):
        write_wav(tmp_path / "speech" / f"{i}.wav", tones(1 + i, 8000), 8000)
    blocks = _blocks("recipes.md")
    loose = [code for name, code in blocks if not name]
    files = {name: code for name, code in blocks if name}
    modules, scripts = {"my_recipe.py", "my_dataset.py", "my_stream.py"}, ["train.py", "loose.py"]
    scripts += ["train_torch.py", "train_stream.py"]
    assert {*files, "loose.py"} == modules | set(scripts)
    assert len(loose) == 4
    files["loose.py"] = "\n".join(loose)
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HELIX_CACHE": str(tmp_path / "cache"),
        "HELIX_JOB": f"docs-{os.getpid()}",  # not that of another run on this machine
    }
    (tmp_path / "tokenizer.json").touch()  # looked for when a recipe is made, read when it is used
    for name, code in files.items():
        (tmp_path / name).write_text(code)
    for name in scripts:
        done = subprocess.run(
            [sys.executable, name], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        if name == "train.py":
            lines = done.stdout.splitlines()
            assert len(lines) == 2
            for line in lines:
                assert line.startswith("torch.Size([2, 8, 64, 64, 3])")
                for label, key in enumerate(("cats", "dogs")):
                    assert (f"'{key}/" in line) == (str(label) in line.split("]")[1])


def test_the_formats_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = "videos/a pictures pairs shards coco/train2017 coco/clips lists data"
    for folder in folders.split():
        Path(folder).mkdir(parents=True)
    for clip in ("videos/a/0.mp4", "pairs/a.mp4", "coco/clips/7.mp4"):
        make_clip(Path(clip), 6)
    pictures = "pictures/a coco/a coco/b lists/0 coco/train2017/000000033471.jpg"
    for picture in pictures.split():
        Path(picture if "." in picture else f"{picture}.png").write_bytes(image())
    Path("pairs/a.txt").write_text("a cat")
    tar(Path("shards/0.tar"), [("train/0001.seg.png", image())])
    parquet.write_table(pa.table({"path": ["0.png"]}), "lists/0.parquet")
    parquet.write_table(pa.table({"image": [{"bytes": image(), "path": "a.png"}]}), "data/0.parquet")
    text = (ROOT / "docs" / "formats.md").read_text()
    (lines,) = re.findall(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    Path("llava.jsonl").write_text(lines)
    commands = re.findall(r"^helixctl (.*)$", text, re.MULTILINE)
    assert len(commands) == 9
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(command))
        out, err = capsys.readouterr()
        assert (ended.value.code, err) == (0, ""), command
        if command.startswith("index"):
            assert "0 samples" not in out
            assert "left out" not in out, command


def test_two_ranks_go_on_where_four_have_saved(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    make_clip(tmp_path / "videos" / "00.mp4", 8, size=(64, 64))
    for i in range(1, 32):
        shutil.copy(tmp_path / "videos" / "00.mp4", tmp_path / "videos" / f"{i:02d}.mp4")
    ((_, code),) = [block for block in _blocks("planning.md") if block[0] == "resume.py"]
    (tmp_path / "resume.py").write_text(code)
    first, second = _ranks(tmp_path, 4), _ranks(tmp_path, 2)
    assert first.keys() == {(rank, step) for rank in range(4) for step in (0, 1)}
    assert second.keys() == {(rank, step) for rank in range(2) for step in (2, 3)}
    delivered = Counter(key for keys in (*first.values(), *second.values()) for key in keys)
    assert delivered == Counter(f"{i:02d}.mp4" for i in range(32))
    state = str(tmp_path / "data.json")
    command = [sys.executable, "-m", "libhelix.ctl", "coverage", state]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1].split() == ["0", "16", "0", "16"]


def _ranks(folder: Path, count: int) -> dict[tuple[int, int], list[str]]:
    """What ranks of a job print: sample keys by rank and step."""
    env = {"PYTHONPATH": str(ROOT), "HELIX_CACHE": str(folder / "cache"), "HELIX_JOB": f"{folder}{count}"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "resume.py"],
            cwd=folder,
            env={**os.environ, **env, "RANK": str(rank), "WORLD_SIZE": str(count)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    lines = [line.split() for rank in ranks for line in rank.communicate(timeout=120)[0].splitlines()]
    assert all(rank.returncode == 0 for rank in ranks)
    return {(int(rank), int(step)): keys for _, rank, _, step, *keys in lines}


def test_ranks_are_level_where_tokens_are_counted_after_decoding(tmp_path: Path) -> None:
    # As many bytes in each, and so as many tokens declared; many words in some.
    lines = [json.dumps({"text": ("a " if i % 7 in (0, 1) else "aa") * 400}) for i in range(48)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    ((_, words),) = [block for block in _blocks("planning.md") if block[0] == "words.py"]
    (tmp_path / "words.py").write_text(words)
    ((_, code),) = [block for block in _blocks("planning.md") if block[0] == "level.py"]
    # A gloo thread that drops its tensor while Python is torn down would abort: see bench/child.py.
    (tmp_path / "level.py").write_text(f"{code}\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n")
    env = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "HELIX_CACHE": str(tmp_path / "cache")}
    apart = [
        "--redirects",
        "1",
        "--log-dir",
        str(tmp_path / "logs"),
    ]  # else ranks write into each other's lines
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    done = subprocess.run(
        [*torchrun, *apart, "level.py"],
        cwd=tmp_path,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    steps: dict[int, list[tuple[int, int]]] = {}
    said = "".join(path.read_text() for path in sorted((tmp_path / "logs").rglob("stdout.log")))
    for step, before, after in re.findall(r"step (\d+) rank \d tokens (\d+) (\d+)\n", said):
        steps.setdefault(int(step), []).append((int(before), int(after)))
    assert len(steps) == 4
    assert all(len(ranks) == 3 for ranks in steps.values()), said
    for ranks in steps.values():
        was, now = zip(*ranks)
        assert sum(was) == sum(now)
        assert max(now) <= max(was)
    assert any(max(a for _, a in ranks) < max(b for b, _ in ranks) for ranks in steps.values())
