"""What the documents show works when it is done as shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.clips import make_clip
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
    assert set(files) == {"my_recipe.py", "train.py"}
    assert len(loose) == 4
    files["loose.py"] = "\n".join(loose)
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HELIX_CACHE": str(tmp_path / "cache"),
        "HELIX_JOB": tmp_path.name,
    }
    (tmp_path / "tokenizer.json").touch()  # looked for when a recipe is made, read when it is used
    for name, code in files.items():
        (tmp_path / name).write_text(code)
    for name in ("train.py", "loose.py"):
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
