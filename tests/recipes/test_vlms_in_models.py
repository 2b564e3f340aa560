"""Tiny models of transformers take the batches of the recipes, as docs/vlms.md shows it; what they learn of a
pack is what they learn of its samples one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import libhelix as hx
from libhelix.recipes import InternVL, LlavaOneVision, Qwen2Audio
from tests.clips import make_clip
from tests.recipes.test_vlms_page import Lines, draw, loader_of, loop
from tests.sounds import tones, write_wav
from tests.vlms import INTERNVL, LLAVA, QWEN2_AUDIO, checkpoint, need_torchvision

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers", reason="the models are those of transformers")
need_torchvision()

TEXT = {
    "vocab_size": 400,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def token(path: str, word: str) -> int:
    import tokenizers

    found: int | None = tokenizers.Tokenizer.from_file(f"{path}/tokenizer.json").token_to_id(word)
    assert found is not None
    return found


def ran(number: int, loader: hx.Loader, model: Any, recipe: Any) -> tuple[float, int]:
    """The loss of the loader's one batch, by the page's own lines, and its targets."""
    names: dict[str, Any] = {"loader": loader, "model": model.eval(), "torch": torch}
    if not isinstance(recipe, Qwen2Audio):
        names["scale"], names["shift"] = (torch.from_numpy(one) for one in recipe.scale_and_shift())
    with torch.no_grad():
        exec(loop(number), names)
    return float(names["loss"].loss), names["batch"].num_targets


def check(number: int, folder: Path, recipe: hx.Recipe, lines: Lines, model: Any) -> None:
    loss, targets = ran(number, loader_of(folder, recipe, lines), model, recipe)
    assert loss == pytest.approx(np.log(400), rel=0.2)
    single = [ran(number, loader_of(folder, recipe, [line]), model, recipe) for line in lines]
    assert sum(n for _, n in single) == targets
    # Packed samples do not see each other: transformers tells them apart by their positions.
    assert loss == pytest.approx(sum(one * n for one, n in single) / targets, rel=1e-4)


def test_internvl(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "model", INTERNVL)
    one, film = draw(tmp_path / "a.png", (300, 500)), make_clip(tmp_path / "a.mp4", 20).name
    recipe = InternVL(
        path, policy="transformers", max_tiles=3, max_frames=2, min_frames=1, empty_vision="dummy"
    )
    lines: Lines = [({"image": one}, "<image>\nWhat?"), ({"video": film}, "<video>\nWhat?"), ({}, "What?")]
    config = transformers.InternVLConfig(
        vision_config=VISION,
        text_config={"model_type": "qwen2", **TEXT},
        image_token_id=token(path, "<IMG_CONTEXT>"),
    )
    model = transformers.InternVLForConditionalGeneration(config)
    check(0, tmp_path, recipe, lines, model)


def test_llava_onevision(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "model", LLAVA)
    one, two = draw(tmp_path / "a.png", (300, 500)), draw(tmp_path / "b.png", (50, 40))
    film = make_clip(tmp_path / "a.mp4", 20).name
    recipe = LlavaOneVision(path, max_frames=2, force=True)
    lines: Lines = [
        ({"image": one}, "<image>\nWhat?"),
        ({"images": [two, one]}, "<image><image>\nWhat?"),
        ({"video": film}, "<video>\nWhat?"),
        ({"videos": [film, film], "image": two}, "<video><video><image>\nWhat?"),
        ({}, "What?"),
    ]
    config = transformers.LlavaOnevisionConfig(
        vision_config={
            "model_type": "siglip_vision_model", "patch_size": 14, "image_size": 384,
            "vision_use_head": False, **VISION,
        },
        text_config={"model_type": "qwen2", **TEXT},
        image_token_index=token(path, "<image>"),
        video_token_index=token(path, "<video>"),
    )  # fmt: skip
    model = transformers.LlavaOnevisionForConditionalGeneration(config)
    check(1, tmp_path, recipe, lines, model)


def qwen2_audio(path: str) -> Any:
    audio = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16}
    config = transformers.Qwen2AudioConfig(
        audio_config={"model_type": "qwen2_audio_encoder", **audio},
        text_config={"model_type": "qwen2", **TEXT},
        audio_token_index=token(path, "<|AUDIO|>"),
    )
    return transformers.Qwen2AudioForConditionalGeneration(config)


def test_qwen2_audio(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "model", QWEN2_AUDIO)
    one = write_wav(tmp_path / "a.wav", tones(1.3, 16_000), 16_000).name
    two = write_wav(tmp_path / "b.wav", tones(0.4, 8_000), 8_000).name
    lines: Lines = [
        ({"audio": one}, "<audio>\nWhat?"), ({"audios": [two, one]}, "<audio><audio>\nWhat?"), ({}, "What?"),
    ]  # fmt: skip
    check(2, tmp_path, Qwen2Audio(path), lines, qwen2_audio(path))


def test_a_masked_sound_counts_for_nothing(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "model", QWEN2_AUDIO)
    sound = write_wav(tmp_path / "a.wav", tones(0.7, 16_000), 16_000).name
    batch = next(iter(loader_of(tmp_path, Qwen2Audio(path), [({"audio": sound}, "<audio>?")])))
    model = qwen2_audio(path).eval()
    names = ("input_features", "feature_attention_mask")
    masked = {name: torch.cat([torch.zeros_like(batch[name]), batch[name]]) for name in names}
    text = {name: batch[name][None] for name in ("input_ids", "labels", "position_ids")}
    with torch.no_grad():
        with_it = model(**text, **masked, use_cache=False).loss
        without = model(**text, **{name: batch[name] for name in names}, use_cache=False).loss
    assert with_it == without
