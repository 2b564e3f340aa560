"""Keys are what data sets say: no command lets them move the cursor or forge a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from libhelix.ctl import status, top
from libhelix.ctl.main import main
from libhelix.ctl.output import visible
from libhelix.index.build import build
from tests.index.sources import image

EVIL = "a\nin again: b\x1b[2J\r\x9b1A\u202e"
SHOWN = r"a\nin again: b\x1b[2J\r\x9b1A\u202e"


@pytest.fixture
def index(tmp_path: Path) -> str:
    (tmp_path / "a.png").write_bytes(image(1))
    (tmp_path / "broken.png").write_bytes(image(2, size=(400, 400))[:-2000])
    lines = [{"id": EVIL, "image": "broken.png"}, {"id": "good", "image": "a.png", "text": "x"}]
    lines.append({"id": EVIL + "2", "image": f"no{EVIL}.png"})
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    build([tmp_path / "x.jsonl"], tmp_path / "x.arrow")
    return str(tmp_path / "x.arrow")


def run(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """All that a command prints."""
    with pytest.raises(SystemExit):
        main(args)
    return "".join(capsys.readouterr())


def test_control_characters_are_shown_escaped_and_other_text_as_it_is() -> None:
    assert visible(EVIL) == SHOWN
    assert (
        visible("süß 日本 \U0001f469\u200d\U0001f680 \\n C:\\x")
        == "süß 日本 \U0001f469\u200d\U0001f680 \\n C:\\x"
    )
    assert visible("\u2028\x7f\t") == r"\u2028\x7f\t"


def test_no_command_prints_a_key_raw(index: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    recipe = ("--recipe", "libhelix.recipes:Image", "--param", "size=[8,8]")
    patchy = ("--recipe", "tests.system.recipes:Patchy", "--param", "failing=[0]")
    source = str(Path(index).with_name("x.jsonl"))
    commands: dict[str, tuple[str, ...]] = {
        "refused by index": ("index", source, "-o", str(tmp_path / "y.arrow")),
        "lint": ("lint", index),
        "describe": ("describe", index, *patchy),
        "preview": ("preview", index, EVIL, "-o", str(tmp_path / "o.png")),
        "not there": ("preview", index, f"{EVIL}?", "-o", str(tmp_path / "o.png")),
        "near": ("preview", index, "in again", "-o", str(tmp_path / "o.png"), *recipe),
        "quarantine add": ("quarantine", "add", index, EVIL, "--why", EVIL),
        "quarantine ls": ("quarantine", "ls", index),
        "quarantine retry": ("quarantine", "retry", index),
        "quarantine retry all": ("quarantine", "retry", index, "--all"),
        "inspect": ("inspect", index, *patchy),
    }
    named = set()
    for name, args in commands.items():
        said = run(capsys, *args)
        assert not set(said) & set("\x1b\r\x9b\u202e"), name
        assert not [line for line in said.splitlines() if line.startswith("in again: b")], name
        if SHOWN in said:
            named.add(name)
    assert {"refused by index", "lint", "describe", "near", "quarantine ls"} <= named


def test_json_has_the_key_itself(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "quarantine", "add", index, EVIL)
    (kept,) = json.loads(run(capsys, "quarantine", "ls", index, "--json"))
    assert kept["key"] == EVIL
    found = json.loads(run(capsys, "lint", index, "--json"))
    assert EVIL in json.dumps(found, ensure_ascii=False) or EVIL in {n["key"] for n in found["notes"]}


def test_status_and_top_show_names_escaped_and_without_markup(capsys: pytest.CaptureFixture[str]) -> None:
    loader: dict[str, Any] = {
        "loader": "[red]train", "recipe": EVIL, "steps_per_epoch": 3, "consumers": [], "ranks": [],
        "bad_samples": 0, "failure": EVIL, "limited_by": None, "window_s": None,
        "slowest": [{"key": EVIL, "sample": 1, "seconds": 1.0}],
    }  # fmt: skip
    console = Console(width=200)
    status._show_loader(console, loader)
    job = {"job": EVIL, "uid": 0, "workers": {"busy": 0, "all": 1}, "loaders": [loader]}
    console.print(top.shown({"jobs": [job]}))
    out = capsys.readouterr().out
    assert not set(out) & set("\x1b\r\x9b\u202e")
    assert out.count(SHOWN) == 5
    assert out.count("[red]train") == 3
