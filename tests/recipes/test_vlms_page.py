"""docs/vlms.md shows loops that hand the models what they take; here a stand-in takes it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pil

import libhelix as hx
from libhelix.recipes import LlavaOneVision, Qwen2Audio
from tests.clips import make_clip, picture
from tests.sounds import tones, write_wav
from tests.vlms import INTERNVL, LLAVA, QWEN2_AUDIO, checkpoint

torch: Any = pytest.importorskip("torch")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "vlms.md"
Lines = Sequence[tuple[dict[str, Any], str]]


def block(number: int) -> str:
    """The page's n-th block of Python."""
    found = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 3
    return str(found[number])


def loop(number: int) -> str:
    """The loop over the loader in it."""
    return block(number)[block(number).index("for batch in loader:") :]


def write_lines(source: Path, lines: Lines) -> Path:
    """A JSONL of conversations: the media of each, and what is asked."""
    with source.open("w") as file:
        for media, asked in lines:
            talk = [{"from": "human", "value": asked}, {"from": "gpt", "value": "A cat."}]
            file.write(json.dumps({**media, "conversations": talk}) + "\n")
    return source


def loader_of(folder: Path, recipe: hx.Recipe, lines: Lines) -> hx.Loader:
    """All of them as one batch."""
    source = write_lines(folder / "train.jsonl", lines)
    batching = hx.FixedBatch(len(lines))
    return hx.Loader(source, recipe=recipe, batching=batching, shuffle=False, backend="inline", epochs=1)


def draw(path: Path, size: tuple[int, int]) -> str:
    """A picture; its name."""
    Pil.fromarray(picture(5, size)).save(path)
    return path.name


class StandIn:
    """Keeps what a model was given last."""

    def __call__(self, **given: Any) -> None:
        self.given = given


def shapes(model: StandIn) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in model.given.items() if name not in (
        "input_ids", "labels", "position_ids", "use_cache")}  # fmt: skip


def test_the_first_block_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HELIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_model.py").write_text(
        "from tests.recipes.test_vlms_page import StandIn\nmodel = StandIn()\n"
    )
    checkpoint(tmp_path / "InternVL3-8B-hf", INTERNVL)
    one, film = draw(tmp_path / "a.png", (300, 500)), make_clip(tmp_path / "a.mp4", 20).name
    write_lines(
        tmp_path / "train.jsonl",
        [({"image": one}, "<image>\nWhat?"), ({"video": film}, "<video>\nWhat?"), ({}, "What?")],
    )
    names: dict[str, Any] = {}
    exec(block(0).replace('backend="inline"', 'backend="inline", epochs=1'), names)
    given = names["model"].given
    n = given["input_ids"].shape[1]
    assert given["labels"].shape == given["position_ids"].shape == (1, n)
    assert given["pixel_values"].dtype == torch.float32
    assert given["pixel_values"].shape[0] * 256 == int(
        (given["input_ids"] == names["batch"]["input_ids"].mode().values).sum()
    )


def test_llava_onevision_is_given_pictures_and_frames(tmp_path: Path) -> None:
    recipe = LlavaOneVision(checkpoint(tmp_path / "model", LLAVA), max_frames=2, force=True)
    one, film = draw(tmp_path / "a.png", (50, 40)), make_clip(tmp_path / "a.mp4", 20).name
    lines: Lines = [
        ({"image": one}, "<image>\nWhat?"),
        ({"videos": [film] * 3}, "<video><video><video>?"),
        ({}, "?"),
    ]
    model = StandIn()
    scale, shift = (torch.from_numpy(each) for each in recipe.scale_and_shift())
    names = {"loader": loader_of(tmp_path, recipe, lines), "model": model, "scale": scale, "shift": shift}
    exec(loop(1), names)
    assert shapes(model) == {
        "pixel_values": (2, 3, 384, 384),
        "image_sizes": (1, 2),
        "batch_num_images": (3,),
        "pixel_values_videos": (3, 2, 3, 384, 384),
    }


def test_qwen2_audio_is_given_spectrograms(tmp_path: Path) -> None:
    sound = write_wav(tmp_path / "a.wav", tones(0.4, 16_000), 16_000).name
    lines: Lines = [({"audios": [sound, sound]}, "<audio><audio>\nWhat?"), ({}, "What?")]
    recipe = Qwen2Audio(checkpoint(tmp_path / "model", QWEN2_AUDIO))
    model = StandIn()
    exec(loop(2), {"loader": loader_of(tmp_path, recipe, lines), "model": model})
    assert shapes(model) == {"input_features": (2, 128, 3000), "feature_attention_mask": (2, 3000)}
