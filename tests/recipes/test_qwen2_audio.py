"""Qwen2-Audio: spectrograms of sounds, the tokens that stand for them, and what is learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import libhelix as hx
from libhelix.errors import HelixWarning, MediaError, UsageError
from libhelix.media import probe_items
from libhelix.media.mel import log_mel
from libhelix.plan.counts.audio import qwen2_audio
from libhelix.recipe import Part, Rng, Sample
from libhelix.recipes import Audio, InternVL, LlavaOneVision, Qwen2Audio
from tests.clips import make_clip
from tests.sounds import encode, tones, with_sound, write_wav
from tests.vlms import INTERNVL, LLAVA, QWEN2_AUDIO, Array, checkpoint, filled, learned, sample_of, words

HEARD = [("human", "<audio>\nWhat is it?"), ("gpt", "A cat.")]
SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audio")


@pytest.fixture(scope="module")
def ours(folder: Path) -> str:
    return checkpoint(folder / "ours", QWEN2_AUDIO)


@pytest.fixture(scope="module")
def short(folder: Path) -> Path:
    return write_wav(folder / "short.wav", tones(1.3, 16_000), 16_000)


def decoded(path: Path) -> Array:
    """The sound as the recipe Audio gives it: mono, at 16 kHz."""
    sample = Sample(0, path.name, tuple(item for item in probe_items(path) if item.kind == "audio"))
    desc = Audio().describe(sample, Rng(0, 0, 0))
    out = np.empty(desc.fields[0].shape, np.float32)
    Audio().fill(sample, desc, Part(0, 1, 1), {"audio": out})
    return out


def spectrogram(sound: Array) -> Array:
    out = np.empty((128, 3000), np.float32)
    log_mel(sound, out)
    return out


def test_a_sound_becomes_a_spectrogram_and_25_tokens_a_second(folder: Path, ours: str, short: Path) -> None:
    desc, out = filled(Qwen2Audio(ours), sample_of(folder, HEARD, short))
    assert qwen2_audio(20_800).tokens == 32
    assert words(ours, out["input_ids"]) == (
        f"{SYSTEM}<|im_start|>user\nAudio 1: <|audio_bos|><|AUDIO|>*32<|audio_eos|>\nWhat is it?<|im_end|>\n"
        "<|im_start|>assistant\nA cat.<|im_end|>\n"
    )
    assert learned(ours, out) == ["A cat.<|im_end|>"]
    np.testing.assert_array_equal(out["input_features"], spectrogram(decoded(short))[np.newaxis])
    assert out["feature_attention_mask"].dtype == np.int32
    assert out["feature_attention_mask"].tolist() == [[1] * 130 + [0] * 2870]
    assert desc.costs == {
        "tokens": len(out["input_ids"]),
        "targets": int((out["labels"] != -100).sum()),
        "sounds": 1,
    }


def test_other_rates_and_channels_become_mono_at_16_khz(folder: Path, ours: str) -> None:
    path = encode(folder / "stereo.flac", tones(2.2, 44_100, 2), 44_100)
    _, out = filled(Qwen2Audio(ours), sample_of(folder, HEARD, path))
    np.testing.assert_array_equal(out["input_features"][0], spectrogram(decoded(path)))


@pytest.mark.parametrize("rate", [8_000, 11_025])
def test_of_a_long_sound_the_first_30_seconds_are_those_of_the_whole(
    folder: Path, ours: str, rate: int
) -> None:
    path = write_wav(folder / f"long{rate}.wav", tones(31.5, rate), rate)
    desc, out = filled(Qwen2Audio(ours), sample_of(folder, HEARD, path))
    assert desc.draws.sounds[0].counts.tokens == 750
    assert out["feature_attention_mask"].all()
    # Changing the rate looks ahead: what follows the 30 seconds is heard in their last samples.
    np.testing.assert_array_equal(out["input_features"][0], spectrogram(decoded(path)[:480_000]))


def test_parts_equal_the_whole(folder: Path, ours: str, short: Path) -> None:
    other = write_wav(folder / "other.wav", tones(0.4, 8_000), 8_000)
    turns = [("human", "<audio><audio>\nSame?"), ("gpt", "No."), ("human", "<audio>"), ("gpt", "Yes.")]
    sample = sample_of(folder, turns, short, other, short)
    desc, whole = filled(Qwen2Audio(ours), sample)
    assert desc.units == 3
    assert desc.cuts == (1, 2)
    assert "Audio 3: <|audio_bos|><|AUDIO|>*32<|audio_eos|>\n<|im_end|>" in words(ours, whole["input_ids"])
    for bounds in ((0, 1, 2, 3), (0, 2, 3)):
        _, parts = filled(Qwen2Audio(ours), sample, bounds=bounds)
        for name, field in whole.items():
            np.testing.assert_array_equal(parts[name], field)


def test_a_videos_sound_counts_where_the_text_asks_for_it(folder: Path, ours: str) -> None:
    film = with_sound(
        folder / "film.mp4", make_clip(folder / "silent.mp4", 25), tones(1, 48_000), 48_000, "aac"
    )
    _, out = filled(Qwen2Audio(ours), sample_of(folder, HEARD, film))
    np.testing.assert_array_equal(out["input_features"][0], spectrogram(decoded(film)))


def test_a_conversation_without_sounds(folder: Path, ours: str) -> None:
    talk = [("human", "Hello?"), ("gpt", "Yes.")]
    desc, out = filled(Qwen2Audio(ours, layout="pad"), sample_of(folder, talk))
    assert out["input_features"].shape == (0, 128, 3000)
    assert out["feature_attention_mask"].shape == (0, 3000)
    assert out["attention_mask"].all()
    assert desc.units == 1
    assert desc.costs["sounds"] == 0


def test_a_sound_too_short_for_a_token_is_refused(folder: Path, ours: str) -> None:
    click = write_wav(folder / "click.wav", tones(0.02, 16_000), 16_000)
    with pytest.raises(MediaError, match=r"320 samples.*no token"):
        Qwen2Audio(ours).describe(sample_of(folder, HEARD, click), Rng(0, 0, 0))


def test_a_loader_packs_conversations(folder: Path, ours: str, short: Path) -> None:
    source = folder / "train.jsonl"
    with source.open("w") as file:
        for media, asked in (({"audio": short.name}, "<audio>\nWhat?"), ({}, "What?")):
            talk = [{"from": "human", "value": asked}, {"from": "gpt", "value": "A cat."}]
            file.write(json.dumps({**media, "conversations": talk}) + "\n")
    loader = hx.Loader(
        source, recipe=Qwen2Audio(ours), batching=hx.FixedBatch(2), shuffle=False, backend="inline"
    )
    batch = next(iter(loader))
    assert batch["input_features"].shape == (1, 128, 3000)
    assert batch.host["input_features_cu_seqlens"].tolist() == [0, 1, 1]
    assert batch["feature_attention_mask"].sum() == 130
    assert batch.num_tokens == len(batch["input_ids"])


def test_wrong_settings_are_refused(ours: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Qwen2Audio"):
        Qwen2Audio(ours, layout="stack")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        Qwen2Audio(str(tmp_path))
    with pytest.raises(UsageError, match="80 bins"):
        Qwen2Audio(checkpoint(tmp_path / "whisper", QWEN2_AUDIO, feature_size=80))


@pytest.mark.parametrize(
    ("recipe", "template", "assumed"),
    [
        (Qwen2Audio, QWEN2_AUDIO, "Qwen2Audio takes spectrograms to have 128 bins"),
        (InternVL, INTERNVL, "InternVL takes pictures to be of 448 pixels"),
        (LlavaOneVision, LLAVA, "LlavaOneVision takes pictures to be of 384 pixels"),
    ],
)
def test_what_is_assumed_without_a_preprocessor_config_is_said(
    recipe: type[Any], template: str, assumed: str, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "c", template)
    (tmp_path / "c" / "preprocessor_config.json").unlink()
    with pytest.warns(HelixWarning, match=f"c: has no preprocessor_config.json, so that {assumed}"):
        recipe(checkpoint=folder)
