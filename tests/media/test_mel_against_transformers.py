"""Log-mel spectrograms equal those of the Whisper feature extractor of transformers, on both of its paths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from libhelix.media.mel import log_mel
from libhelix.plan.counts.audio import qwen2_audio

transformers = pytest.importorskip("transformers", reason="transformers, the independent oracle, is missing")

Array = np.ndarray[Any, np.dtype[Any]]


def _sound(rng: np.random.Generator, samples: int) -> Array:
    """Tones and noise, of any loudness, with silence here and there."""
    t = np.arange(samples) / 16_000
    sound = 10 ** rng.uniform(-5, 0) * rng.standard_normal(samples)
    for _ in range(rng.integers(0, 4)):
        sound += rng.uniform(0, 0.5) * np.sin(2 * np.pi * rng.uniform(20, 8000) * t)
    if rng.random() < 0.4:
        begin, end = sorted(rng.integers(0, samples + 1, 2))
        sound[begin:end] = 0
    return np.asarray(np.clip(sound, -1, 1), np.float32)


def _ours(sound: Array, bins: int, frames: int) -> Array:
    out = np.empty((bins, frames), np.float32)
    log_mel(sound, out)
    return out


def test_hundreds_of_random_sounds() -> None:
    rng = np.random.default_rng(1)
    extractors = {
        (bins, seconds): transformers.WhisperFeatureExtractor(feature_size=bins, chunk_length=seconds)
        for bins in (80, 128)
        for seconds in (1, 2)
    }
    worst = 0.0
    for _ in range(300):
        bins, seconds = int(rng.choice([80, 128])), int(rng.integers(1, 3))
        extractor = extractors[bins, seconds]
        sound = _sound(rng, int(rng.integers(1, 40_000)))
        cut = np.zeros(16_000 * seconds, np.float32)
        cut[: len(sound)] = sound[: len(cut)]
        (theirs,) = extractor._np_extract_fbank_features(cut[np.newaxis], "cpu")
        worst = max(worst, float(np.abs(_ours(sound, bins, 100 * seconds) - theirs).max()))
    assert worst < 1e-5


@pytest.mark.parametrize("samples", [1, 321, 16_000, 479_999, 480_000, 500_000])
def test_whole_calls_with_their_mask(samples: int) -> None:
    extractor = transformers.WhisperFeatureExtractor(feature_size=128, return_attention_mask=True)
    sound = _sound(np.random.default_rng(samples), samples)
    theirs = extractor(sound, sampling_rate=16_000, return_attention_mask=True, return_tensors="np")
    ours = _ours(sound, 128, 3000)
    # Called so, it takes torch's path, in single precision throughout.
    np.testing.assert_allclose(ours, theirs["input_features"][0], atol=1e-3)
    assert theirs["attention_mask"].sum() == qwen2_audio(samples).mel_frames
